"""Decides how long a refused write waits before its next try, for each object separately."""

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered

BACKOFF_SECONDS = 1.0
BACKOFF_SECONDS_MAX = 60.0
OBJECTS_MAX = 10_000

# verb, plural, namespace, name
Target = tuple[str, str, str, str]


@dataclass(slots=True)
class _Refused:
    failures: int
    until: float


class Backoff:
    """The wait doubles with each consecutive failure, with jitter. A success resets it."""

    def __init__(
        self,
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._monotonic = monotonic
        self._uniform = uniform
        self._refused: OrderedDict[Target, _Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def seconds_left(self, target: Target) -> float:
        """Returns the seconds until the next try is allowed. 0 if it is allowed now."""
        known = self._refused.get(target)
        return 0.0 if known is None else max(0.0, known.until - self._monotonic())

    def failed(self, target: Target) -> None:
        known = self._refused.pop(target, None)
        failures = 1 if known is None else known.failures + 1
        pause = backoff_seconds(BACKOFF_SECONDS, failures - 1, BACKOFF_SECONDS_MAX)
        until = self._monotonic() + jittered(pause, self._uniform)
        self._refused[target] = _Refused(failures, until)
        if len(self._refused) > OBJECTS_MAX:
            self._refused.popitem(last=False)

    def succeeded(self, target: Target) -> None:
        self._refused.pop(target, None)
