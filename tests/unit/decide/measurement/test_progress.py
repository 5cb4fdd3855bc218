"""What reports and readings change in the status of a running attempt."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.copies import changed
from gpujob_api.gpujob import Checkpoint, GPUJob, GPUJobStatus, Reservation, ReservationSource
from gpujob_api.quantities import GIB
from gpujob_api.report import (
    CheckpointReport,
    Protection,
    Report,
    ResumeRefused,
    Speedup,
    Timing,
    WorkerPhase,
)
from gpujob_api.serving import ServingReport
from gpujob_api.settings import Task
from gpujob_operator.decide.measurement.progress import (
    is_hung,
    joined_usage,
    with_measured_reservation,
    with_measurement,
    with_report,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from tests.harness.builders import (
    CARD_BYTES,
    MODEL,
    after,
    make_job,
    make_report,
    measured,
    received,
    reserve,
    running,
    used,
    with_status,
)

CONFIGURATION = Configuration()
JOB = running(make_job(), held=reserve(24 * GIB, ReservationSource.WHOLE_GPU, 100.0))


def test_the_task_is_that_of_the_newest_report_with_a_step() -> None:
    status = JOB.status
    for step, task, known in [
        (0, None, None),
        (3, Task.INFERENCE, Task.INFERENCE),
        # The worker of the next attempt has not met the model yet.
        (0, None, Task.INFERENCE),
        # The script trains after all.
        (9, None, None),
    ]:
        report = make_report(step=step, task=task)
        status = with_measurement(status, report, used(GIB))
        assert status.measurement is not None
        assert status.measurement.task is known


def test_calls_beyond_the_total_have_none() -> None:
    """A second loop of a script that only answers has no known length."""
    status = JOB.status
    for step, reported, total in [(9, 10, 10), (10, None, 10), (11, None, None), (12, 20, 20)]:
        report = make_report(step=step, steps_total=reported, task=Task.INFERENCE)
        status = with_measurement(status, report, used(GIB))
        assert status.measurement is not None
        assert status.measurement.steps_total == total


def test_the_most_contexts_that_were_seen_stay_known() -> None:
    """What a job of one process may have is not written."""
    status = with_measurement(JOB.status, None, used(GIB))
    assert status.measurement is not None
    assert status.measurement.context_bytes is None
    for contexts in (3, 1, 2):
        usage = used(GIB, context_bytes=contexts * CONTEXT_BYTES)
        status = with_measurement(status, None, usage)
        assert status.measurement is not None
        assert status.measurement.context_bytes == 3 * CONTEXT_BYTES
    first = with_measurement(JOB.status, None, used(GIB, context_bytes=2 * CONTEXT_BYTES))
    assert first.measurement is not None
    assert first.measurement.context_bytes == 2 * CONTEXT_BYTES


def told(job: GPUJob, report: Report, at: float = 100.0) -> GPUJobStatus:
    return with_report(job, job.status, received(job, report, at), CONFIGURATION)


def test_reports_of_another_attempt_are_ignored() -> None:
    """I3: an older attempt has no say any more."""
    assert told(JOB, make_report(attempt=2, checkpoint_step=9)) == JOB.status
    assert with_report(JOB, JOB.status, None, Configuration()) == JOB.status


@pytest.mark.promise("I6")
def test_the_durable_step_never_goes_back() -> None:
    """I6."""
    job = with_status(JOB, checkpoint=CheckpointReport(50))
    assert told(job, make_report(checkpoint_step=20)).checkpoint == CheckpointReport(50)
    assert told(job, make_report(checkpoint_step=60)).checkpoint == CheckpointReport(60)
    assert told(job, make_report()).checkpoint == CheckpointReport(50)


def test_what_goes_with_the_pod_is_not_durable() -> None:
    job = running(make_job(claim=None))
    assert told(job, make_report(checkpoint_step=20)).checkpoint is None
    legacy = with_status(job, checkpoint=CheckpointReport(10))
    assert told(legacy, make_report(checkpoint_step=20)).checkpoint is None


def test_what_does_not_bring_the_run_back_is_not_durable() -> None:
    """Nor is what was reported before that was known."""
    job = with_status(JOB, checkpoint=CheckpointReport(10))
    report = make_report(checkpoint_step=20, protection=Protection.FROM_BEGINNING)
    status = told(job, report)
    assert (status.protection, status.checkpoint) == (Protection.FROM_BEGINNING, None)
    # A later attempt finds otherwise.
    exact = make_report(checkpoint_step=20, protection=Protection.EXACT)
    assert told(with_status(JOB, protection=status.protection), exact).checkpoint == (
        CheckpointReport(20)
    )


def test_the_protection_is_kept_while_nothing_newer_is_reported() -> None:
    job = with_status(JOB, protection=Protection.EXACT)
    assert told(job, make_report()).protection is Protection.EXACT
    inexact = make_report(protection=Protection.BEST_EFFORT)
    assert told(job, inexact).protection is Protection.BEST_EFFORT


def second(**status: Any) -> GPUJob:
    """Its second attempt, after a first one of 190 steps."""
    found = measured(GIB, step=190)
    return running(make_job(), attempt=2, measurement=found, **status)


def test_a_later_attempt_without_a_resume_starts_from_the_beginning() -> None:
    job = second(checkpoint=CheckpointReport(190))
    assert told(job, make_report(2, step=0)).resumed_from_step is None
    status = told(job, make_report(2, step=3))
    assert (status.resumed_from_step, status.checkpoint) == (0, None)
    # From there on the step grows again.
    job = with_status(job, resumed_from_step=0, checkpoint=CheckpointReport(10))
    status = told(job, make_report(2, step=15, checkpoint_step=5))
    assert (status.resumed_from_step, status.checkpoint) == (0, CheckpointReport(10))


def test_a_first_attempt_begins_at_the_beginning_and_says_nothing_of_it() -> None:
    assert told(JOB, make_report(step=3)).resumed_from_step is None


def test_a_script_with_its_own_checkpoints_counts_from_zero_and_lost_nothing() -> None:
    checkpoint = Checkpoint(volume_claim_name="c", path="saved/*.pt")
    job = second()
    job = replace(job, spec=replace(job.spec, checkpoint=checkpoint))
    assert told(job, make_report(2, step=3)).resumed_from_step is None


def test_a_refused_checkpoint_is_not_durable_any_more() -> None:
    refused = ResumeRefused(190, "the loss differs")
    job = second(checkpoint=CheckpointReport(190), resumed_from_step=190)
    report = make_report(
        2, step=192, checkpoint_step=190, resumed_from_step=190, resume_refused=refused
    )
    status = told(job, report)
    assert (status.resumed_from_step, status.checkpoint) == (0, None)
    # Nor while the worker goes on naming it, and not once it has one of its own.
    again = with_status(job, resumed_from_step=0, checkpoint=None)
    assert told(again, report).checkpoint is None
    own = make_report(2, step=20, checkpoint_step=10, resume_refused=refused)
    assert told(again, own).checkpoint == CheckpointReport(10)


@pytest.mark.parametrize(
    ("known", "report", "moved"),
    [
        (10, make_report(step=11), True),
        (10, make_report(step=10), False),
        (10, make_report(step=10, phase=WorkerPhase.CHECKPOINTING), True),
        (10, make_report(step=10, phase=WorkerPhase.STARTING), True),
        # A new attempt begins before where the last one ended; that is progress all the same.
        (100, make_report(step=3), True),
        (100, make_report(step=0), False),
    ],
)
def test_what_counts_as_progress(known: int, report: Report, moved: bool) -> None:
    """I14: a job that catches up after an interruption is not hung."""
    job = with_status(JOB, measurement=measured(GIB, step=known))
    assert told(job, report).progressed_at == (after(100) if moved else after(0))


def test_measurement_keeps_the_peak_and_the_latest_utilization() -> None:
    status = with_measurement(JOB.status, None, used(4 * GIB, 30.04))
    status = with_measurement(status, None, used(3 * GIB, 50.0, samples=4))
    found = status.measurement
    assert found is not None
    assert (found.memory_bytes, found.utilization_percent, found.samples) == (4 * GIB, 50.0, 10)


def test_the_model_on_which_the_peak_was_seen_is_known_without_reports() -> None:
    """I11: a peak that no GPU of that model can hold is recognized as an agent's lie later."""
    status = with_measurement(JOB.status, None, used(4 * GIB))
    assert status.measurement is not None
    assert status.measurement.device == MODEL
    assert status.placement is not None
    elsewhere = changed(status, placement=replace(status.placement, gpu_model="other"))
    less = with_measurement(elsewhere, None, used(3 * GIB)).measurement
    assert less is not None
    assert less.device == MODEL
    more = with_measurement(elsewhere, None, used(5 * GIB)).measurement
    assert more is not None
    assert more.device == "other"
    said = with_measurement(elsewhere, make_report(device="said"), used(5 * GIB)).measurement
    assert said is not None
    assert said.device == "said"


