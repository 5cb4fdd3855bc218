"""What is seen of one job, for the decision on its next step and on what is written of it."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.capacity.sites import Sites
from gpujob_operator.decide.model.snapshot import GPUUsage, PodView, ReceivedReport


@dataclass(frozen=True, slots=True)
class JobInputs:
    """All that a step, a status rule and a profile rule are given besides the job and the time.

    While these are equal, nothing new follows before the step's deadline. `pods` are the job's
    workers, of all attempts (see `workers`).
    """

    pods: tuple[PodView, ...] = ()
    # Pods of others that have the name of a worker of the current attempt.
    in_the_way: tuple[PodView, ...] = ()
    report: ReceivedReport | None = None
    usage: GPUUsage | None = None
    # The nodes and GPUs of its workers.
    sites: Sites = ()
    # Those of the attempt's nodes that are there no more.
    lost_nodes: frozenset[str] = frozenset()
    listening_since: datetime | None = None
    # Not compared: that others of the workload told a pace is nothing new to this job, and of any
    # other change of its profile the cache tells.
    profile: GPUProfile | None = field(default=None, compare=False)
