"""The age of the last sign of life of each part of the operator, and parts that gave none yet."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

CYCLE_AGE_SECONDS_MAX = 120.0
WATCH_AGE_SECONDS_MAX = 300.0
# Restarting a part has not helped for this long.
FAILING_SECONDS_MAX = 300.0


class Watched(Protocol):
    """A watch. `alive_at` is the monotonic time of its last sign of life."""

    alive_at: float
    listed: bool

    @property
    def name(self) -> str: ...


class KopfWatches(Protocol):
    """The kinds that kopf follows."""

    def silent_seconds(self) -> Mapping[str, float]: ...

    def unlisted(self) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class LifeSigns:
    """The signs of life of all parts.

    `cycle_at` returns the monotonic time of the last cycle's end. `failing` returns the parts that
    are restarted again and again, with seconds.
    """

    cycle_at: Callable[[], float]
    watches: Sequence[Watched]
    kopf: KopfWatches
    failing: Callable[[], Mapping[str, float]]
    monotonic: Callable[[], float] = time.monotonic

    def ages(self) -> dict[str, tuple[float, float]]:
        """Returns the seconds since each part's last sign of life, and the seconds after which it
        is late.
        """
        silent = self._silent_seconds().items()
        return {
            "cycle": (self.monotonic() - self.cycle_at(), CYCLE_AGE_SECONDS_MAX),
            **{f"watch of {kind}": (age, WATCH_AGE_SECONDS_MAX) for kind, age in silent},
            **{
                f"{part} failing": (age, FAILING_SECONDS_MAX)
                for part, age in self.failing().items()
                if age
            },
        }

    def unheard(self) -> list[str]:
        """Returns what readiness waits for, in words."""
        unlisted = {one.name for one in self.watches if not one.listed} | set(self.kopf.unlisted())
        silent = self._silent_seconds().items()
        late = (kind for kind, age in silent if age > WATCH_AGE_SECONDS_MAX)
        return [f"a list of {kind}" for kind in sorted(unlisted)] + [
            f"a sign of life from {kind}" for kind in late
        ]

    def _silent_seconds(self) -> dict[str, float]:
        """Returns the silence by kind, including kopf's. Bookmarks are the sign of life of a quiet
        watch.
        """
        now = self.monotonic()
        own = {one.name: now - one.alive_at for one in self.watches}
        return own | dict(self.kopf.silent_seconds())
