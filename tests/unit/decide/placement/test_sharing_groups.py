"""Jobs of different tenants share a GPU only where somebody configured it (I15)."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.groups import SharingGroups
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.packing.party import ANYBODY
from gpujob_operator.decide.planner import Planner
from tests.harness.builders import (
    make_gpu,
    make_gpu_node,
    make_job,
    make_queue,
    measured,
    with_status,
)
from tests.harness.world import World

pytestmark = pytest.mark.promise("I15")

APART = [make_queue("a"), make_queue("b")]
TOGETHER = [make_queue("a", sharing_group="lab"), make_queue("b", sharing_group="lab")]
REASON = "shared by jobs of another namespace and sharing group"


def job_of(name: str, queue: str, namespace: str, gib: int = 4) -> GPUJob:
    """A job that is known to need so much and little else."""
    job = make_job(name, queue=queue)
    job = replace(job, metadata=replace(job.metadata, namespace=namespace))
    return with_status(job, measurement=measured(gib * GIB, utilization_percent=5))


class Remembering(World):
    """Decides as the operator does: with what it keeps from cycle to cycle."""

    def __init__(self, *jobs: GPUJob, **snapshot: Any) -> None:
        super().__init__(*jobs, **snapshot)
        self.planner = Planner()

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        return self.planner(snapshot, now)


def world_of(*jobs: GPUJob, queues: list[GPUQueue], gpus: int = 1) -> World:
    """After one cycle."""
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    world = Remembering(*jobs, gpu_nodes=[node], queues=queues)
    world.step()
    return world


def placed(world: World) -> set[str]:
    return {job.metadata.name for job in world.snapshot.jobs if job.status.placement is not None}


@pytest.mark.parametrize(
    ("queues", "first", "second", "shared"),
    [
        pytest.param(APART, ("a", "red"), ("b", "blue"), False, id="neither"),
        pytest.param(APART, ("a", "red"), ("a", "blue"), True, id="one queue"),
        pytest.param(APART, ("a", "red"), ("b", "red"), True, id="one namespace"),
        pytest.param(TOGETHER, ("a", "red"), ("b", "blue"), True, id="one group"),
        pytest.param(TOGETHER, ("a", "red"), ("default", "blue"), False, id="not in the group"),
        pytest.param([], ("default", "red"), ("default", "blue"), True, id="no queues at all"),
    ],
)
def test_who_shares_with_whom(
    queues: list[GPUQueue], first: tuple[str, str], second: tuple[str, str], shared: bool
) -> None:
    world = world_of(job_of("one", *first), job_of("two", *second), queues=queues)
    assert placed(world) == ({"one", "two"} if shared else {"one"})
    if not shared:
        assert REASON in world.why("two")


def test_what_the_cycle_has_just_placed_counts() -> None:
    jobs = [job_of(f"j{n}", "ab"[n % 2], ("red", "blue")[n % 2], gib=2) for n in range(6)]
    world = world_of(*jobs, queues=APART, gpus=2)
    assert placed(world) == {job.metadata.name for job in jobs}
    red, blue = (
        {uuid for n in range(first, 6, 2) for uuid in world.gpus(f"j{n}")} for first in (0, 1)
    )
    assert red.isdisjoint(blue)


def test_tenants_that_have_nothing_in_common_are_joined_by_nobody() -> None:
    """They came together before the queues were told apart, and stay."""
    together = [job_of("one", "a", "red"), job_of("two", "b", "blue")]
    world = world_of(*together, queues=TOGETHER)
    assert placed(world) == {"one", "two"}
    world.snapshot = replace(world.snapshot, queues=tuple(APART))
    world.submit(job_of("three", "a", "blue"))
    world.tick()
    assert placed(world) == {"one", "two"}
    assert REASON in world.why("three")


@pytest.mark.parametrize("queues", [[], [make_queue()], [make_queue(sharing_group="x")]])
def test_where_there_is_one_group_jobs_are_not_told_apart(queues: list[GPUQueue]) -> None:
    """Thousands of jobs of hundreds of namespaces then need one answer."""
    groups = SharingGroups.of(queues)
    assert groups.party(job_of("one", "default", "red")) == ANYBODY


def test_a_group_has_not_the_name_of_a_queue() -> None:
    """Only queues that say so share: who takes a queue's name for a group does not join it."""
    groups = SharingGroups.of([make_queue("a"), make_queue("b", sharing_group="a")])
    one, other = (groups.party(job_of("j", queue, queue)) for queue in ("a", "b"))
    assert one.group != other.group