def test_nothing_measured_changes_nothing() -> None:
    """I14."""
    assert with_measurement(JOB.status, None, None) == JOB.status
    assert with_measurement(JOB.status, make_report(), used(1, samples=0)) == JOB.status


def test_step_loss_and_speed_come_from_the_report() -> None:
    report = make_report(step=7, loss=0.5, steps_total=9, current=Timing(0.2, 5))
    found = with_measurement(JOB.status, report, used(GIB)).measurement
    assert found is not None
    assert (found.step, found.loss, found.steps_total) == (7, 0.5, 9)
    later = with_measurement(with_status(JOB, measurement=found).status, make_report(step=3), None)
    assert later.measurement is not None
    assert (later.measurement.step, later.measurement.loss) == (3, 0.5)


def test_a_speed_up_is_that_of_the_newest_report() -> None:
    """What was measured in an attempt before, perhaps on another GPU, is none of this one's."""
    gain = Speedup(1.42, 1.38, 1.46, 10)
    found = with_measurement(JOB.status, make_report(speedup=gain), used(GIB)).measurement
    assert found is not None
    assert found.speedup == gain
    later = with_measurement(with_status(JOB, measurement=found).status, make_report(step=3), None)
    assert later.measurement is not None
    assert later.measurement.speedup is None


