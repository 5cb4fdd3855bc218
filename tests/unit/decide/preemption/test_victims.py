"""Who makes room for whom: preemption, borrowed quota, moving closer together; and that it ends."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport
from gpujob_operator.decide.capacity.usage import CLOCKS_DIFFER_SECONDS
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import GonePod
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_pods,
    make_queue,
    measured,
    placed,
    reserve,
    running,
    with_status,
)
from tests.harness.world import World

CONFIGURATION = Configuration()


def nodes(*sizes: int) -> list[Any]:
    """Nodes n0, n1 ... with so many GPUs each: GPU-0a, GPU-0b ..."""
    return [
        make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}{'abcd'[k]}", index=k) for k in range(count)))
        for n, count in enumerate(sizes)
    ]


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)


def small(name: str, gigabytes: int = 4, **fields: Any) -> GPUJob:
    """A job known to need so much, so that it shares."""
    known = measured(gigabytes * GIB, utilization_percent=10.0)
    return with_status(make_job(name, **fields), measurement=known)


def saved(world: World, name: str, step: int, checkpoint_step: int) -> None:
    world.change(
        name,
        measurement=measured(4 * GIB, step),
        checkpoint=CheckpointReport(checkpoint_step, write_seconds=1.0),
    )


# -- priority


def test_a_higher_priority_interrupts_a_lower_one_and_comes_first() -> None:
    world = World(whole("low"), gpu_nodes=nodes(1))
    world.tick()
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert (world.phase("high"), world.phase("low")) == (JobPhase.RUNNING, JobPhase.PENDING)
    counters = world.status("low").counters
    assert (counters.preemptions, counters.interruptions, counters.errors) == (1, 1, 0)
    world.end("high")
    world.tick(20)
    assert world.running() == {"low"}


def test_equal_priority_interrupts_nobody() -> None:
    world = World(whole("first"), gpu_nodes=nodes(1))
    world.tick()
    world.submit(whole("second", created=1))
    world.tick(1000)
    assert world.running() == {"first"}
    assert world.why("second").startswith("InsufficientCapacity")


def test_while_the_others_grace_lasts_it_says_for_whom_it_waits() -> None:
    world = World(whole("low"), gpu_nodes=nodes(1))
    world.tick()
    world.stubborn = {"low"}
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert world.phase("low") is JobPhase.STOPPING
    stop = world.status("low").stop
    assert stop is not None
    assert stop.reason == "Preempted"
    assert "stopped for team/high (priority 5 over 0)" in stop.message
    assert (stop.deadline - world.now).total_seconds() == CONFIGURATION.termination_grace_seconds
    assert world.why("high").startswith("Preempting: waiting for team/low to stop (preempted ")
    # Nobody slips in between.
    world.submit(small("thief", created=2))
    world.stubborn = set()
    world.tick()
    assert "high" in world.running()
    assert "thief" not in world.running()


def test_who_loses_the_least_is_interrupted() -> None:
    world = World(whole("saved"), whole("unsaved", created=1), gpu_nodes=nodes(1, 1))
    world.tick()
    saved(world, "saved", step=100, checkpoint_step=99)
    world.seconds += 1000
    world.submit(whole("high", priority=1, created=1001))
    world.tick()
    assert world.running() == {"high", "unsaved"}


def test_the_cost_is_what_is_lost_and_the_restart_times_gpus() -> None:
    job = running(whole("a", gpus_per_worker=2), ("n0", ("GPU-0a", "GPU-0b")))
    assert interruption_gpu_seconds(job, CONFIGURATION, after(100)) == 2 * (100 + 30)
    quick = with_status(
        job, measurement=measured(GIB, step=50), checkpoint=CheckpointReport(40, 0, 0.5)
    )
    # 10 steps of 0.1 s are not saved; writing takes half a second of the grace.
    assert interruption_gpu_seconds(quick, CONFIGURATION, after(100)) == 2 * (0.5 + 30)
    slow = with_status(quick, checkpoint=CheckpointReport(40, 0, 31.0))
    assert interruption_gpu_seconds(slow, CONFIGURATION, after(100)) == 2 * (1.0 + 30)


def test_no_more_are_interrupted_than_needed() -> None:
    world = World(*(small(f"j{n}", 5) for n in range(4)), gpu_nodes=nodes(1))
    world.tick()
    assert len(world.running()) == 4
    world.submit(small("high", 5, priority=1, created=1))
    world.tick()
    assert "high" in world.running()
    assert len(world.running()) == 4


def test_a_gang_gets_all_its_gpus_or_interrupts_nobody() -> None:
    jobs = [whole(f"j{n}") for n in range(3)]
    world = World(*jobs, gpu_nodes=nodes(2, 1))
    world.tick()
    world.submit(whole("too-large", workers=4, priority=9, created=1))
    world.tick(100)
    assert world.running() == {"j0", "j1", "j2"}
    world.submit(whole("gang", workers=2, priority=9, created=2))
    world.tick()
    assert "gang" in world.running()
    assert len(world.running()) == 2


def test_cpu_is_freed_although_another_gpu_is_free() -> None:
    """The free GPU costs nothing, but its node has no CPU left for the job's worker."""
    low = [
        running(
            make_job(f"low{n}", sharing=SharingMode.EXCLUSIVE, created=n),
            ("n0", (f"GPU-{n}",)),
            at=float(n),
        )
        for n in range(2)
    ]
    world = World(
        *low,
        pods=tuple(make_pod(job) for job in low),
        gpus=[make_gpu(f"GPU-{n}", index=n) for n in range(3)],
        nodes=[make_node(cpu=2, cpu_milli_free=0)],
    )
    world.submit(whole("high", priority=5, created=9))
    world.step()
    assert world.why("high").startswith("Preempting")
    stopping = [name for name in ("low0", "low1") if world.phase(name) is JobPhase.STOPPING]
    assert len(stopping) == 1


