"""A new leader takes readings long before it has listed ten thousand jobs."""

import asyncio
from typing import Any

from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.quantities import GIB
from gpujob_operator.client.kube import GPU_NODES, JOBS, NODES, Listing, ResourceType
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.observe.cache import Cache
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.watch.relist import Relist
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.manifests import gpu_node_manifest, node_manifest
from tests.harness.waiting import eventually

USED = make_gpu(ours=[("pod-a", 2 * GIB)])


class _ManyJobs(FakeKube):
    """The list of jobs waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.waits = False

    async def list(self, kind: ResourceType, *arguments: Any, **options: Any) -> Listing:
        if kind is JOBS:
            self.waits = True
            await self.go_on.wait()
        return await super().list(kind, *arguments, **options)


async def test_agents_are_let_in_while_jobs_are_still_listed() -> None:
    """Those that are turned away try again each second, and take the time that the lists need."""
    kube, clock = _ManyJobs(), FakeClock()
    cache = Cache(Dirty(), Metrics(), clock.now)
    kube.put(NODES, node_manifest("n0"))
    kube.put(GPU_NODES, gpu_node_manifest("n0"))
    knows_node: list[bool] = []
    relist = Relist(
        *(kube, cache),
        silent=lambda kind: None,
        listed=lambda: knows_node.append(cache.has_listed_nodes() and cache.has_node("n0")),
    )
    refresh = asyncio.create_task(relist.refresh())
    await eventually(lambda: kube.waits)
    assert knows_node[0], "agents that wait are looked at before jobs are listed"
    assert cache.has_node("n0")
    status = GPUNodeStatus(observed_at=clock.now(), gpus=(USED,))
    assert cache.take_reading("n0", status, clock.now())
    assert not cache.ready
    kube.go_on.set()
    await refresh
    assert cache.ready
    (node,) = cache.snapshot((), Configuration()).gpu_nodes
    assert node.status.gpus == (USED,), "what came directly stays"
