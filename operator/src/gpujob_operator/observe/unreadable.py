"""Unreadable objects: counted by kind and reason, and named in the log at a bounded rate.

An unreadable object returns with every event and every list. The memory that keeps it from flooding
the log is bounded.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from gpujob_api.codec import FieldError
from gpujob_api.unknown_fields import unknown_fields
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.read.shapes import identity, mapping
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

REPEAT_SECONDS = 300.0
REMEMBERED_MAX = 4096
_PROBLEM_CHARACTERS_MAX = 300


class BadLine(ValueError):  # noqa: N818 - it is a finding, not a fault of the program
    """A line in a stream of events that is not an event."""


class Unreadable:
    """Counts and logs unreadable objects. Never raises."""

    def __init__(self, metrics: Metrics, clock: Callable[[], datetime]) -> None:
        self._metrics = metrics
        self._clock = clock
        self._said: OrderedDict[tuple[str, str], datetime] = OrderedDict()

    def note(self, kind: str, name: str, error: Exception) -> None:
        """Counts and logs an object. `name` is empty for an object without a readable name."""
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
    """Returns one of a closed set: line, metadata, field, number, nesting, other."""
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


ViewT = TypeVar("ViewT")


class UnknownFields:
    """The status fields of one kind that this version does not know.

    The operator keeps them when it replaces a stored status, because a newer version may have
    written them. `status` is the noun of the kind's status. Every field of an unreadable job is
    unknown.
    """

    def __init__(self, status: type) -> None:
        self._status = status
        # By UID. Bounded by the number of objects.
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, uid: str) -> dict[str, Any]:
        return self._found.get(uid, {})

    def noting(
        self, parse: Callable[[Mapping[str, Any]], ViewT]
    ) -> Callable[[Mapping[str, Any]], ViewT]:
        """Returns the parser, extended to record the unknown fields of its input."""

        def read(manifest: Mapping[str, Any]) -> ViewT:
            view = parse(manifest)
            uid = identity(manifest).uid
            status = mapping(manifest.get("status"))
            is_unread = isinstance(view, InvalidJob)
            found = dict(status) if is_unread else unknown_fields(self._status, status)
            if found:
                self._found[uid] = found
            else:
                self._found.pop(uid, None)
            return view

        return read

    def forget(self, uid: str) -> None:
        self._found.pop(uid, None)
