"""What-if runs: plan itself in virtual time; who starts where and when, and who makes room."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport, Timing
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.simulation.run import Limits, simulate
from gpujob_operator.decide.simulation.timeline import JobTimeline, Timeline
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_queue,
    make_snapshot,
    measured,
    running,
    with_status,
)

NOW = after(10)


def busy(name: str = "busy", *, steps_left: int | None = 1000, **fields: Any) -> GPUJob:
    """Runs alone on GPU GPU-0 at 0.1 s a step; its last status is of now."""
    known = measured(4 * GIB, step=500)
    if steps_left is not None:
        known = replace(known, steps_total=500 + steps_left)
    job = running(make_job(name, sharing=SharingMode.EXCLUSIVE, **fields), measurement=known)
    return with_status(job, observed_at=NOW)


def running_on(name: str, uuid: str, **fields: Any) -> GPUJob:
    job = make_job(name, sharing=SharingMode.EXCLUSIVE, **fields)
    found = running(job, ("n0", (uuid,)), measurement=measured(4 * GIB, step=500), at=-60.0)
    return with_status(found, observed_at=NOW)


def whole(name: str, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, created=10, **fields)


def told(story: Timeline, name: str) -> JobTimeline:
    return story.jobs[f"uid-{name}"]


def run(snapshot: Snapshot, **limits: Any) -> Timeline:
    return simulate(snapshot, NOW, Limits(**limits))


def test_a_job_that_fits_starts_at_once_and_the_simulation_ends() -> None:
    story = run(make_snapshot(whole("new")))
    new = told(story, "new")
    assert new.starts_seconds == 0
    assert new.placed[0].placement.workers[0].node == "n0"
    assert new.placed[0].placement.workers[0].gpus == ("GPU-0",)
    assert "GPU-0" in new.placed[0].message
    assert new.waited == []
    assert story.ended == "no pending jobs"
    assert story.cycles < 10


def test_a_job_waits_for_the_estimated_end_of_another() -> None:
    """1,000 steps of 0.1 s left: 100 s, told by the operator's own words and kept."""
    first = busy()
    story = run(make_snapshot(first, whole("new"), pods=make_pods(first)))
    new = told(story, "new")
    assert new.waited[0].reason == "InsufficientCapacity"
    assert "could start in about 100 s" in new.waited[0].message
    assert new.starts_seconds == pytest.approx(100, abs=2)
    assert told(story, "busy").finished_seconds == pytest.approx(100, abs=2)
    assert told(story, "busy").stopped == []


def test_without_an_estimate_nothing_ends_and_the_horizon_does() -> None:
    first = busy(steps_left=None)
    story = run(make_snapshot(first, whole("new"), pods=make_pods(first)), horizon_seconds=7200)
    assert told(story, "new").starts_seconds is None
    assert told(story, "busy").finished_seconds is None
    assert told(story, "new").waited[0].reason == "InsufficientCapacity"
    assert story.ended == "horizon"
    assert story.cycles < 60


def test_a_preempted_job_uses_its_grace_and_goes_on_from_what_it_saved() -> None:
    low = with_status(busy("low"), checkpoint=CheckpointReport(450, write_seconds=2.0))
    snapshot = make_snapshot(low, whole("high", priority=5), pods=make_pods(low))
    story = run(replace(snapshot, configuration=replace(snapshot.configuration)))
    stop = told(story, "low").stopped[0]
    assert (stop.seconds, stop.reason) == (0, "Preempted")
    assert "stopped for team/high" in stop.message
    # 2 s to write a checkpoint, and 30 s to start again, on one GPU.
    assert stop.lost_gpu_seconds == pytest.approx(32)
    assert f"loses {stop.lost_gpu_seconds:.0f} GPU-seconds" in stop.message
    assert told(story, "high").starts_seconds == pytest.approx(30, abs=1.5)
    assert told(story, "low").placed == []


def test_the_interrupted_job_runs_again_and_ends_later_by_what_it_lost() -> None:
    low = with_status(busy("low"), checkpoint=CheckpointReport(450, write_seconds=2.0))
    high = with_status(
        whole("high", priority=5),
        measurement=replace(measured(GIB), steps_total=1000, current=Timing(0.1, GIB)),
    )
    story = run(make_snapshot(low, high, pods=make_pods(low)))
    assert told(story, "high").finished_seconds == pytest.approx(131, abs=4)
    assert told(story, "low").placed[0].seconds == pytest.approx(131, abs=4)
    assert told(story, "low").placed[0].attempt == 2


def test_a_job_without_a_claim_is_priced_at_its_whole_attempt_and_starts_again() -> None:
    low = with_status(busy("low", claim=None), checkpoint=CheckpointReport(450, write_seconds=2.0))
    high = with_status(
        whole("high", priority=5),
        measurement=replace(measured(GIB), steps_total=1000, current=Timing(0.1, GIB)),
    )
    last = whole("last", priority=-5)
    story = run(make_snapshot(low, high, last, pods=make_pods(low)))
    # 10 s on one GPU, and 30 s to start again.
    assert told(story, "low").stopped[0].lost_gpu_seconds == pytest.approx(40)
    again = told(story, "low").placed[0].seconds
    # All of its 1,500 steps of 0.1 s, after the restart.
    assert told(story, "last").placed[0].seconds - again == pytest.approx(30 + 150, abs=6)


