"""The inputs of one job's next step and status."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.capacity.sites import Sites
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import (
    GPUUsage,
    PerhapsCreated,
    ReceivedReport,
    RefusedPod,
    Yielding,
)
from gpujob_operator.decide.model.workers import NO_PODS, JobPods

# Refused pods by the job's UID.
RefusedPods = Mapping[str, tuple[RefusedPod, ...]]


@dataclass(frozen=True, slots=True)
class JobInputs:
    """Everything that a step, a status rule and a profile rule read besides the job and the time.

    Nothing new can be decided before the step's deadline while the inputs are equal.
    """

    job_pods: JobPods = NO_PODS
    report: ReceivedReport | None = None
    usage: GPUUsage | None = None
    # The nodes and GPUs of the job's workers.
    sites: Sites = ()
    # Nodes of the attempt that no longer exist.
    lost_nodes: frozenset[str] = frozenset()
    # Pods of its workers that the API server refused to create.
    refused_pods: tuple[RefusedPod, ...] = ()
    # Pods of its attempt that may have been created.
    perhaps_created: PerhapsCreated | None = None
    listening_since: datetime | None = None
    yielding: Yielding | None = None
    # Whether it is asked to park (True) or to wake.
    parks: bool | None = None
    # Growth of other jobs in this cycle, on the GPUs of the job's workers. Not compared, because a
    # job that sees any is decided about again in the next cycle.
    promised_bytes: Mapping[Place, int] = field(default_factory=dict[Place, int], compare=False)
    # Not compared. A pace measured by another job of the workload does not affect this job, and the
    # cache tracks any other change of the profile.
    profile: GPUProfile | None = field(default=None, compare=False)


def refused_by_job(refused: Iterable[RefusedPod]) -> RefusedPods:
    found: dict[str, tuple[RefusedPod, ...]] = {}
    for one in refused:
        found[one.job_uid] = (*found.get(one.job_uid, ()), one)
    return found