@pytest.mark.promise("I11")
def test_a_job_is_interrupted_only_so_often() -> None:
    world = World(whole("low"), gpu_nodes=nodes(1))
    world.tick()
    for number in range(CONFIGURATION.preemptions_max + 2):
        world.submit(whole(f"high{number}", priority=5, created=world.seconds))
        world.tick(60)
        if world.phase(f"high{number}") is JobPhase.RUNNING:
            world.end(f"high{number}")
        world.tick(60)
    assert world.status("low").counters.preemptions == CONFIGURATION.preemptions_max
    assert world.running() == {"low"}


def _lender_and_borrower(preemptions: int, **configuration: int) -> World:
    """Queue b runs on what queue a lends, and was stopped so often before."""
    queues = (make_queue("a", gpus=1), make_queue("b", gpus=0, borrow=1))
    world = World(
        whole("lent", queue="b"),
        queues=queues,
        gpu_nodes=nodes(1),
        configuration=replace(CONFIGURATION, **configuration),
    )
    world.tick()
    counters = replace(world.status("lent").counters, preemptions=preemptions)
    world.change("lent", counters=counters)
    world.submit(whole("owner", queue="a", created=1))
    world.tick()
    return world


@pytest.mark.promise("I11")
def test_what_is_borrowed_is_given_back_however_often() -> None:
    often = CONFIGURATION.preemptions_max + 2
    assert _lender_and_borrower(preemptions=often).running() == {"owner"}
    assert _lender_and_borrower(preemptions=0, preemptions_max=0).running() == {"lent"}


@pytest.mark.promise("I11")
def test_a_borrower_that_was_rarely_stopped_gives_back_before_one_that_was_often() -> None:
    """The other one would lose less."""
    queues = (make_queue("a", gpus=1), make_queue("b", gpus=1, borrow=1))
    world = World(
        *(whole(name, queue="b") for name in ("often", "rarely")), queues=queues, gpu_nodes=nodes(2)
    )
    world.tick()
    preemptions = CONFIGURATION.preemptions_max
    often = replace(world.status("often").counters, preemptions=preemptions)
    world.change("often", counters=often)
    world.tick(100)
    world.change("often", attempt_started_at=world.now)
    world.submit(whole("owner", queue="a", created=1))
    world.tick()
    assert world.running() == {"owner", "often"}


