"""A job that fits on no node: impossible, or in need of a node that an autoscaler may add."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import JobPhase
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration, NodeAutoscaler
from gpujob_operator.decide.model.plan import CreatePod
from gpujob_operator.decide.planner import plan
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_node
from tests.harness.world import World

KARPENTER = {"karpenter.sh/nodepool": "gpus"}
AUTO, PRESENT, ABSENT = NodeAutoscaler


def world(labels: dict[str, str], autoscaler: NodeAutoscaler = AUTO) -> World:
    configuration = Configuration(node_autoscaler=autoscaler)
    nodes = [make_node("n0", labels=labels)]
    found = World(
        make_job("large", memory_bytes=40 * GIB), nodes=nodes, configuration=configuration
    )
    found.tick()
    return found


@pytest.mark.parametrize(
    ("labels", "autoscaler", "reason"),
    [
        ({}, AUTO, "Unsatisfiable"),
        (KARPENTER, AUTO, "NeedsNewNode"),
        ({"karpenter.sh/provisioner-name": "old"}, AUTO, "NeedsNewNode"),
        ({}, PRESENT, "NeedsNewNode"),
        (KARPENTER, ABSENT, "Unsatisfiable"),
    ],
)
def test_the_reason_says_whether_a_new_node_may_come(
    labels: dict[str, str], autoscaler: NodeAutoscaler, reason: str
) -> None:
    """I4: either way the job is pending, and the numbers say what is missing."""
    found = world(labels, autoscaler)
    said = found.why("large")
    assert said.startswith(f"{reason}: ")
    assert ("only a new node could hold the job" in said) == (reason == "NeedsNewNode")
    assert "position" not in said, "no turn helps"
    assert "40 GiB" in said
    assert "24 GiB" in said
    assert found.phase("large") is JobPhase.PENDING


def test_the_job_starts_on_the_node_that_comes() -> None:
    found = world(KARPENTER)
    gpu = make_gpu("GPU-large", total=80 * GIB, model="NVIDIA H100")
    found.snapshot = replace(
        found.snapshot,
        gpu_nodes=(*found.snapshot.gpu_nodes, make_gpu_node("n1", gpu)),
        nodes=(*found.snapshot.nodes, make_node("n1")),
    )
    found.tick()
    assert found.gpus("large") == {"GPU-large"}


def test_pods_are_created_with_the_label_of_their_node() -> None:
    labels = {"kubernetes.io/hostname": "host-7"}
    start = World(make_job(), nodes=[make_node("n0", labels=labels)])
    start.step()
    (create,) = [
        item for item in plan(start.snapshot, start.now).items if isinstance(item, CreatePod)
    ]
    assert create.hostname == "host-7"
