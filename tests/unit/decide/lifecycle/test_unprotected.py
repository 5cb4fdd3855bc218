"""The condition `Unprotected`, and what the end of an attempt announces of the next one."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, GPUJobStatus, StopReason
from gpujob_api.meta import Condition
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport, Protection, Report, ResumeRefused
from gpujob_api.serving import ServingReport
from gpujob_api.settings import EXIT_INTERRUPTED_UNSAVED
from gpujob_operator.decide.lifecycle.retry import FRUITLESS_INTERRUPTIONS_MAX
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.plan import EventNote, EventType, WriteStatus
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    measured,
    received,
    running,
    used,
    with_status,
)
from tests.harness.services import as_replica

AT = 70.0
REFUSED = ResumeRefused(190, "step 191 differs: loss 2.25 instead of 1.5")


def attempt(
    claim: str | None = "ckpt",
    number: int = 1,
    step: int = 190,
    path: str | None = None,
    suspend: bool = False,
    **status: Any,
) -> GPUJob:
    job = make_job(claim=claim)
    checkpoint = replace(job.spec.checkpoint, path=path)
    job = replace(job, spec=replace(job.spec, checkpoint=checkpoint, suspend=suspend))
    return running(job, attempt=number, measurement=measured(GIB, step=step), **status)


def decided(
    job: GPUJob, *, report: Report | None = None, exit_code: int | None = None, words: bool = False
) -> tuple[GPUJobStatus, tuple[EventNote, ...]]:
    """`words`: the report is the worker's termination message."""
    pod = make_pod(job, exit_code=exit_code, termination=report if words else None)
    snapshot = make_snapshot(
        job,
        pods=[pod],
        gpu_nodes=[make_gpu_node("n0", make_gpu(), at=AT)],
        usage={(job.metadata.uid, job.status.attempt): used(GIB, 30.0)},
        reports=(received(job, report, AT),) if report is not None and not words else (),
    )
    for item in plan(snapshot, after(AT)).items:
        if isinstance(item, WriteStatus):
            return item.status, item.events
    return job.status, ()


def unprotected(status: GPUJobStatus) -> Condition | None:
    return conditions.find(status, conditions.UNPROTECTED)


def test_a_job_without_a_claim_is_unprotected_from_its_first_attempt() -> None:
    status, _ = decided(attempt(None), report=make_report(step=191))
    found = unprotected(status)
    assert found is not None
    assert found.reason == "NoDurablePlace"
    assert found.message == (
        "an interruption starts the job again from the beginning: its checkpoints go with its "
        "pod; create the job again with checkpoint.volumeClaimName"
    )
    assert status.summary.progress == "step 191 unprotected"


def test_a_pending_job_has_nothing_to_lose() -> None:
    snapshot = make_snapshot(make_job(claim=None, models=("none-such",)))
    [item] = plan(snapshot, after(AT)).items
    assert isinstance(item, WriteStatus)
    assert unprotected(item.status) is None


def test_a_protected_job_has_no_such_condition() -> None:
    status, _ = decided(attempt(), report=make_report(step=191, protection=Protection.EXACT))
    assert unprotected(status) is None
    assert status.protection is Protection.EXACT
    assert status.summary.progress == "step 191"


def test_a_run_that_is_not_resumable_has_the_reason_of_its_worker() -> None:
    report = make_report(
        step=191,
        protection=Protection.FROM_BEGINNING,
        protection_reason="a thread of its own draws the batches",
    )
    status, _ = decided(attempt(), report=report)
    found = unprotected(status)
    assert found is not None
    assert found.reason == "NotResumable"
    assert "a thread of its own draws the batches" in found.message
    # It stays while no report is there: after a start of the operator, or between two attempts.
    again = with_status(attempt(), protection=status.protection, conditions=status.conditions)
    assert unprotected(decided(again, exit_code=144)[0]) == found
    # A later attempt finds otherwise.
    exact = make_report(step=191, protection=Protection.EXACT)
    assert unprotected(decided(again, report=exact)[0]) is None


def test_a_job_that_has_ended_has_nothing_to_lose() -> None:
    condition = decided(attempt(None), report=make_report(step=191))[0].conditions
    status, _ = decided(attempt(None, conditions=condition), exit_code=0)
    assert status.finished
    assert unprotected(status) is None


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (
            attempt(checkpoint=CheckpointReport(180)),
            "checkpoint at step 180 saved; 10 steps since then are made again",
        ),
        # Those by which the resume is checked.
        (attempt(checkpoint=CheckpointReport(188)), "checkpoint at step 188 saved"),
        (
            attempt(),
            "no checkpoint: the next attempt starts from the beginning; 190 steps are lost",
        ),
        (
            attempt(None),
            "no claim: the next attempt starts from the beginning; 190 steps are lost",
        ),
        (
            attempt(None, step=1),
            "no claim: the next attempt starts from the beginning; 1 step is lost",
        ),
        # A status of an earlier release.
        (
            attempt(None, checkpoint=CheckpointReport(180)),
            "no claim: the next attempt starts from the beginning; 190 steps are lost",
        ),
        (
            attempt(protection=Protection.FROM_BEGINNING),
            "not resumable: the next attempt starts from the beginning; 190 steps are lost",
        ),
        (attempt(path="own/*.pt"), "the script has its own checkpoints (own/*.pt)"),
        (
            attempt(path="own/*.pt", protection=Protection.FROM_BEGINNING),
            "nothing matched checkpoint.path (own/*.pt): the next attempt starts from the "
            "beginning; 190 steps are lost",
        ),
        # The steps are those of the attempt before, which announced their loss.
        (attempt(None, number=2), "no claim: the next attempt starts from the beginning"),
        (
            attempt(None, number=2, resumed_from_step=0),
            "no claim: the next attempt starts from the beginning; 190 steps are lost",
        ),
    ],
)
def test_the_end_of_an_attempt_announces_what_is_lost(job: GPUJob, text: str) -> None:
    stop = StopReason("Suspended", "spec.suspend is true", after(AT + 30))
    status, events = decided(with_status(job, stop=stop), exit_code=144)
    announced = f"attempt {job.status.attempt}: interrupted (spec.suspend is true); {text}; "
    assert [note.message for note in events] == [f"{announced}rescheduling"]
    running_condition = conditions.find(status, conditions.RUNNING)
    assert running_condition is not None
    assert running_condition.message == f"{announced}rescheduling"


