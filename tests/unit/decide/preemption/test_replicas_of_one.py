"""A new replica does not stop the one that it is to replace."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuservice import GPUService, ServiceOptimize
from gpujob_api.serving import BackendName
from gpujob_operator.decide.model.service_plan import CreateJob, Role
from gpujob_operator.decide.services.revision import revision_of, settings_of
from tests.harness.builders import after, make_pod, make_queue, running
from tests.harness.services import make_service, read_job
from tests.harness.world import World

EAGER = ServiceOptimize(backend=BackendName.EAGER)


def replica(service: GPUService, name: str, at: float = 0.0) -> GPUJob:
    settings = settings_of(service)
    revision = revision_of(service, settings)
    create = CreateJob(service, name, Role.REPLICA, revision, settings)
    return read_job(create, f"uid-{name}", after(at))


@pytest.mark.parametrize(
    ("own", "stopped"), [(True, False), (False, True)], ids=["its predecessor", "another service"]
)
def test_an_edit_of_the_priority_stops_no_replica_of_the_service(own: bool, stopped: bool) -> None:
    before = make_service(optimize=EAGER)
    if not own:
        before = replace(before, metadata=replace(before.metadata, name="other", uid="other"))
    old = running(replica(before, "old-aaaaaa-0"))
    new = replica(make_service("answers", optimize=EAGER, priority=10), "new-bbbbbb-0", 10.0)
    world = World(old, new, pods=[make_pod(old, ready=True)], queues=[make_queue()])
    for _ in range(20):
        world.tick(30)
    assert (world.phase("old-aaaaaa-0") is not JobPhase.RUNNING) is stopped


def test_a_move_to_another_queue_stops_no_replica_of_the_service() -> None:
    old = running(replica(make_service(optimize=EAGER, queue="a"), "old-aaaaaa-0"), queue="a")
    new = replica(make_service(optimize=EAGER, queue="b"), "new-bbbbbb-0", 10.0)
    queues = [
        make_queue("org", gpus=1),
        make_queue("a", parent="org", gpus=0),
        make_queue("b", parent="org", gpus=1),
    ]
    world = World(old, new, pods=[make_pod(old, ready=True)], queues=queues)
    for _ in range(20):
        world.tick(30)
    assert world.phase("old-aaaaaa-0") is JobPhase.RUNNING
