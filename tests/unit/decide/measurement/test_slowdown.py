"""The running pair's own measurement, and who moves."""

from dataclasses import replace
from datetime import datetime

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport, Timing
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.profile import with_entries
from gpujob_operator.decide.measurement.slowdown import SLACK_PERCENT, Slowdown, measured_slowdown
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_snapshot,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.capacity import build_capacity
from tests.harness.world import World

CONFIGURATION = Configuration()
ALONE_SECONDS = 0.1


def profile_of(job: GPUJob, step_seconds: float = ALONE_SECONDS, at: datetime = T0) -> GPUProfile:
    """What the workload was measured at, alone."""
    entry = ProfileEntry(
        gpu_model=MODEL,
        torch_version="",
        memory_bytes=4 * GIB,
        utilization_percent=20.0,
        samples=10,
        updated_at=at,
        current=Timing(step_seconds, 4 * GIB),
    )
    return with_entries(job, None, (entry,))


def beside(
    name: str, step_seconds: float, claim: str | None = "ckpt", namespace: str = NAMESPACE
) -> GPUJob:
    """A job that runs on GPU-0 at this pace."""
    known = replace(measured(4 * GIB, step=100), current=Timing(step_seconds, 4 * GIB))
    job = running(make_job(name, claim=claim, namespace=namespace), held=reserve(5 * GIB))
    return with_status(job, measurement=known, checkpoint=CheckpointReport(99, 0, 1.0))


def slowdown_of(job: GPUJob, *neighbours: GPUJob) -> Slowdown | None:
    capacity = build_capacity(make_snapshot(job, *neighbours), T0, {})
    return measured_slowdown(job, job.status, profile_of(job), capacity.gpus_of(job.status))


def test_the_slowdown_is_against_the_fastest_measured_alone() -> None:
    found = slowdown_of(beside("a", 0.13), beside("b", 0.1))
    assert found is not None
    assert found.percent == pytest.approx(30)
    assert found.message == (
        "a step takes 30 % longer than alone (0.13 s against 0.1 s); "
        "sharing.maxSlowdownPercent is 10"
    )


def test_a_server_whose_batches_became_larger_is_not_slowed() -> None:
    """On a shared GPU it waits for larger batches, which take longer."""
    job = beside("a", 0.3)
    known = job.status.measurement
    assert known is not None
    assert slowdown_of(job, beside("b", 0.1)) is not None
    server = with_status(job, measurement=replace(known, task=Task.SERVING))
    assert slowdown_of(server, beside("b", 0.1)) is None


def test_alone_on_its_gpu_nobody_slows_it() -> None:
    assert slowdown_of(beside("a", 0.2)) is None


def test_steps_under_other_settings_are_not_compared() -> None:
    job = beside("a", 0.2)
    known = job.status.measurement
    assert known is not None
    other = with_status(job, measurement=replace(known, torch_version="2.8"))
    assert slowdown_of(other, beside("b", 0.1)) is None
    assert slowdown_of(with_status(job, measurement=None), beside("b", 0.1)) is None


@pytest.mark.parametrize(("percent", "too_much"), [(10 + SLACK_PERCENT - 1, False), (16, True)])
def test_steps_vary_by_themselves(percent: float, too_much: bool) -> None:
    found = slowdown_of(beside("a", ALONE_SECONDS * (1 + percent / 100)), beside("b", 0.1))
    assert found is not None
    assert found.too_much is too_much


def pair(
    gpus: int = 2,
    *,
    slow: str | None = "ckpt",
    loud: str | None = "ckpt",
    namespace: str = NAMESPACE,
) -> World:
    """`slow` is slowed by `loud` on GPU-0, with these claims; there may be another GPU. `loud` is
    of this namespace.
    """
    jobs = [beside("slow", 0.15, slow), beside("loud", 0.1, loud, namespace)]
    node = make_gpu_node("n0", *(make_gpu(f"GPU-{n}", index=n) for n in range(gpus)))
    return World(
        *jobs,
        pods=[pod for job in jobs for pod in make_pods(job)],
        gpu_nodes=[node],
        profiles=[profile_of(jobs[0])],
    )


@pytest.mark.parametrize(("slow", "loud", "moves"), [("c", None, "slow"), (None, "c", "loud")])
def test_the_one_that_loses_nothing_moves(slow: str | None, loud: str | None, moves: str) -> None:
    world = pair(slow=slow, loud=loud)
    world.tick()
    world.tick(CONFIGURATION.slowed_seconds + 3)
    world.tick(60)
    assert [name for name in ("slow", "loud") if world.status(name).attempt == 2] == [moves]


def test_no_run_starts_from_the_beginning_because_it_is_slow() -> None:
    world = pair(slow=None, loud=None)
    world.tick()
    for _ in range(10):
        world.tick(CONFIGURATION.slowed_seconds)
    assert [world.status(name).attempt for name in ("slow", "loud")] == [1, 1]


@pytest.mark.parametrize(
    ("namespace", "text"),
    [
        (NAMESPACE, f"because {NAMESPACE}/slow is slowed: a step takes 50 % longer"),
        ("rival", "because a job of another namespace is slowed"),
    ],
)
def test_who_moves_reads_of_its_own_namespace_only_whom_it_slows(namespace: str, text: str) -> None:
    world = pair(slow=None, namespace=namespace)
    world.tick()
    world.seconds += CONFIGURATION.slowed_seconds + 1
    world.stubborn = {"loud"}
    world.tick()
    stop = world.status("loud").stop
    assert stop is not None
    assert text in stop.message
    assert ("slow is" in stop.message or "0.15 s" in stop.message) is (namespace == NAMESPACE)


def test_one_of_a_pair_moves_and_they_do_not_meet_again() -> None:
    world = pair()
    world.tick()
    found = conditions.find(world.status("slow"), conditions.SLOWED)
    assert found is not None
    assert "50 % longer than alone" in found.message
    world.tick(CONFIGURATION.slowed_seconds - 2)
    assert world.gpus("slow") == world.gpus("loud")
    world.tick(5)
    assert world.running() == {"slow", "loud"}
    assert world.gpus("slow") != world.gpus("loud")
    moved = [world.job(name) for name in ("slow", "loud") if world.status(name).attempt == 2]
    assert [job.status.counters.preemptions for job in moved] == [1]
    # Alone now, it is as fast as before; and it counts with more than the law would allow.
    floor = moved[0].status.utilization_floor_percent
    other = 20.0
    assert floor + other > 70
    slow = world.status("slow").measurement
    assert slow is not None
    world.change("slow", measurement=replace(slow, current=Timing(0.1, 4 * GIB)))
    world.tick(60)
    found = conditions.find(world.status("slow"), conditions.SLOWED)
    assert found is not None
    assert found.status.value == "False"


def test_nobody_moves_without_another_place() -> None:
    world = pair(gpus=1)
    world.tick()
    world.tick(1000)
    assert world.running() == {"slow", "loud"}
    assert [world.status(name).attempt for name in ("slow", "loud")] == [1, 1]


def test_who_has_made_room_often_enough_stays() -> None:
    world = pair()
    for name in ("slow", "loud"):
        counters = replace(world.status(name).counters, preemptions=CONFIGURATION.preemptions_max)
        world.change(name, counters=counters)
    world.tick()
    world.tick(1000)
    assert world.phase("slow") is JobPhase.RUNNING
    assert world.gpus("slow") == world.gpus("loud")
