"""Resources of a template that only some nodes have, as network adapters and huge pages."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.model.pod_requests import OtherRequests, other_requests
from tests.harness.builders import after, make_gpu, make_gpu_node, make_job, make_node, with_status
from tests.harness.world import World

HCA = "rdma/hca"
REFUSED = f"0/3 nodes are available: 1 Insufficient {HCA}, 2 node(s) didn't match"


def asks(**resources: Any) -> dict[str, Any]:
    return {"name": "worker", "image": "image:1", "command": ["train"], "resources": resources}


def job_of(message: str = REFUSED, amount: str = "1") -> GPUJob:
    """A job that n0 refused."""
    job = make_job(template={"spec": {"containers": [asks(limits={HCA: amount})]}})
    refusal = StartRefusal(
        "Unschedulable", message, 1, after(60), "n0", (), job.metadata.generation
    )
    return with_status(job, start_refusals=(refusal,))


def world_of(job: GPUJob, **there: int) -> World:
    """Three nodes. `there` has the adapters of those that have any."""
    names = ("n0", "n1", "n2")
    gpus = [make_gpu_node(name, make_gpu(f"GPU-{name}")) for name in names]
    nodes = [make_node(n, others_allocatable={HCA: there[n]} if n in there else {}) for n in names]
    world = World(job, gpu_nodes=gpus, nodes=nodes)
    world.tick()
    return world


def test_after_a_refusal_only_nodes_that_have_enough_count() -> None:
    world = world_of(job_of(amount="2"), n1=1, n2=2)
    assert world.gpus("job") == {"GPU-n2"}


def test_the_reason_has_the_numbers_and_a_node_that_gets_the_resource_is_used() -> None:
    world = world_of(job_of(), n0=0)
    found = world.why("job")
    assert "3 insufficient rdma/hca (1 requested, 0 allocatable)" in found
    late = replace(world.snapshot.nodes[1], others_allocatable={HCA: 8})
    nodes = (world.snapshot.nodes[0], late, world.snapshot.nodes[2])
    world.snapshot = replace(world.snapshot, nodes=nodes)
    world.tick()
    assert world.gpus("job") == {"GPU-n1"}


@pytest.mark.parametrize(
    "message",
    ["1 Insufficient cpu", "1 Insufficient rdma/hca_shared", "1 Insufficient rdma/hca.io/x"],
)
def test_other_refusals_say_nothing_of_the_resource(message: str) -> None:
    """A node may offer it in ways that its status does not show."""
    assert world_of(job_of(message)).phase("job") is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            {"containers": [asks(limits={HCA: "1", "cpu": "1"}), asks(requests={HCA: 2})]},
            ((HCA, 3),),
        ),
        ({"containers": [asks(limits={HCA: 1}, requests={HCA: 1})]}, ((HCA, 1),)),
        (
            {
                "containers": [asks(requests={HCA: 1})],
                "initContainers": [
                    {**asks(requests={HCA: 1}), "restartPolicy": "Always"},
                    asks(requests={HCA: 5, "hugepages-2Mi": "4Mi"}),
                ],
            },
            (("hugepages-2Mi", 4 * 1024**2), (HCA, 5)),
        ),
        ({"containers": [asks(limits=7), 3, {}], "initContainers": "x"}, ()),
        ({"containers": [asks(limits={HCA: "x"})]}, ()),
        ({}, ()),
    ],
)
def test_what_a_pod_requests(spec: dict[str, Any], expected: OtherRequests) -> None:
    assert other_requests(spec) == expected
