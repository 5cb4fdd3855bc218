"""Makes one decision in all processes that train together, through the store of their process
group.

The first process measures and proposes. Every process says which part of the proposal holds for
itself. What holds for all is applied by all. No collective is involved, and every wait ends: a
process whose wait times out writes "nothing" as the decision. The store keeps the first decision
that is written, so that late or lost processes cannot lead to two decisions.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.settings import TunedSettings
from gpujob_worker.checkpoint.ballot import KeyValues
from gpujob_worker.tune.registry import OWN

# Time for all processes to arrive; they come from the same step.
COME_SECONDS = 60.0
# Time for the first process to measure, beyond the tuning budget, and to compile.
MEASURE_SECONDS = 300.0
COMPILE_SECONDS = 600.0
# Time for all to check a proposal; waiting for the decision takes longer.
CHECK_SECONDS = 120.0
DECIDE_SECONDS = CHECK_SECONDS + 30.0
POLL_SECONDS = 0.02

Result = TypeVar("Result")


class Consensus:
    """Rounds of proposals and decisions. Every process takes part in the same rounds."""

    def __init__(
        self,
        store: KeyValues,
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
        """Announces this process. The first process waits for all. False if not all arrived."""
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
        """The proposal of the first process; None if it makes none within `seconds`."""
        return _try(lambda: self._proposal(seconds))

    def _proposal(self, seconds: float) -> TunedSettings | None:
        if not self.come() or not self._wait(["proposal"], seconds):
            return None
        return _tuned(self._store.get(self._key("proposal")))

    def settle(self, mine: TunedSettings) -> TunedSettings:
        """What all processes apply, with the values of `mine` for what each process decides by
        itself.
        """
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
        """Requests that all processes roll back after the check that follows check `at`."""
        _try(lambda: self._store.compare_set("roll-back", "", json.dumps([at, why])))

    def roll_back_due(self, at: int) -> str | None:
        """Why to roll back now, at check `at`. A request made at this very check has to wait: other
        processes may have passed it already, but none is a whole check ahead.
        """
        return _try(lambda: self._roll_back_due(at))

    def _roll_back_due(self, at: int) -> str | None:
        if not self._store.check(["roll-back"]):
            return None
        asked, why = json.loads(self._store.get("roll-back"))
        return str(why) if asked < at else None

    def _key(self, name: str) -> str:
        return f"{self._round}/{name}"

    def _wait(self, names: Sequence[str], seconds: float) -> bool:
        """Polls instead of waiting in the store, where no signal is handled."""
        keys, ends = [self._key(name) for name in names], self._clock() + seconds
        while not self._store.check(keys):
            if self._clock() >= ends or self._cancelled():
                return False
            self._pause(POLL_SECONDS)
        return True


def _try(ask: Callable[[], Result]) -> Result | None:
    """None if the store is gone, and with it the process that keeps it: the run ends."""
    try:
        return ask()
    except (RuntimeError, OSError, ValueError, FieldError):
        return None


def common(all_settings: Sequence[TunedSettings]) -> TunedSettings:
    """The values that are equal in all processes; the script's own value for the others."""
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
