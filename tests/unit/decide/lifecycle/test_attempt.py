"""The state machine of one job: every phase against what can be seen of its pods."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, ReservationSource, StopReason
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.sites import NodeFacts, WorkerSite
from gpujob_operator.decide.lifecycle.attempt import advance
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.notices import NodeNotice, NoticeKind
from gpujob_operator.decide.model.placement_record import placed_status, record_of
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.snapshot import PodPhase, PodView
from gpujob_operator.decide.model.workers import job_pods_of, with_pod_uids
from tests.harness.builders import (
    after,
    make_job,
    make_pod,
    make_pods,
    make_report,
    measured,
    placed,
    received,
    running,
    used,
    with_status,
)

CONFIGURATION = Configuration()
STOP = StopReason("NodeReclaimed", "node n0 is being reclaimed", after(30))


def step(job: GPUJob, *pods: PodView, at: float = 10.0, **seen: Any) -> NextStep:
    return advance(job, JobInputs(job_pods_of(job, pods), **seen), CONFIGURATION, after(at))


def stopping(job: GPUJob) -> GPUJob:
    return with_status(running(job), phase=JobPhase.STOPPING, stop=STOP)


def test_a_starting_job_creates_what_is_missing_and_nothing_twice() -> None:
    """I3."""
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    assert [create.rank for create in step(job).creates] == [0, 1]
    assert [create.rank for create in step(job, make_pod(job, 0)).creates] == [1]
    both = make_pods(job, phase=PodPhase.PENDING)
    assert step(job, *both).creates == ()


def test_it_runs_once_all_of_its_pods_run() -> None:
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    waiting = (make_pod(job, 0), make_pod(job, 1, phase=PodPhase.PENDING))
    assert step(job, *waiting).status.phase is JobPhase.STARTING
    assert step(job, *make_pods(job)).status.phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("code", "phase", "counter"),
    [
        (0, JobPhase.SUCCEEDED, None),
        (143, JobPhase.PENDING, "interruptions"),
        (144, JobPhase.PENDING, "interruptions"),
        (137, JobPhase.PENDING, "errors"),
        (1, JobPhase.PENDING, "errors"),
    ],
)
def test_how_an_attempt_ends(code: int, phase: JobPhase, counter: str | None) -> None:
    """I4: every end has a phase, and what is tried again is counted by its cause."""
    job = running(make_job())
    after_end = step(job, make_pod(job, exit_code=code, finished_at=after(9))).status
    assert after_end.phase is phase
    counts = {n: getattr(after_end.counters, n) for n in ("interruptions", "errors", "hung")}
    assert counts == {name: int(name == counter) for name in counts}
    assert (after_end.placement is None) is (phase is JobPhase.PENDING)


@pytest.mark.parametrize("code", [0, 2])
def test_a_job_that_ends_before_it_is_seen_running_has_a_start(code: int) -> None:
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    pods = [
        make_pod(job, rank, exit_code=code, started_at=after(at), finished_at=after(9))
        for rank, at in ((0, 3.0), (1, 5.0))
    ]
    ended = step(job, *pods).status
    assert ended.started_at == after(5)
    assert step(running(job, started_at=after(1)), *pods).status.started_at == after(1)


@pytest.mark.parametrize(
    ("started_at", "reason", "expected"),
    [
        (None, "", None),
        # Kubelets write the epoch if a container could not be started.
        (datetime(1970, 1, 1, tzinfo=UTC), "StartError", None),
        # A node's clock is a little off.
        (after(-3), "", after(0)),
        (after(90), "", after(10)),
    ],
)
def test_the_start_that_a_kubelet_reports_is_plausible_or_unknown(
    started_at: datetime | None, reason: str, expected: datetime | None
) -> None:
    job = placed(make_job(), ("n0", ("GPU-0",)))
    pod = make_pod(job, exit_code=128, started_at=started_at, reason=reason)
    assert step(job, pod).status.started_at == expected


def test_a_user_error_before_the_first_step_is_final() -> None:
    job = running(make_job())
    words = make_report(step=0, failure=FailureClass.USER_ERROR, message="NameError: x")
    pod = make_pod(job, exit_code=1, termination=words, finished_at=after(9))
    failed = step(job, pod).status
    assert failed.phase is JobPhase.FAILED
    assert failed.failure is not None
    assert "NameError" in failed.failure.message
    later = replace(pod, termination=replace(words, step=7))
    assert step(job, later).status.phase is JobPhase.PENDING


def test_a_pod_that_is_gone_counts_as_an_interruption() -> None:
    job = running(make_job())
    assert step(job).status.counters.interruptions == 1
    assert step(job).status.placement is None


def test_trouble_is_made_durable_before_a_pod_is_stopped() -> None:
    """I13: first the decision, then SIGTERM with what is left of the grace."""
    job = running(make_job())
    notice = NodeNotice(NoticeKind.RECLAIM, "", STOP.deadline)
    site = WorkerSite("n0", NodeFacts(None, None, notice, None), ())
    first = step(job, make_pod(job), sites=(site,))
    assert first.status.stop is not None
    assert first.status.stop.deadline == STOP.deadline
    assert first.status.phase is JobPhase.STOPPING
    assert first.deletes == ()
    then = step(replace(job, status=first.status), make_pod(job))
    (delete,) = then.deletes
    assert delete.grace_seconds == 20
    already = make_pod(job, deletion_at=after(9))
    assert step(stopping(make_job()), already).deletes == ()


def test_a_gang_is_asked_first_and_stopped_at_half_of_the_grace() -> None:
    places = (("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    job = running(make_job(workers=2), *places, phase=JobPhase.STOPPING, stop=STOP)
    report = received(job, make_report(), at=9)
    assert step(job, *make_pods(job), at=10, report=report).deletes == ()
    assert len(step(job, *make_pods(job), at=16, report=report).deletes) == 2
    assert len(step(job, *make_pods(job), at=10).deletes) == 2


def test_an_evicted_rank_stops_its_gang_in_two_phases() -> None:
    """The other ranks learn it with their reports, and keep their own grace (I13)."""
    places = (("n0", ("GPU-0",)), ("n1", ("GPU-1",)))
    job = running(make_job(workers=2), *places)
    evicted = make_pod(job, 0, deletion_at=after(40), disruption="EvictionByEvictionAPI")
    other = make_pod(job, 1)
    first = step(job, evicted, other)
    assert first.status.phase is JobPhase.STOPPING
    assert first.status.stop == StopReason(
        "Evicted",
        f"pod {evicted.name} is being deleted (EvictionByEvictionAPI)",
        after(10 + stop_seconds(job, CONFIGURATION)),
    )
    assert first.deletes == ()
    job = replace(job, status=first.status)
    report = received(job, make_report(), at=9)
    assert step(job, evicted, other, at=11, report=report).deletes == ()
    (delete,) = step(job, evicted, other, at=30, report=report).deletes
    assert (delete.pod, delete.grace_seconds) == (other, CONFIGURATION.termination_grace_seconds)


def test_a_pod_whose_owner_was_taken_away_is_deleted_as_its_jobs() -> None:
    """I13: deletions of a job wait for the job's status; those of nobody's pods do not."""
    job = stopping(make_job())
    pod = make_pod(job)
    (delete,) = step(job, pod).deletes
    assert delete.pod is pod
    bound = with_pod_uids(job.status, (pod,))
    (delete,) = step(replace(job, status=bound), replace(pod, job_uid="")).deletes
    assert delete.pod == pod


def test_an_eviction_is_no_failure_of_the_job() -> None:
    job = running(make_job())
    evicted = make_pod(job, deletion_at=after(40))
    stopped = replace(job, status=step(job, evicted).status)
    ended = step(stopped, replace(evicted, exit_code=143, finished_at=after(12)), at=13).status
    assert ended.phase is JobPhase.PENDING
    assert (ended.counters.interruptions, ended.counters.errors) == (1, 0)
    # What has ended is no longer being evicted: its exit code says what happened.
    failed = make_pod(job, exit_code=1, finished_at=after(9), deletion_at=after(40))
    assert step(job, failed).status.stop is None


def test_gpus_stay_held_until_every_pod_is_proven_finished() -> None:
    """I1, I3."""
    job = stopping(make_job())
    assert step(job, make_pod(job)).status.placement is not None
    ended = step(job, make_pod(job, exit_code=143, finished_at=after(9)))
    assert ended.status.placement is None
    assert ended.status.phase is JobPhase.PENDING


def test_suspend_and_a_hang_stop_the_attempt() -> None:
    suspended = running(make_job(suspend=True))
    stop = step(suspended, make_pod(suspended)).status.stop
    assert stop is not None
    assert stop.reason == "Suspended"
    job = running(make_job(hang_seconds=60))
    words = received(job, make_report(step=5))
    assert step(job, make_pod(job), at=60, report=words).status.stop is None
    hung = step(job, make_pod(job), at=61, report=words).status.stop
    assert hung is not None
    assert "no progress for 61 s (retry.hangTimeoutSeconds is 60)" in hung.message


def test_a_script_that_has_not_trained_yet_has_more_time() -> None:
    """It downloads and prepares its data, of which the worker knows nothing."""
    job = running(make_job(hang_seconds=60))
    waits = step(job, make_pod(job), at=360)
    assert (waits.status.stop, waits.next_seconds) == (None, 1.0)
    hung = step(job, make_pod(job), at=361).status.stop
    assert hung is not None
    limit = "(retry.hangTimeoutSeconds is 60, 6 times as long without steps)"
    assert hung.message == f"no progress for 361 s {limit}"


@pytest.mark.parametrize(("idle_seconds", "hangs"), [(3.0, False), (70.0, True), (None, True)])
def test_an_evaluation_that_goes_on_is_no_hang(idle_seconds: float | None, hangs: bool) -> None:
    """It makes no step. Its newest batch is a sign of life."""
    job = running(make_job(hang_seconds=60), measurement=measured(GIB, step=100))
    words = make_report(step=100, idle_seconds=idle_seconds)
    stop = step(job, make_pod(job), at=500, report=received(job, words, at=499)).status.stop
    assert (stop is not None) is hangs


@pytest.mark.parametrize(("step_made", "is_over"), [(1000, True), (999, False)])
def test_a_hang_after_the_last_step_is_told_apart(step_made: int, is_over: bool) -> None:
    job = running(make_job(hang_seconds=60))
    words = make_report(step=step_made, steps_total=1000)
    given = received(job, words, at=10)
    early = step(job, make_pod(job), at=200, report=given).status.stop
    assert (early is None) is is_over
    stop = step(job, make_pod(job), at=371, report=given).status.stop
    assert stop is not None
    assert ("since its last step, 1000 of 1000" in stop.message) is is_over


def test_what_does_not_start_in_time_is_stopped() -> None:
    job = placed(make_job())
    pod = make_pod(job, phase=PodPhase.PENDING, reason="PodInitializing", message="still fetching")
    early = step(job, pod, at=600)
    assert early.status.phase is JobPhase.STARTING
    late = step(replace(job, status=early.status), pod, at=601).status
    assert late.stop is not None
    assert late.stop.reason == "StartTimeout"
    assert "still fetching" in late.stop.message


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_finished_job_never_gets_a_pod_and_loses_what_still_lives(phase: JobPhase) -> None:
    """I5, I7."""
    job = with_status(running(make_job()), phase=phase)
    quiet = step(job)
    assert (quiet.creates, quiet.deletes, quiet.status) == ((), (), job.status)
    assert len(step(job, make_pod(job)).deletes) == 1


def test_pods_of_older_attempts_are_stopped_and_their_logs_bounded() -> None:
    job = running(make_job(), attempt=5)
    live = make_pod(job, attempt=4)
    finished = [make_pod(job, attempt=n, exit_code=1, finished_at=after(1)) for n in (1, 2, 3)]
    deleted = {delete.pod.attempt for delete in step(job, make_pod(job), live, *finished).deletes}
    assert deleted == {1, 2, 4}


def test_a_measured_job_makes_room() -> None:
    job = running(make_job())
    report = received(job, make_report(), at=9)
    done = step(job, make_pod(job), report=report, usage=used(GIB, samples=5))
    held = done.status.reservation
    assert held is not None
    assert held.source is ReservationSource.MEASURED
    assert held.memory_bytes == GIB + 256 * 1024**2
    assert done.events[0].reason == "ReservationMeasured"


def test_the_message_of_the_placement_has_the_present_reservation() -> None:
    new = make_job(memory_bytes=8 * GIB)
    job = replace(new, status=placed_status(new, record_of(running(new)), attempt=1))
    job = with_status(job, phase=JobPhase.RUNNING)
    report = received(job, make_report(), at=9)
    early = step(job, make_pod(job), report=report, usage=used(GIB, samples=1)).status
    assert "reserves 24 GiB on each GPU (WholeGPU)" in placement_text(early)
    measured = step(job, make_pod(job), report=report, usage=used(GIB, samples=5)).status
    assert "reserves 1.25 GiB on each GPU (Measured)" in placement_text(measured)
    assert "the job was measured to use less" in placement_text(measured)


def placement_text(status: GPUJobStatus) -> str:
    found = conditions.find(status, conditions.SCHEDULED)
    assert found is not None
    return found.message