def peak_bytes(seen: int, said: int, held: Reservation | None) -> int:
    joined = joined_usage(used(seen), make_report(current=Timing(0.1, said)), held)
    assert joined is not None
    return joined.memory_peak_bytes


def test_the_first_version_that_a_job_names_stays() -> None:
    """Its profile has an entry for each version: one job writes one of them."""
    status = JOB.status
    for number in range(5):
        report = make_report(step=6 + number, torch_version=f"2.{number}")
        status = with_measurement(status, report, used(GIB))
        assert status.measurement is not None
        assert status.measurement.torch_version == "2.0"


def test_the_worker_sees_peaks_that_the_agent_misses() -> None:
    assert peak_bytes(8 * GIB, 9 * GIB, reserve(8 * GIB)) == 9 * GIB
    assert joined_usage(None, make_report(), None) is None
    assert joined_usage(used(1), None, None) == used(1)


@pytest.mark.promise("I1")
def test_a_worker_is_believed_up_to_a_bound_above_the_agent() -> None:
    """I1: what a worker says takes no memory from its neighbours."""
    lie = 16 * 1024 * GIB
    assert peak_bytes(GIB, lie, reserve(2 * GIB)) == 2 * GIB
    assert peak_bytes(8 * GIB, lie, reserve(8 * GIB)) == 10 * GIB
    assert peak_bytes(8 * GIB, lie, None) == 10 * GIB