def test_nobody_is_interrupted_for_room_that_comes_by_itself() -> None:
    world = World(whole("low"), gpu_nodes=nodes(1))
    world.tick()
    soon = measured(4 * GIB, step=100)
    world.change("low", measurement=soon, observed_at=world.now)
    world.snapshot = _with_steps(world, "low", 350)
    world.submit(whole("high", priority=5, created=1))
    world.tick()
    assert world.running() == {"low"}
    world.snapshot = _with_steps(world, "low", 500)
    world.tick(60)
    assert world.running() == {"high"}


@pytest.mark.parametrize("steps_ahead", [1, 200])
def test_a_job_that_is_always_about_to_end_is_interrupted_in_the_end(steps_ahead: int) -> None:
    """Some scripts know no more steps than those of the present epoch."""
    world = World(whole("low"), gpu_nodes=nodes(1))
    world.tick()
    world.submit(whole("high", priority=5))
    for second in range(20, 400, 20):
        step = 100 * second
        world.change("low", measurement=measured(4 * GIB, step=step), observed_at=world.now)
        world.snapshot = _with_steps(world, "low", step + steps_ahead)
        assert world.running() == {"low"} or second > 300
        world.tick(20)
    assert world.running() == {"high"}


def _with_steps(world: World, name: str, total: int) -> Any:
    measurement = world.status(name).measurement
    assert measurement is not None
    world.change(name, measurement=replace(measurement, steps_total=total))
    return world.snapshot


# -- quota


def queue(name: str, gpus: int | None, borrow: int | None = None, parent: str = "") -> GPUQueue:
    fields: dict[str, Any] = {} if gpus is None else {"gpus": gpus}
    return make_queue(name, borrow=borrow, parent=parent, **fields)


@pytest.mark.promise("I11")
def test_what_was_lent_is_given_back() -> None:
    """Whoever is within its quota gets its GPUs back, from those who borrowed."""
    queues = [queue("a", 2, borrow=2), queue("b", 2)]
    world = World(
        *(whole(f"a{n}", queue="a") for n in range(4)), gpu_nodes=nodes(2, 2), queues=queues
    )
    world.tick()
    assert world.running() == {"a0", "a1", "a2", "a3"}
    world.submit(*(whole(f"b{n}", queue="b", created=10 + n) for n in range(3)))
    world.tick(20)
    assert sum(name.startswith("b") for name in world.running()) == 2
    assert sum(name.startswith("a") for name in world.running()) == 2
    # It stays so: what was given back is not taken again, by neither side.
    attempts = {job.metadata.name: job.status.attempt for job in world.snapshot.jobs}
    world.tick(1000)
    assert {job.metadata.name: job.status.attempt for job in world.snapshot.jobs} == attempts
    assert "OverQuota" in world.why("b2")


def test_a_borrower_of_high_priority_gives_back_too_and_does_not_take_it_again() -> None:
    queues = [queue("a", 0, borrow=2), queue("b", 1)]
    world = World(whole("a", queue="a", priority=9), gpu_nodes=nodes(1), queues=queues)
    world.tick()
    assert world.running() == {"a"}
    world.submit(whole("b", queue="b", created=1))
    world.tick()
    world.tick(100)
    assert world.running() == {"b"}
    assert world.status("a").counters.preemptions == 1


