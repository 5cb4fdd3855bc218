"""An agent's publisher on a clock that stands still, and an API server in memory."""

from dataclasses import replace

from gpujob_api.gpunode import GPU
from gpujob_api.manifest import gpunode_from_manifest
from gpujob_api.quantities import GIB
from gpujob_operator.agent.direct import DirectReadings
from gpujob_operator.agent.publish import Publisher, Readiness
from gpujob_operator.client.kube import GPU_NODES, NODES
from tests.harness.builders import make_gpu
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube

READY = Readiness(True, "Measuring", "all is well")
A_GPU = make_gpu(ours=[("pod-a", 2 * GIB)])


class PublisherBench:
    def __init__(
        self,
        interval_seconds: float = 2.0,
        direct: DirectReadings | None = None,
        node: str = "n0",
    ) -> None:
        self.kube = FakeKube()
        self.kube.put(NODES, {"metadata": {"name": node, "uid": f"node-{node}"}})
        self.clock = FakeClock()
        self.publisher = Publisher(
            self.kube,
            node,
            interval_seconds=interval_seconds,
            agent_version="1",
            clock=self.clock.now,
            monotonic=self.clock.monotonic,
            direct=direct,
        )

    async def publish(self, *gpus: GPU) -> bool:
        return await self.publisher.publish(gpus, "580", READY)

    @property
    def node(self):
        manifest = self.kube.stored(GPU_NODES, "n0")
        return gpunode_from_manifest({**manifest, "kind": "GPUNode"})


def with_more(gpu: GPU, amount: int) -> GPU:
    (process,) = gpu.processes
    return replace(
        gpu,
        memory_used_bytes=gpu.memory_used_bytes + amount,
        processes=(replace(process, memory_bytes=process.memory_bytes + amount),),
    )
