"""Unreadable objects: counted by kind and reason, and named in the log at a bounded rate.

An unreadable object returns with every event and every list. The memory that keeps it from flooding
the log is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime

from gpujob_api.codec import FieldError
from gpujob_operator.logs import Log
from gpujob_operator.metrics import Metrics

log = Log(__name__)

REPEAT_SECONDS = 300.0
REMEMBERED_MAX = 4096
_PROBLEM_CHARACTERS_MAX = 300


class BadLine(ValueError):  # noqa: N818 - it is a finding, not a fault of the program
    """A line in a stream of events that is no event."""


class Unreadable:
    """Counts and logs unreadable objects. Never raises."""

    def __init__(self, metrics: Metrics, clock: Callable[[], datetime]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._said: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def note(self, kind: str, name: str, error: Exception) -> None:
        """`name` is empty for an object without a readable name."""
        reason = reason_of(error)
        self._metrics.unreadable.labels(kind, reason).inc()
        if self._may_say((kind, name)):
            problem = f"{type(error).__name__}: {_words(error)}"[:_PROBLEM_CHARACTERS_MAX]
            log.warning("object ignored", kind=kind, name=name, reason=reason, problem=problem)

    def _may_say(self, key: tuple[str, str]) -> bool:
        now = self._clock()
        before = self._said.get(key)
        if before is not None and abs((now - before).total_seconds()) < REPEAT_SECONDS:
            return False
        self._said[key] = now
        self._said.move_to_end(key)
        if len(self._said) > REMEMBERED_MAX:
            self._said.popitem(last=False)
        return True


def reason_of(error: Exception) -> str:
    """One of a closed set: line, metadata, field, number, nesting, other."""
    if isinstance(error, BadLine):
        return "line"
    if isinstance(error, FieldError):
        return "metadata" if error.field.startswith("metadata") else "field"
    if isinstance(error, ArithmeticError):
        return "number"
    return "nesting" if isinstance(error, RecursionError) else "other"


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception:
        return ""
