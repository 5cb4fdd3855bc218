"""One decision of all processes that train together, made where they found each other: in the store
of their process group.

The first process measures and proposes; every process says what of it holds for itself; what holds
for all is put in force by all. No collective is involved and every wait has an end: who waits in
vain writes "nothing" as the decision, and the store keeps the first decision that is written, so
that processes that are late or gone cannot lead to two of them.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.settings import TunedSettings
from gpujob_worker.tune.registry import OWN

# For all to come to where one waits; they come from the same step.
COME_SECONDS = 60.0
# For the first process to measure, beyond the time for tuning; for it to compile.
MEASURE_SECONDS = 300.0
COMPILE_SECONDS = 600.0
# For all to look at what was proposed; who waits for the decision waits longer.
CHECK_SECONDS = 120.0
DECIDE_SECONDS = CHECK_SECONDS + 30.0
POLL_SECONDS = 0.02

Result = TypeVar("Result")


class Store(Protocol):
    """What is used of torch.distributed's stores."""

    def set(self, key: str, value: str, /) -> None: ...
    def get(self, key: str, /) -> bytes: ...
    def check(self, keys: list[str], /) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...


class Consensus:
    """Rounds of proposing and deciding; every process takes part in the same ones."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._rank = rank
        self.size = size
        self._cancelled = cancelled
        self._clock = clock
        self._pause = pause
        self._round = 0
        self._came: bool | None = None

    @property
    def leads(self) -> bool:
        return self._rank == 0

    def come(self) -> bool:
        """Says that this process is here; the first one waits for all. False: not all came."""
        if self._came is None:
            self._came = _try(self._come) or False
        return self._came

    def _come(self) -> bool:
        self._store.set(self._key(f"here/{self._rank}"), "1")
        if not self.leads:
            return True
        return self._wait([f"here/{rank}" for rank in range(self.size)], COME_SECONDS)

    def propose(self, tuned: TunedSettings) -> None:
        _try(lambda: self._store.set(self._key("proposal"), _text(tuned)))

    def proposal(self, seconds: float = MEASURE_SECONDS) -> TunedSettings | None:
        """What the first process proposes; None where it does not within `seconds`."""
        return _try(lambda: self._proposal(seconds))

    def _proposal(self, seconds: float) -> TunedSettings | None:
        if not self.come() or not self._wait(["proposal"], seconds):
            return None
        return _tuned(self._store.get(self._key("proposal")))

    def settle(self, mine: TunedSettings) -> TunedSettings:
        """What all processes put in force, with what is each one's own as it is in `mine`."""
        decided = _try(lambda: self._settle(mine)) or TunedSettings()
        self._round += 1
        self._came = None
        return replace(decided, **{name: getattr(mine, name) for name in OWN})

    def _settle(self, mine: TunedSettings) -> TunedSettings | None:
        self._store.set(self._key(f"mine/{self._rank}"), _text(mine))
        decision = TunedSettings()
        if self.leads:
            everyone = [f"mine/{rank}" for rank in range(self.size)]
            if self._wait(everyone, CHECK_SECONDS):
                decision = common([_tuned(self._store.get(self._key(name))) for name in everyone])
        else:
            self._wait(["decision"], DECIDE_SECONDS)
        return _tuned(self._store.compare_set(self._key("decision"), "", _text(decision)))

    def ask_roll_back(self, at: int, why: str) -> None:
        """Asks all to go back to plain settings, after the check that follows check `at`."""
        _try(lambda: self._store.compare_set("roll-back", "", json.dumps([at, why])))

    def roll_back_due(self, at: int) -> str | None:
        """Why to go back now, at check `at`. What was asked for at this very check has to wait:
        others may have passed it already, but nobody is a whole check ahead of another."""
        return _try(lambda: self._roll_back_due(at))

    def _roll_back_due(self, at: int) -> str | None:
        if not self._store.check(["roll-back"]):
            return None
        asked, why = json.loads(self._store.get("roll-back"))
        return str(why) if asked < at else None

    def _key(self, name: str) -> str:
        return f"{self._round}/{name}"

    def _wait(self, names: Sequence[str], seconds: float) -> bool:
        """Looks again and again instead of waiting in the store, where no signal is heard."""
        keys, ends = [self._key(name) for name in names], self._clock() + seconds
        while not self._store.check(keys):
            if self._clock() >= ends or self._cancelled():
                return False
            self._pause(POLL_SECONDS)
        return True


def _try(ask: Callable[[], Result]) -> Result | None:
    """None where the store is gone, and with it the process that keeps it: the run ends."""
    try:
        return ask()
    except (RuntimeError, OSError, ValueError, FieldError):
        return None


def common(all_settings: Sequence[TunedSettings]) -> TunedSettings:
    """What is alike in all; the script's own way where it is not."""
    plain = TunedSettings()
    kept: dict[str, Any] = {}
    for field in fields(TunedSettings):
        values = {getattr(settings, field.name) for settings in all_settings}
        kept[field.name] = values.pop() if len(values) == 1 else getattr(plain, field.name)
    if not kept["compile"]:
        kept["regional_compile"] = kept["cuda_graphs"] = False
    return TunedSettings(**kept)


def _text(tuned: TunedSettings) -> str:
    return json.dumps(encode(tuned), sort_keys=True)


def _tuned(text: bytes) -> TunedSettings:
    return decode(TunedSettings, json.loads(text), "agreement")