@pytest.mark.parametrize(
    ("serving", "exit_code", "text"),
    [
        (ServingReport(), 143, "all accepted requests were answered; "),
        # The time was over first, and an engine of the user's own that SIGTERM ended.
        (ServingReport(), 144, ""),
        (None, 143, ""),
    ],
)
def test_a_replica_has_nothing_to_resume(
    serving: ServingReport | None, exit_code: int, text: str
) -> None:
    stop = StopReason("NodeReclaimed", "node n0 is being reclaimed", after(AT + 30))
    job = as_replica(attempt(None, stop=stop))
    report = make_report(serving=serving)
    _, [note] = decided(job, report=report, exit_code=exit_code, words=True)
    assert note.message == (
        f"attempt 1: interrupted (node n0 is being reclaimed); {text}its service starts another "
        "replica; rescheduling"
    )


def test_a_suspended_job_is_not_rescheduled() -> None:
    stop = StopReason("Suspended", "spec.suspend is true", after(AT + 30))
    _, [note] = decided(attempt(suspend=True, stop=stop), exit_code=144)
    assert note.message.endswith("; waits until spec.suspend is false")


def test_the_last_attempt_of_all_announces_no_next_one() -> None:
    counters = Counters(fruitless=FRUITLESS_INTERRUPTIONS_MAX)
    _, [note] = decided(attempt(None, counters=counters), exit_code=144)
    assert note.reason == "Failed"
    assert "the next attempt" not in note.message
    assert "51 times in a row without progress (no checkpoint)" in note.message


def test_what_is_saved_in_the_pod_is_no_progress() -> None:
    counters = Counters(fruitless=3)
    report = make_report(step=200, checkpoint_step=199)
    for claim, fruitless in ((None, 4), ("ckpt", 0)):
        job = attempt(claim, counters=counters)
        status, _ = decided(job, report=report, exit_code=144, words=True)
        assert status.counters.fruitless == fruitless


def test_a_restart_from_the_beginning_is_an_event_once() -> None:
    job = attempt(None, number=2)
    status, events = decided(job, report=make_report(2, step=3))
    assert events[0] == EventNote(
        "RestartedFromBeginning",
        "attempt 2 starts from the beginning; 190 steps are lost",
        EventType.WARNING,
    )
    later = with_status(job, resumed_from_step=0, measurement=status.measurement)
    _, events = decided(later, report=make_report(2, step=9))
    assert "RestartedFromBeginning" not in [note.reason for note in events]


def test_a_start_after_attempts_without_steps_loses_nothing() -> None:
    _, events = decided(attempt(None, number=2, step=0), report=make_report(2, step=3))
    assert "RestartedFromBeginning" not in [note.reason for note in events]


def test_a_refused_resume_is_an_event_once_and_no_failure() -> None:
    """Not while it runs, and not in the worker's last words either."""
    job = attempt(number=2, step=190, checkpoint=CheckpointReport(190))
    report = make_report(2, step=0, resume_refused=REFUSED)
    text = (
        "attempt 2: the checkpoint of step 190 did not bring the run back, so that it starts from "
        f"the beginning: {REFUSED.reason}"
    )
    refused = EventNote("ResumeRefused", text, EventType.WARNING)
    restarted = EventNote(
        "RestartedFromBeginning",
        "attempt 2 starts from the beginning; 190 steps are lost",
        EventType.WARNING,
    )
    status, events = decided(job, report=report)
    assert events[:2] == (refused, restarted)
    assert (status.checkpoint, status.resumed_from_step) == (None, 0)
    known = with_status(job, checkpoint=None, resumed_from_step=0)
    assert refused not in decided(known, report=report)[1]
    assert refused not in decided(known, report=report, exit_code=144, words=True)[1]


def test_an_attempt_that_ends_because_its_resume_was_refused_is_an_interruption() -> None:
    job = attempt(number=2, step=192, checkpoint=CheckpointReport(190), resumed_from_step=190)
    report = make_report(2, step=192, resumed_from_step=190, resume_refused=REFUSED)
    status, events = decided(job, report=report, exit_code=EXIT_INTERRUPTED_UNSAVED, words=True)
    assert [note.reason for note in events] == ["ResumeRefused", "AttemptInterrupted"]
    assert status.failure is None
    assert (status.counters.errors, status.counters.interruptions) == (0, 1)
    assert status.counters.fruitless == 1
    assert status.checkpoint is None
    message = events[1].message
    assert f"the checkpoint of step 190 did not bring worker 0 back: {REFUSED.reason}" in message
    again = "no checkpoint: the next attempt starts from the beginning; 192 steps are lost"
    assert again in message
