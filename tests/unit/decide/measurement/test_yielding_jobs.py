"""What a yield does to a job: its conditions, its move, and what is learned of it meanwhile."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob, ReservationSource, SharingMode
from gpujob_api.gpuprofile import ProfileEntry
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.report import YIELD_PERCENT_MAX, Timing
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.profile import with_entries
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import SaveProfile, WriteStatus
from gpujob_operator.decide.model.snapshot import Yielding
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_report,
    measured,
    received,
    reserve,
    running,
    used,
    with_status,
)
from tests.harness.world import World

CONFIGURATION = Configuration()


def training(claim: str | None = "ckpt", max_slowdown_percent: int = 10) -> GPUJob:
    job = make_job("train", claim=claim, max_slowdown_percent=max_slowdown_percent)
    job = running(job, held=reserve(5 * GIB, utilization_percent=60.0))
    return with_status(job, measurement=measured(4 * GIB, step=100, utilization_percent=60.0))


def replica() -> GPUJob:
    job = make_job("digits-0", claim=None, optimize=Optimize(task=Task.SERVING))
    return running(job, held=reserve(2 * GIB))


def yielding(percent: int, at: float = 0.0) -> Yielding:
    return Yielding("uid-train", percent, f"{NAMESPACE}/digits-0", after(at))


def beside(*jobs: GPUJob, gpus: int = 2) -> World:
    """These jobs on one GPU; there may be another one."""
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    pods = [pod for job in jobs for pod in make_pods(job)]
    return World(*jobs, pods=pods, gpu_nodes=[node])


def yields(world: World, percent: int) -> None:
    asked = (yielding(percent, world.seconds),) if percent else ()
    world.snapshot = replace(world.snapshot, yields=asked)


def condition(world: World, kind: str) -> Condition | None:
    return conditions.find(world.status("train"), kind)


def is_true(world: World, kind: str) -> bool:
    found = condition(world, kind)
    return found is not None and found.status is ConditionStatus.TRUE


def test_a_job_that_yields_says_for_whom_and_how_much() -> None:
    world = beside(training(), replica())
    world.tick()
    assert condition(world, conditions.YIELDING) is None
    yields(world, 10)
    world.tick()
    found = condition(world, conditions.YIELDING)
    assert found is not None
    assert found.message == (
        "leaves its GPU idle for 10 % of the time, because requests of team/digits-0 need more "
        "than 90 % of their objective; a step takes 11 % longer"
    )
    assert not is_true(world, conditions.SLOWED), "a step takes 11 % longer: within the limit"
    yields(world, 0)
    world.tick()
    found = condition(world, conditions.YIELDING)
    assert found is not None
    assert (found.status, found.reason) == (ConditionStatus.FALSE, "Ended")


def test_the_event_comes_once() -> None:
    world = beside(training(), replica())
    world.tick()
    events: list[str] = []
    for percent in (10, 20, 0, 10):
        yields(world, percent)
        world.seconds += CONFIGURATION.progress_write_seconds + 1
        items = plan(world.snapshot, world.now).items
        written = [one for one in items if isinstance(one, WriteStatus)]
        events += [event.reason for one in written for event in one.events]
        world.tick(0)
    assert events.count("YieldsToService") == 1


@pytest.mark.parametrize(
    ("percent", "limit", "slowed"),
    [(10, 10, False), (20, 10, True), (30, 40, False), (40, 40, True), (YIELD_PERCENT_MAX, 100, 1)],
)
def test_time_that_is_yielded_counts_as_a_slowdown(percent: int, limit: int, slowed: bool) -> None:
    """At the bound the service needs another neighbour, whatever this one allows."""
    world = beside(training(max_slowdown_percent=limit), replica())
    yields(world, percent)
    world.tick()
    assert is_true(world, conditions.SLOWED) is bool(slowed)
    assert not slowed or "sharing.maxSlowdownPercent is" in condition_message(world)


def condition_message(world: World) -> str:
    found = condition(world, conditions.SLOWED)
    return found.message if found is not None else ""


def test_the_training_moves_and_the_replica_stays() -> None:
    world = beside(training(), replica())
    yields(world, YIELD_PERCENT_MAX)
    world.tick()
    world.tick(CONFIGURATION.slowed_seconds - 2)
    assert world.gpus("train") == world.gpus("digits-0") == {"GPU-0"}
    world.tick(5)
    assert (world.gpus("train"), world.gpus("digits-0")) == ({"GPU-1"}, {"GPU-0"})
    assert (world.status("train").attempt, world.status("digits-0").attempt) == (2, 1)
    yields(world, 0)
    world.tick(60)
    assert not is_true(world, conditions.SLOWED)
    assert not is_true(world, conditions.YIELDING)


@pytest.mark.parametrize(("claim", "gpus"), [("ckpt", 1), (None, 2)])
def test_without_a_checkpoint_or_a_place_it_stays_at_the_bound(
    claim: str | None, gpus: int
) -> None:
    world = beside(training(claim), replica(), gpus=gpus)
    yields(world, YIELD_PERCENT_MAX)
    for _ in range(5):
        world.tick(CONFIGURATION.slowed_seconds)
    assert world.running() == {"train", "digits-0"}
    assert [world.status(name).attempt for name in ("train", "digits-0")] == [1, 1]
    assert "50 % of the time, the most that it yields" in condition_message(world)


def test_a_training_in_another_namespace_reads_no_name() -> None:
    world = beside(training(), replica())
    world.snapshot = replace(
        world.snapshot, yields=(replace(yielding(10), replica="a job of another namespace"),)
    )
    world.tick()
    found = condition(world, conditions.YIELDING)
    assert found is not None
    assert "digits" not in found.message


@pytest.mark.parametrize(("percent", "busy_percent"), [(YIELD_PERCENT_MAX, 60.0), (0, 30.0)])
def test_the_time_of_a_service_is_given_to_nobody_else(percent: int, busy_percent: float) -> None:
    """The agent sees a GPU that is idle half of the time."""
    expected = reserve(5 * GIB, ReservationSource.PROFILE, utilization_percent=60.0)
    world = beside(with_status(training(), reservation=expected), replica())
    yields(world, percent)
    report = received(world.job("train"), make_report(step=200, yielded_seconds=9.0))
    seen = used(4 * GIB, utilization_percent=30.0, samples=200, may_fall=True)
    usage = {("uid-train", 1): seen}
    world.snapshot = replace(world.snapshot, reports=(report,), usage=usage)
    world.tick()
    held, known = world.status("train").reservation, world.status("train").measurement
    assert held is not None
    assert known is not None
    assert held.source is ReservationSource.MEASURED
    assert (held.utilization_percent, known.utilization_percent) == (busy_percent, busy_percent)


@pytest.mark.parametrize(("percent", "learns"), [(0, True), (10, False)])
def test_the_law_learns_nothing_from_a_training_that_yields(percent: int, learns: bool) -> None:
    job = training()
    entry = ProfileEntry(
        gpu_model=MODEL,
        torch_version="",
        memory_bytes=4 * GIB,
        utilization_percent=60.0,
        samples=10,
        updated_at=T0,
        current=Timing(0.1, 4 * GIB),
        alone_step_seconds=0.05,
    )
    world = beside(job, replica())
    world.snapshot = replace(world.snapshot, profiles=(with_entries(job, None, (entry,)),))
    yields(world, percent)
    items = plan(world.snapshot, world.now).items
    paces = [one.profile.status.entries[0].shared for one in items if isinstance(one, SaveProfile)]
    assert any(paces) is learns


def test_a_settled_job_is_decided_about_again_when_its_share_changes() -> None:
    world = beside(training(), replica())
    planner = Planner()
    world.tick()
    for percent in (0, 10, 20, 0):
        yields(world, percent)
        world.seconds += CONFIGURATION.progress_write_seconds + 1
        fresh, kept = (one(world.snapshot, world.now) for one in (plan, planner))
        assert kept.items == fresh.items
        world.tick(0)
        # The planner sees what was written.
        planner(world.snapshot, world.now)
        assert is_true(world, conditions.YIELDING) is bool(percent)


def test_a_job_with_gpus_of_its_own_never_meets_a_service() -> None:
    exclusive = make_job("train", sharing=SharingMode.EXCLUSIVE)
    world = beside(replica())
    world.submit(exclusive)
    world.tick()
    assert world.gpus("train") == {"GPU-1"}
