"""The objects of a large cluster, and an API server in memory that has them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from gpujob_api.gpujob import GPUJob, JobPhase, Measurement
from gpujob_api.gpunode import GPUNode
from gpujob_api.manifest import to_manifest
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_dashboard.groups import groups_of
from gpujob_dashboard.watched import Source, State
from gpujob_operator.client.kube import GPU_NODES, JOBS, NODES
from tests.harness.builders import make_gpu, make_gpu_node, make_job, placed, reserve, with_status
from tests.harness.dashboard import waiting
from tests.harness.http_api import HttpApi
from tests.harness.manifests import node_manifest

GPUS_A_NODE = 8
# Of ten jobs, two run if there are GPUs for two a GPU, five wait, and the rest succeeded.
JOBS_A_GPU = 2
NAMESPACES = 20


@dataclass(frozen=True, slots=True)
class Size:
    """A cluster with these numbers of GPUs and jobs."""

    gpus: int
    jobs: int


def job(number: int, size: Size, step: int) -> GPUJob:
    """The job of this number at this step. The first ones run, half of the others wait."""
    name = f"job-{number:05}"
    made = make_job(name, namespace=f"team-{number % NAMESPACES:02}", uid=name)
    created = datetime.now(UTC) - timedelta(minutes=5)
    made = replace(made, metadata=replace(made.metadata, creation_timestamp=created))
    if number < JOBS_A_GPU * size.gpus:
        node, index = divmod(number // JOBS_A_GPU, GPUS_A_NODE)
        return placed(
            made, (f"node-{node:04}", (f"GPU-{node}-{index}",)), phase=JobPhase.RUNNING,
            held=reserve(8 * GIB), started_at=created, observed_generation=1,
            measurement=Measurement(
                8 * GIB, 40.0, 100, step=step, steps_total=1_000_000, current=Timing(0.1, 0)
            ),
        )  # fmt: skip
    if number % 2:
        return waiting(made, "InsufficientCapacity", f"no GPU has 8 GiB for {name} at step {step}")
    return with_status(
        made, phase=JobPhase.SUCCEEDED, finished_at=datetime.now(UTC), observed_generation=1
    )


def node(number: int, size: Size) -> GPUNode:
    gpus = [
        make_gpu(f"GPU-{number}-{index}", index=index, ours=[(f"pod-{number}-{index}", 8 * GIB)])
        for index in range(min(GPUS_A_NODE, size.gpus - GPUS_A_NODE * number))
    ]
    made = make_gpu_node(f"node-{number:04}", *gpus)
    return replace(made, status=replace(made.status, observed_at=datetime.now(UTC)))


def nodes(size: Size) -> Sequence[GPUNode]:
    return [node(number, size) for number in range(-(-size.gpus // GPUS_A_NODE))]


def state(size: Size) -> State:
    """The cluster as the pages get it."""
    now = datetime.now(UTC)
    jobs = tuple(job(number, size, 1) for number in range(size.jobs))
    sources = tuple(Source(name, now, "", 0) for name in ("gpujobs", "gpunodes", "gpuqueues"))
    return State(jobs, tuple(nodes(size)), (), sources, now, groups_of(jobs))


def fill(api: HttpApi, size: Size) -> None:
    """Stores the cluster in the API server."""
    for one in nodes(size):
        api.put(GPU_NODES, to_manifest(one))
        api.put(NODES, node_manifest(one.metadata.name))
    for number in range(size.jobs):
        change(api, number, size, 1)


def change(api: HttpApi, number: int, size: Size, step: int) -> None:
    """Writes the job as it is at this step."""
    api.put(JOBS, to_manifest(job(number, size, step)))