def test_children_share_their_parents_quota() -> None:
    queues = [queue("team", 2), queue("x", 1, parent="team"), queue("y", 1, parent="team")]
    world = World(
        *(whole(f"x{n}", queue="x") for n in range(3)), gpu_nodes=nodes(2, 2), queues=queues
    )
    world.tick()
    # One is x's own, one is borrowed from y; the third would be beyond the team's quota.
    assert len(world.running()) == 2
    assert "queue team uses 2 of 2 GPUs, needs 1 more" in world.why("x2")
    world.submit(whole("y0", queue="y", created=5))
    world.tick(10)
    assert "y0" in world.running()
    assert len(world.running()) == 2
    interrupted = next(name for name in ("x0", "x1") if name not in world.running())
    assert world.status(interrupted).counters.preemptions == 1


def test_in_a_full_queue_priority_interrupts_within_the_queue_only() -> None:
    queues = [queue("a", 1), queue("b", None)]
    world = World(
        whole("a-low", queue="a"), whole("b-low", queue="b"), gpu_nodes=nodes(2), queues=queues
    )
    world.tick()
    world.submit(whole("a-high", queue="a", priority=3, created=1))
    world.tick()
    assert world.running() == {"a-high", "b-low"}


# -- moving closer together


def test_for_quota_alone_nobody_is_interrupted_when_there_are_no_gpus() -> None:
    """Two GPUs are another queue's for good; "wide" could never start on what "low" gives up."""
    world = World(whole("low", queue="a"), gpu_nodes=nodes(2, 1), queues=[make_queue("a", gpus=2)])
    world.submit(whole("other", gpus_per_worker=2, priority=9))
    world.tick()
    assert world.running() == {"low", "other"}
    world.submit(whole("wide", queue="a", gpus_per_worker=2, priority=5, created=1))
    world.tick(70)
    assert world.running() == {"low", "other"}
    assert world.why("wide").startswith("OverQuota")


def test_who_goes_for_quota_goes_from_gpus_that_the_job_can_use() -> None:
    """Both would free the quota; only "far" is on the model that the job needs."""
    gpus = [
        make_gpu_node("n0", make_gpu("GPU-0a", model="A100")),
        make_gpu_node("n1", make_gpu("GPU-1a", model="H100")),
    ]
    jobs = (whole("cheap", models=("A100",)), whole("far", models=("H100",)))
    world = World(*jobs, gpu_nodes=gpus, queues=[make_queue("default", gpus=2)])
    world.tick(100)
    saved(world, "cheap", 10, 10)
    world.submit(whole("urgent", models=("H100",), priority=5, created=1))
    world.tick()
    assert world.running() == {"cheap", "urgent"}


def test_jobs_move_closer_together_for_a_large_one_that_waits() -> None:
    world = _apart()
    world.submit(whole("large", created=2))
    world.tick(CONFIGURATION.consolidate_after_seconds - 10)
    assert world.running() == {"left", "right"}
    world.tick(100)
    assert world.running() == {"left", "right", "large"}
    assert world.gpus("left") == world.gpus("right")
    moved = world.status("left").counters.preemptions + world.status("right").counters.preemptions
    assert moved == 1


def _apart() -> World:
    """Two small jobs that run on a GPU each, and have saved lately."""
    placed = [
        running(small(name), (f"n{n}", (f"GPU-{n}a",)), held=reserve(5 * GIB))
        for n, name in enumerate(("left", "right"))
    ]
    world = World(*placed, gpu_nodes=nodes(1, 1))
    pods = tuple(pod for job in placed for pod in make_pods(job))
    world.snapshot = replace(world.snapshot, pods=pods)
    for name in ("left", "right"):
        saved(world, name, step=100, checkpoint_step=99)
    return world


def test_nobody_moves_without_a_checkpoint() -> None:
    world = _apart()
    world.change("left", checkpoint=None)
    world.change("right", checkpoint=None)
    world.submit(whole("large", created=2))
    world.tick(1000)
    assert world.running() == {"left", "right"}


def test_nobody_moves_when_there_is_no_other_place() -> None:
    world = _apart()
    world.submit(whole("large", gpus_per_worker=1, workers=2, created=2))
    world.tick(1000)
    assert world.running() == {"left", "right"}