def test_the_job_that_loses_nothing_makes_room() -> None:
    """Of two that run alike, whichever is first by name."""
    for keeps, loses in (("a", "b"), ("b", "a")):
        known = {"checkpoint": CheckpointReport(499, write_seconds=1.0)}
        jobs = [
            with_status(running_on(keeps, "GPU-0", claim="ckpt"), **known),
            with_status(running_on(loses, "GPU-1", claim=None), **known),
        ]
        node = make_gpu_node("n0", make_gpu("GPU-0"), make_gpu("GPU-1", index=1))
        pods = [pod for job in jobs for pod in make_pods(job)]
        story = run(
            make_snapshot(*jobs, whole("high", priority=5), pods=pods, gpu_nodes=[node]),
            horizon_seconds=120,
        )
        assert [name for name in ("a", "b") if told(story, name).stopped] == [keeps]


def test_a_job_over_its_quota_waits_in_the_operators_words() -> None:
    snapshot = make_snapshot(
        whole("new", queue="vision"), queues=(make_queue("vision", gpus=0, borrow=0),)
    )
    story = run(snapshot, horizon_seconds=600)
    assert told(story, "new").waited[0].reason == "OverQuota"
    assert told(story, "new").starts_seconds is None


def test_a_lost_node_interrupts_its_jobs_and_they_start_elsewhere() -> None:
    """Nobody asked it to save: all steps since the last checkpoint are lost, 50 of 0.1 s."""
    first = with_status(busy("lost"), checkpoint=CheckpointReport(450, write_seconds=2.0))
    snapshot = make_snapshot(first, gpu_nodes=[make_gpu_node("n1", make_gpu("GPU-1"))])
    story = run(snapshot)
    lost = told(story, "lost")
    assert lost.ran_before is not None
    assert lost.stopped[0].reason == "NodeLost"
    assert lost.stopped[0].lost_gpu_seconds == pytest.approx(5 + 30)
    assert lost.placed[0].placement.workers[0].node == "n1"


def test_a_gpu_is_free_of_the_processes_of_who_left() -> None:
    """Measured memory of an ended pod must not pass for an unmanaged process's."""
    first = busy()
    pods = make_pods(first)
    gpu = make_gpu(ours=[(pods[0].uid, 20 * GIB)])
    story = run(make_snapshot(first, whole("new"), pods=pods, gpus=[gpu]))
    assert told(story, "new").starts_seconds == pytest.approx(100, abs=2)


def test_host_room_comes_back_with_who_left() -> None:
    first = busy()
    node = make_node(cpu=1, cpu_milli_free=0)
    story = run(make_snapshot(first, whole("new"), pods=make_pods(first), nodes=[node]))
    assert told(story, "new").starts_seconds == pytest.approx(100, abs=2)


def test_a_stale_agent_stays_stale_and_a_fresh_one_fresh() -> None:
    stale = make_gpu_node("n0", make_gpu("GPU-0"), at=-100)
    fresh = make_gpu_node("n1", make_gpu("GPU-1"), at=5)
    wanting = [whole("one"), whole("two")]
    story = run(make_snapshot(*wanting, gpu_nodes=[stale, fresh]), horizon_seconds=3600)
    started = [s for s in story.jobs.values() if s.starts_seconds is not None]
    assert [s.placed[0].placement.workers[0].node for s in started] == ["n1"]
    waiting = next(s for s in story.jobs.values() if s.starts_seconds is None)
    assert "readings are" in waiting.waited[-1].message


def test_a_running_job_never_passes_for_hung() -> None:
    """Neither with a short limit, nor where nothing happens for hours."""
    jobs = [busy(steps_left=100_000, hang_seconds=5), whole("new")]
    story = run(make_snapshot(*jobs, pods=make_pods(jobs[0])), horizon_seconds=7200, cycles=5000)
    assert told(story, "busy").stopped == []
    assert story.ended == "horizon"


def test_the_bound_on_cycles_holds_and_is_told() -> None:
    first = busy(steps_left=None)
    story = run(make_snapshot(first, whole("new"), pods=make_pods(first)), cycles=5)
    assert (story.cycles, story.ended) == (5, "cycles")


def test_the_same_question_gets_the_same_answer_and_plan_is_what_is_asked() -> None:
    """`plan` without a memory gives the same story as the planner that remembers."""
    low = with_status(busy("low"), checkpoint=CheckpointReport(450, write_seconds=2.0))
    jobs = [low, whole("high", priority=5), whole("third")]
    snapshot = make_snapshot(*jobs, pods=make_pods(low))
    asked: list[datetime] = []

    def counted(seen: Snapshot, now: datetime) -> Plan:
        asked.append(now)
        return plan(seen, now)

    bare = simulate(snapshot, NOW, Limits(horizon_seconds=3600), counted)
    kept = simulate(snapshot, NOW, Limits(horizon_seconds=3600))
    assert len(asked) == bare.cycles > 3
    assert asked[0] == NOW > T0
    assert {uid: s.placed for uid, s in bare.jobs.items()} == {
        uid: s.placed for uid, s in kept.jobs.items()
    }
    assert bare.seconds == kept.seconds


def test_the_snapshot_that_was_given_is_not_changed() -> None:
    first = busy()
    snapshot = make_snapshot(first, whole("new"), pods=make_pods(first))
    before = repr(snapshot)
    run(snapshot)
    assert repr(snapshot) == before
