"""What becomes of a job under which one GPU after the other becomes unhealthy."""

import pytest

from gpujob_api.gpujob import Counters, StopReason
from gpujob_api.report import CheckpointReport
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.lifecycle.retry import interrupted
from gpujob_operator.decide.measurement.reservation import takes_whole_gpus
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import after, make_job, running, with_status

CONFIGURATION = Configuration()
INTERRUPTION = Outcome(AttemptEnd.INTERRUPTED)
JOB = with_status(
    running(make_job(), stop=StopReason("GPUUnhealthy", "because", after(30))),
    checkpoint=CheckpointReport(10),
    attempt_started_at=after(0),
)


@pytest.mark.promise("I15")
@pytest.mark.parametrize(("seconds", "gpus"), [(60, 3), (3700, 64)])
def test_a_job_under_which_gpus_break_gives_up_before_it_has_taken_them_all(
    seconds: float, gpus: int
) -> None:
    """A checkpoint that stays where it is proves nothing. Under long runs GPUs break by chance."""
    job, taken, decision = JOB, 0, None
    while taken < 64 and (decision is None or decision.retry):
        decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(seconds))
        job = with_status(job, counters=decision.counters)
        taken += 1
    assert decision is not None
    assert (taken, decision.retry) == (gpus, gpus == 64)
    if not decision.retry:
        assert decision.message.startswith("3 GPUs in a row became unhealthy under it")


@pytest.mark.parametrize(("seconds", "counted"), [(60, 2), (3700, 0)])
def test_a_job_that_runs_for_long_without_breaking_a_gpu_is_none_that_breaks_them(
    seconds: float, counted: int
) -> None:
    """It shares GPUs again in its next attempt. A short one tells nothing."""
    stop = StopReason("Preempted", "because", after(30))
    job = with_status(JOB, stop=stop, counters=Counters(unhealthy_gpus=2))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(seconds))
    assert decision.counters.unhealthy_gpus == counted


@pytest.mark.promise("I15")
def test_a_job_under_which_two_gpus_broke_gets_the_next_one_for_itself() -> None:
    """Or else jobs that were beside it each time would be given up with it."""
    job = JOB
    wholes: list[bool] = []
    messages: list[str] = []
    for _ in range(2):
        decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
        job = with_status(job, counters=decision.counters)
        wholes.append(takes_whole_gpus(job, CONFIGURATION))
        messages.append(decision.message)
    assert wholes == [False, True]
    assert messages == [
        "rescheduling",
        "rescheduling on GPUs of its own, because 2 GPUs in a row became unhealthy under it",
    ]