# -- backfill


@pytest.mark.promise("I11")
@pytest.mark.parametrize("mode", [SharingMode.EXCLUSIVE, SharingMode.AUTO])
def test_a_short_job_runs_on_gpus_kept_for_a_long_wait(mode: SharingMode) -> None:
    """I11: it is gone before the large one could start; one of unknown length has to wait."""
    world = World(whole("busy"), gpu_nodes=nodes(2))
    world.tick()
    busy = replace(measured(4 * GIB, step=0), steps_total=100_000)
    world.change("busy", measurement=busy)
    world.submit(whole("large", gpus_per_worker=2, created=1))
    world.tick(100)
    long = small("unknown", created=101, sharing=mode)
    short = small("short", created=102, sharing=mode)
    known = replace(measured(4 * GIB, step=10), steps_total=1000)
    short = with_status(short, measurement=known)
    world.submit(long, short)
    world.tick()
    assert world.running() == {"busy", "short"}
    assert "nominated for an earlier job" in world.why("unknown")
    assert "could start in about" in world.why("large")


def test_no_job_that_never_shares_runs_there_beside_unmanaged_processes() -> None:
    used = make_gpu_node("n1", make_gpu("GPU-1a", unmanaged=GIB))
    world = World(whole("busy"), gpu_nodes=[*nodes(1), used, *nodes(0, 0, 1)[2:]])
    world.tick()
    busy = replace(measured(4 * GIB, step=0), steps_total=100_000)
    world.change("busy", measurement=busy)
    world.submit(make_job("large", workers=3, created=1))
    world.tick(100)
    known = replace(measured(4 * GIB, step=10), steps_total=1000)
    for name in ("one", "other"):
        job = small(name, created=101, sharing=SharingMode.EXCLUSIVE)
        world.submit(with_status(job, measurement=known))
    world.tick()
    assert len(world.running()) == 2
    assert "GPU-1a" not in world.gpus("one") | world.gpus("other")


@pytest.mark.parametrize("mode", [SharingMode.EXCLUSIVE, SharingMode.AUTO])
@pytest.mark.parametrize("others", [0, 5])
def test_short_jobs_never_make_a_long_wait_longer(mode: SharingMode, others: int) -> None:
    """Each ends before the GPUs are free that the first one waits for."""
    world = World(whole("busy"), gpu_nodes=nodes(2))
    world.tick()
    busy = replace(measured(4 * GIB, step=0), steps_total=100_000)
    world.change("busy", measurement=busy)
    world.submit(whole("large", gpus_per_worker=2, created=1))
    world.tick(100)
    left, ran = {f"short{n}": 0.0 for n in range(others)}, set[str]()
    known = replace(measured(4 * GIB, step=0), steps_total=20_000)
    for name in left:
        world.submit(with_status(small(name, created=101, sharing=mode), measurement=known))
    while world.seconds < 10_000:
        for name in world.running() & left.keys():
            left[name] = left[name] or world.seconds + 2000
            if world.seconds >= left[name]:
                world.end(name)
        done = measured(4 * GIB, step=int(10 * world.seconds))
        world.change("busy", measurement=replace(done, steps_total=100_000))
        world.tick(100)
        ran |= world.running()
    world.end("busy")
    world.tick()
    assert "large" in world.running()
    assert len(ran & left.keys()) >= min(others, 2)


@pytest.mark.parametrize("mode", [SharingMode.EXCLUSIVE, SharingMode.AUTO])
def test_a_gang_starts_although_nobody_knows_how_long_anything_runs(mode: SharingMode) -> None:
    """I11: that nobody knows when the gang could start is no reason to let everybody pass."""
    world = World(make_job("j0", sharing=mode), gpu_nodes=nodes(2))
    world.tick()
    world.submit(make_job("gang", workers=2, sharing=mode, created=1))
    world.tick(1700)
    for number in range(1, 8):
        world.submit(make_job(f"j{number}", sharing=mode, created=world.seconds))
        world.tick(1700)
        world.end(min(world.running()))
        world.tick(100)
        if "gang" in world.running():
            return
    raise AssertionError(world.why("gang"))