def test_a_worker_on_whole_gpus_may_say_that_it_needs_them() -> None:
    """Nobody else has any of it."""
    whole = reserve(24 * GIB, ReservationSource.WHOLE_GPU)
    assert peak_bytes(8 * GIB, 20 * GIB, whole) == 20 * GIB
    assert peak_bytes(8 * GIB, 100 * GIB, whole) == 24 * GIB


@pytest.mark.parametrize(
    ("step", "shrinks"), [(None, False), (499, False), (500, False), (501, True)]
)
def test_after_running_out_of_memory_nothing_is_given_back_before_that_step(
    step: int | None, shrinks: bool
) -> None:
    """I6, I9: the peak that was too much comes again at that step."""
    status = replace(JOB.status, out_of_memory_step=500)
    report = None if step is None else make_report(step=step)
    after, _ = with_measured_reservation(
        JOB, status, report, used(5 * GIB, samples=30), CONFIGURATION, lambda: CARD_BYTES
    )
    assert (after != status) is shrinks


@pytest.mark.parametrize(
    ("phase", "settled"),
    [
        (WorkerPhase.STARTING, False),
        (WorkerPhase.MEASURING, False),
        (WorkerPhase.TUNING, False),
        (WorkerPhase.TRAINING, True),
        (WorkerPhase.EVALUATING, True),
        (WorkerPhase.CHECKPOINTING, True),
    ],
)
def test_the_reservation_follows_once_the_worker_has_settled(
    phase: WorkerPhase, settled: bool
) -> None:
    """I1: what a probe uses is not yet what the job needs."""
    status, events = with_measured_reservation(
        JOB, JOB.status, make_report(phase=phase), used(4 * GIB), CONFIGURATION, lambda: CARD_BYTES
    )
    assert (status != JOB.status) is settled
    assert [event.reason for event in events] == (["ReservationMeasured"] if settled else [])
    if settled:
        assert "measured a peak of 4 GiB and 20 % utilization (10 readings)" in events[0].message
        assert "reserves 4.4 GiB instead of 24 GiB" in events[0].message


@pytest.mark.promise("I1")
def test_a_server_is_measured_by_readings_since_it_was_ready() -> None:
    """Those before may not have its weights, and it reports no peak of its own."""
    report = replace(
        make_report(phase=WorkerPhase.SERVING), current=None, serving=ServingReport(ready=True)
    )
    for is_of_start_up in (True, False):
        usage = replace(used(GIB), is_of_start_up=is_of_start_up)
        status, _ = with_measured_reservation(
            JOB, JOB.status, report, usage, CONFIGURATION, lambda: CARD_BYTES
        )
        assert (status == JOB.status) is is_of_start_up
    training = with_measured_reservation(
        JOB, JOB.status, make_report(), replace(used(GIB), is_of_start_up=True), CONFIGURATION,
        lambda: CARD_BYTES,
    )  # fmt: skip
    assert training[0] != JOB.status, "the worker's own peak has all"


def test_a_worker_without_reports_is_measured_for_longer() -> None:
    few, many = used(GIB, samples=29), used(GIB, samples=30)
    unchanged = with_measured_reservation(
        JOB, JOB.status, None, few, CONFIGURATION, lambda: CARD_BYTES
    )
    assert unchanged == (JOB.status, ())
    status, _ = with_measured_reservation(
        JOB, JOB.status, None, many, CONFIGURATION, lambda: CARD_BYTES
    )
    assert status.reservation is not None
    assert status.reservation.source is ReservationSource.MEASURED


def test_hung_after_the_limit_and_not_at_it() -> None:
    assert is_hung(JOB.status, 60, after(60)) is None
    assert is_hung(JOB.status, 60, after(61)) == 61
    assert is_hung(GPUJobStatus(), 60, after(1e6)) is None


def test_hung_counts_from_when_reports_could_be_heard() -> None:
    """I14: a restarted operator has no reports yet; that is no reason to stop a job."""
    assert is_hung(JOB.status, 60, after(1000), listening_since=after(990)) is None
    assert is_hung(JOB.status, 60, after(1051), listening_since=after(990)) == 61
