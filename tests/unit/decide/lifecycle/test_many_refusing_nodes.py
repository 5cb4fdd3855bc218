"""A job that kube-scheduler takes on one node only reaches it soon, whichever nodes it prefers."""

from dataclasses import replace

from gpujob_api.gpujob import JobPhase
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from tests.harness.builders import make_gpu, make_gpu_node, make_job
from tests.harness.world import World

NODES = 40
# For each node: the refusal, the pause and a cycle.
NODE_SECONDS = 20.0


class OneNode(World):
    """kube-scheduler takes pods on the last node alone, which has what the others lack."""

    def _moved(self, pod: PodView) -> PodView:
        if pod.phase is not PodPhase.PENDING or pod.deletion_at is not None:
            return super()._moved(pod)
        if pod.gpus == (f"GPU-{NODES - 1:02}",):
            return super()._moved(pod)
        words = "0/40 nodes are available: 1 Insufficient rdma/hca"
        return replace(
            pod, node=None, reason="Unschedulable", message=words, scheduled_since=self.now
        )


def test_a_job_reaches_the_only_node_that_takes_it() -> None:
    names = [f"{number:02}" for number in range(NODES)]
    nodes = [make_gpu_node(f"n{name}", make_gpu(f"GPU-{name}")) for name in names]
    world = OneNode(make_job("a"), gpu_nodes=nodes)
    while world.phase("a") is not JobPhase.RUNNING and world.seconds < NODES * NODE_SECONDS:
        world.tick()
        # kube-scheduler's refusal ends the attempt, and the pause follows.
        world.tick(6.0)
        world.tick(10.0)
    assert world.phase("a") is JobPhase.RUNNING