def test_beside_a_tenant_of_unknown_length_the_known_part_of_the_wait_is_used() -> None:
    """The gang cannot start for 10,000 s, whenever the other tenant ends: who ends by then runs."""
    world = World(whole("known"), whole("unknown"), gpu_nodes=nodes(3))
    world.tick()
    busy = replace(measured(4 * GIB, step=0), steps_total=100_000)
    world.change("known", measurement=busy)
    world.submit(whole("large", gpus_per_worker=3, created=1))
    world.tick(100)
    jobs = {"short": 1000, "long": 1_000_000}
    for name, steps in jobs.items():
        known = replace(measured(4 * GIB, step=10), steps_total=steps)
        world.submit(with_status(small(name, created=101), measurement=known))
    world.tick()
    assert world.running() == {"known", "unknown"}, "GPUs of one worker are ready together"
    gang = World(whole("known"), whole("unknown"), gpu_nodes=nodes(1, 1, 1))
    gang.tick()
    gang.change("known", measurement=busy)
    gang.submit(whole("large", workers=3, created=1))
    gang.tick(100)
    for name, steps in jobs.items():
        known = replace(measured(4 * GIB, step=10), steps_total=steps)
        gang.submit(with_status(small(name, created=101), measurement=known))
    gang.tick()
    assert gang.running() == {"known", "unknown", "short"}


def test_nobody_else_is_interrupted_while_a_reading_still_shows_who_has_left() -> None:
    """The pod has ended, the agent has not read its GPU again: that is no unmanaged process."""
    gone = placed(make_job("gone"), phase=JobPhase.SUCCEEDED)
    old = make_pod(gone, exit_code=0)
    gpus = [
        make_gpu("GPU-0a", ours=[(old.uid, 4 * GIB)]),
        make_gpu("GPU-0b", index=1),
    ]
    world = World(gone, whole("stays"), gpu_nodes=[make_gpu_node("n0", *gpus)], pods=[old])
    world.tick()
    assert world.gpus("stays") == {"GPU-0b"}
    world.submit(whole("urgent", priority=5, created=1))
    world.tick()
    assert (world.phase("stays"), world.phase("urgent")) == (JobPhase.RUNNING, JobPhase.PENDING)
    read_again = make_gpu_node("n0", make_gpu("GPU-0a"), make_gpu("GPU-0b", index=1))
    world.snapshot = replace(world.snapshot, gpu_nodes=(read_again,))
    world.tick()
    assert world.running() == {"stays", "urgent"}


def test_a_deleted_pod_that_a_reading_still_shows_is_no_unmanaged_process_either() -> None:
    gpus = [make_gpu("GPU-0a", ours=[("old", 4 * GIB)]), make_gpu("GPU-0b", index=1)]
    world = World(
        whole("stays"),
        gpu_nodes=[make_gpu_node("n0", *gpus)],
        gone_pods=(GonePod("old", after(0), ("GPU-0a",)),),
    )
    world.tick()
    world.submit(whole("urgent", priority=5, created=1))
    world.tick()
    assert world.phase("stays") is JobPhase.RUNNING
    world.tick(CLOCKS_DIFFER_SECONDS + 1)
    assert world.running() == {"urgent"}, "a newer reading shows it still: it is in the way"


def test_a_real_unmanaged_process_is_no_reason_to_wait() -> None:
    gpu = make_gpu("GPU-0a", unmanaged=4 * GIB)
    nodes = [make_gpu_node("n0", gpu, make_gpu("GPU-0b", index=1))]
    world = World(whole("stays"), gpu_nodes=nodes)
    world.tick()
    world.submit(whole("urgent", priority=5, created=1))
    world.tick()
    assert world.running() == {"urgent"}
