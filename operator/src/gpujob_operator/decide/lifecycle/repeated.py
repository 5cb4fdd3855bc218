"""Decides whether a failure repeats the one before: the same error at the same step.

A third attempt would end alike. Errors that may pass by themselves, such as a network error, a full
disk, or memory that others took, are retried as often as the user allows. An interruption between
two failures does not matter, unless the attempt came further.
"""

import re

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, LastError
from gpujob_api.report import FailureClass
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.lifecycle.transient import may_pass

_MAY_REPEAT = frozenset({FailureClass.USER_ERROR, FailureClass.DATA, FailureClass.UNKNOWN})
TEXT_CHARACTERS_MAX = 512
# The parts that differ between two occurrences of one error: moments, addresses, processes and
# random names.
_MOMENT = re.compile(
    r"\d{4}-\d\d-\d\d[T ]?|\d\d:\d\d:\d\d(?:[.,]\d+)?Z?|0x[0-9a-fA-F]+"
    r"|\bpid(?:\(s\))?[ :=]*\d+(?:, \d+)*|/tmp/[\w./-]+"
    r"|\b(?=[0-9a-f-]*\d)[0-9a-f]{8,}(?:-[0-9a-f]{4,}){0,4}\b"
)


def is_repeated(job: GPUJob, outcome: Outcome) -> bool:
    error = error_of(outcome)
    return error is not None and error == job.status.last_error


def with_last_error(status: GPUJobStatus, outcome: Outcome) -> GPUJobStatus:
    """Returns the status that records the error.

    An interruption without one changes nothing, except that an error is over once an attempt came
    past its step.
    """
    if outcome.end is not AttemptEnd.FAILED and not outcome.error:
        known, reached = status.last_error, _reached_step(status, outcome)
        return (
            status if known is None or reached <= known.step else changed(status, last_error=None)
        )
    return changed(status, last_error=error_of(outcome))


def _reached_step(status: GPUJobStatus, outcome: Outcome) -> int:
    measured = status.measurement.step if status.measurement is not None else 0
    return max(outcome.step, measured)


def error_of(outcome: Outcome) -> LastError | None:
    """Returns the error that an attempt failed with, or None if it is unknown or may pass."""
    failure = outcome.failure
    passes = failure is not None and failure.failure_class not in _MAY_REPEAT
    if passes or not outcome.error:
        return None
    if may_pass(outcome.error):
        return None
    return LastError(outcome.step, _MOMENT.sub("#", outcome.error)[:TEXT_CHARACTERS_MAX])
