"""Decides whether a job is retried after a failure or an interruption, and when."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import Counters, GPUJob
from gpujob_api.report import FailureClass
from gpujob_api.settings import Task
from gpujob_operator.decide.lifecycle.outcome import Outcome
from gpujob_operator.decide.lifecycle.repeated import is_repeated
from gpujob_operator.decide.lifecycle.start_refusals import pause_seconds
from gpujob_operator.decide.measurement.reservation import UNHEALTHY_GPUS_SHARED_MAX
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.protection import durable_checkpoint, why_unprotected
from gpujob_operator.decide.model.stop_reasons import GPU_UNHEALTHY, SUSPENDED, rule_of

# A job fails after more consecutive interruptions than this without growth of the durable step,
# because the cause follows the job.
FRUITLESS_INTERRUPTIONS_MAX = 50
# After this many of them, each wait is longer.
FRUITLESS_AT_ONCE_MAX = 3
# The limit of consecutive attempts under which a GPU soon became unhealthy. A program can cause
# this, and would break one GPU after the other. In the last attempt the job had the GPU for itself.
UNHEALTHY_GPUS_MAX = UNHEALTHY_GPUS_SHARED_MAX + 1
SOON_SECONDS = 3600.0
# An attempt that lasts has saved something, or answered requests.
LASTING_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """What happens next: a retry at a time, or failure."""

    counters: Counters
    retry: bool
    next_attempt_at: datetime | None
    message: str


def retry_decision(
    job: GPUJob, outcome: Outcome, configuration: Configuration, now: datetime
) -> RetryDecision:
    """Decides whether a failed attempt is retried. User errors before the first step are not."""
    failure = outcome.failure
    assert failure is not None, "only a failed attempt has a decision on its retry"
    counters = _count(job.status.counters, failure.failure_class)
    retries = counters.errors + counters.out_of_memory + counters.hung
    limit = job.spec.retry.limit
    if failure.failure_class is FailureClass.USER_ERROR and not _made_progress(job, outcome):
        message = "failed before the first training step; not retrying"
        return RetryDecision(counters, False, None, message)
    if retries > limit:
        return RetryDecision(
            counters, False, None, f"failed {retries} times, retry.limit is {limit}"
        )
    if is_repeated(job, outcome):
        last = job.status.last_error
        step = f"at step {last.step}" if last is not None and last.step else "before any known step"
        message = (
            f"the attempt before failed {step} with the same error, so a third one would too: not "
            f"retrying (retry {retries} of {limit} was left)"
        )
        return RetryDecision(counters, False, None, message)
    delay = backoff_seconds(
        configuration.retry_backoff_seconds, retries - 1, configuration.retry_backoff_max_seconds
    )
    message = f"retry {retries} of {limit} in {delay:.0f} s"
    return RetryDecision(counters, True, now + timedelta(seconds=delay), message)


def interrupted(
    job: GPUJob, outcome: Outcome, configuration: Configuration, now: datetime
) -> RetryDecision:
    """Decides after an interruption, which is not the job's fault.

    The job is retried at once, but never in a tight loop.
    """
    if rule_of(job.status.stop).is_refusal or outcome.refusal is not None:
        pause = pause_seconds(job.status.start_refusals, configuration)
        when = f"retry in {pause:.0f} s" if pause else "retry on another node"
        return RetryDecision(job.status.counters, True, now + timedelta(seconds=pause), when)
    before, for_others = job.status.counters, rule_of(job.status.stop).for_others
    lost = outcome.lost_node != ""
    counters = replace(
        before,
        interruptions=before.interruptions + (not lost),
        node_lost=before.node_lost + lost,
        preemptions=before.preemptions + for_others,
        unhealthy_gpus=_unhealthy_gpus(job, outcome, now),
        fruitless=_fruitless(job, configuration, now),
    )
    if counters.unhealthy_gpus >= UNHEALTHY_GPUS_MAX:
        message = (
            f"{counters.unhealthy_gpus} GPUs in a row became unhealthy under it, each within "
            f"{SOON_SECONDS:.0f} s of the attempt's start: not tried again"
        )
        return RetryDecision(counters, False, None, message)
    if counters.fruitless and is_repeated(job, outcome):
        message = "the attempt before ended alike, so a third one would too: not tried again"
        return RetryDecision(counters, False, None, message)
    if counters.fruitless > FRUITLESS_INTERRUPTIONS_MAX:
        saved = durable_checkpoint(job, configuration)
        durable = f"the durable step stayed {saved.step}" if saved is not None else "no checkpoint"
        message = f"interrupted {counters.fruitless} times in a row without progress ({durable})"
        return RetryDecision(counters, False, None, message)
    delay = _delay_seconds(job, counters.fruitless, configuration, now)
    message = "rescheduling"
    if job.spec.suspend:
        message = "waits until spec.suspend is false"
    if counters.unhealthy_gpus >= UNHEALTHY_GPUS_SHARED_MAX:
        message += (
            f" on GPUs of its own, because {counters.unhealthy_gpus} GPUs in a row became "
            "unhealthy under it"
        )
    return RetryDecision(counters, True, now + timedelta(seconds=delay), message)


def _delay_seconds(
    job: GPUJob, fruitless: int, configuration: Configuration, now: datetime
) -> float:
    backoff = configuration.retry_backoff_seconds
    more = fruitless - FRUITLESS_AT_ONCE_MAX
    if more > 0:
        return backoff_seconds(backoff, more - 1, configuration.retry_backoff_max_seconds)
    ended_at_once = (now - (job.status.attempt_started_at or now)).total_seconds() < backoff
    return backoff if ended_at_once else 0.0


def _fruitless(job: GPUJob, configuration: Configuration, now: datetime) -> int:
    """Returns the number of consecutive interruptions without progress, including this one.

    Interruptions for other jobs or by the user do not count, because the job does not cause them.
    """
    if made_progress(job, configuration, now):
        return 0
    stop, before = job.status.stop, job.status.counters.fruitless
    asked = stop is not None and (rule_of(stop).for_others or stop.reason == SUSPENDED)
    return before if asked else before + 1


def made_progress(job: GPUJob, configuration: Configuration, now: datetime) -> bool:
    """Returns whether the durable step grew since an attempt was last interrupted.

    A checkpoint alone is no progress, because a job may return to the same one forever. A server,
    and a script with checkpoints of its own on a volume, report no durable step. They make progress
    if the attempt lasts.
    """
    own = job.spec.checkpoint.path is not None and why_unprotected(job, configuration) is None
    if own or job.spec.optimize.task is Task.SERVING:
        started = job.status.attempt_started_at
        return started is not None and (now - started).total_seconds() > LASTING_SECONDS
    saved, before = durable_checkpoint(job, configuration), job.status.interrupted_at_step
    return saved is not None and (before is None or saved.step > before)


def _unhealthy_gpus(job: GPUJob, outcome: Outcome, now: datetime) -> int:
    """Returns how many consecutive attempts ended because a GPU soon became unhealthy.

    An attempt that ran for longer ends the row for any reason. A shorter attempt that ended
    otherwise does not change the number.
    """
    stop, started = job.status.stop, job.status.attempt_started_at
    if started is not None and (now - started).total_seconds() > SOON_SECONDS:
        return 0
    broke = outcome.gpu_broke or (stop is not None and stop.reason == GPU_UNHEALTHY)
    return job.status.counters.unhealthy_gpus + broke


def _made_progress(job: GPUJob, outcome: Outcome) -> bool:
    measured = job.status.measurement is not None and job.status.measurement.step > 0
    return measured or outcome.step > 0 or job.status.checkpoint is not None


def _count(counters: Counters, failure_class: FailureClass) -> Counters:
    """Counts the failure. A lost node that a worker itself reports counts as an error."""
    if failure_class is FailureClass.OUT_OF_MEMORY:
        return replace(counters, out_of_memory=counters.out_of_memory + 1)
    if failure_class is FailureClass.HUNG:
        return replace(counters, hung=counters.hung + 1)
    return replace(counters, errors=counters.errors + 1)
