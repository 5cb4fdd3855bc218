"""Makes one decision in all processes that train together, through the store of their process
group.

The first process measures and proposes. Every process writes which part of the proposal holds for
each of its modules. All apply what holds for all. Modules are identified by number
(`inject.ddp.number_of`), so that the order in which a process calls them cannot mix them up. No
collective is involved, and every wait ends: a process whose wait times out writes "nothing" as the
decision. The store keeps the first decision that is written, so late or lost processes cannot lead
to two decisions.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.settings import TunedSettings
from gpujob_worker.checkpoint.ballot import KeyValues
from gpujob_worker.tune.registry import OWN

# Seconds for all processes to arrive. They come from the same step.
COME_SECONDS = 60.0
# Seconds for the first process to measure beyond the tuning budget, and to compile.
MEASURE_SECONDS = 300.0
COMPILE_SECONDS = 600.0
# Seconds for all to check a proposal. Waiting for the decision takes longer.
CHECK_SECONDS = 120.0
DECIDE_SECONDS = CHECK_SECONDS + 30.0
POLL_SECONDS = 0.02

# The number of modules that are in no numbered wrapper.
UNNUMBERED = 0
# The round after a measurement. Known settings have one round per module. The last round follows a
# compilation in the middle of the run.
MEASURED = "measured"
COMPILED = "compiled"

_YES, _NO = "yes", "no"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Choices:
    """The settings that one process found safe, by the number of the module.

    `first` is the module that is measured. The others take over a part of its settings.
    """

    first: int
    settings: Mapping[int, TunedSettings]


class Consensus:
    """Decides in rounds: one after the measurement, or one per module whose settings are known.
    Code that is compiled later has one more.
    """

    def __init__(
        self,
        store: KeyValues,
        rank: int,
        size: int,
        *,
        compiles: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """With `compiles`, checking a proposal may take a compilation."""
        self._store = store
        self._rank = rank
        self.size = size
        self._compile_seconds = COMPILE_SECONDS if compiles else 0.0
        self._cancelled = cancelled
        self._clock = clock
        self._pause = pause
        self._came: bool | None = None
        # How often each question was asked. A later model asks it again.
        self._asked: Counter[str] = Counter()

    @property
    def leads(self) -> bool:
        return self._rank == 0

    def come(self) -> bool:
        """Announces this process; the first process waits for all. Returns False if not all
        arrived.
        """
        if self._came is None:
            self._came = _try(self._come) or False
        return self._came

    def _come(self) -> bool:
        self._store.set(f"here/{self._rank}", "1")
        if not self.leads:
            return True
        return self._wait([f"here/{rank}" for rank in range(self.size)], COME_SECONDS)

    def propose(self, number: int, tuned: TunedSettings, name: str = MEASURED) -> None:
        """Proposes `tuned`, which was measured on the module `number`, in the round `name`."""
        text = _text(Choices(number, {number: tuned}))
        _try(lambda: self._store.set(f"{name}/proposal", text))

    def proposal(
        self, number: int, seconds: float = MEASURE_SECONDS, name: str = MEASURED
    ) -> TunedSettings | None:
        """Returns the proposal of the first process.

        None if there is none within `seconds`, or if another module than `number` was measured.
        """
        return _try(lambda: self._proposal(f"{name}/proposal", number, seconds))

    def _proposal(self, key: str, number: int, seconds: float) -> TunedSettings | None:
        if not self.come() or not self._wait([key], seconds):
            return None
        return _choices(self._store.get(key)).settings.get(number)

    def settle(self, name: str, mine: Choices) -> dict[int, TunedSettings]:
        """Returns what all processes apply to each module of `mine`.

        Settings that each process decides for itself keep the values of `mine`. `name` is
        `MEASURED`, `COMPILED` or the module's own round (`known_round`).
        """
        decided = _try(lambda: self._settle(name, mine).settings) or {}
        return {
            number: replace(
                decided.get(number, TunedSettings()), **{own: getattr(tuned, own) for own in OWN}
            )
            for number, tuned in mine.settings.items()
        }

    def _settle(self, name: str, mine: Choices) -> Choices:
        key = f"{name}/decision"
        everyone = [f"{name}/mine/{rank}" for rank in range(self.size)]
        self._store.set(everyone[self._rank], _text(mine))
        decision = Choices(mine.first, {})
        more = COMPILE_SECONDS if name == COMPILED else self._compile_seconds
        if not self.leads:
            # A process without a call to try did not wait for the first process to compile.
            first = COMPILE_SECONDS + MEASURE_SECONDS if name == COMPILED else 0.0
            self._wait([key], DECIDE_SECONDS + first + more)
        elif not self._store.check([key]) and self._wait(everyone, CHECK_SECONDS + more):
            decision = decide([_choices(self._store.get(one)) for one in everyone])
        return _choices(self._store.compare_set(key, "", _text(decision)))

    def agree(self, name: str, *, yes: bool, seconds: float = CHECK_SECONDS) -> bool:
        """Returns whether every process answers yes within `seconds`. The result is the same in
        all.
        """
        self._asked[name] += 1
        question = f"{name}/{self._asked[name]}"
        return _try(lambda: self._agree(question, yes=yes, seconds=seconds)) or False

    def _agree(self, name: str, *, yes: bool, seconds: float) -> bool:
        key, decision = f"{name}/agreed", _NO
        votes = [f"{name}/says/{rank}" for rank in range(self.size)]
        self._store.set(votes[self._rank], _YES if yes else _NO)
        if not self.leads:
            self._wait([key], seconds + DECIDE_SECONDS - CHECK_SECONDS)
        elif self._wait(votes, seconds):
            everyone = {self._store.get(vote).decode() for vote in votes}
            decision = _YES if everyone == {_YES} else _NO
        return self._store.compare_set(key, "", decision).decode() == _YES

    def ask_roll_back(self, at: int, why: str, only: str = "") -> None:
        """Requests that all processes roll back after the check that follows check `at`. With
        `only`, they roll back this setting alone.
        """
        _try(lambda: self._store.compare_set(f"roll-back/{only}", "", json.dumps([at, why])))

    def roll_back_due(self, at: int, only: str = "") -> str | None:
        """Returns why to roll back now, at check `at`, or None."""
        return self._due(f"roll-back/{only}", at)

    def ready_to_compile(self) -> None:
        """Announces that this process has no reason against a compilation in the middle of the
        run.
        """
        _try(lambda: self._store.set(self._ready[self._rank], "1"))

    def plan_compilation(self, at: int) -> None:
        """Makes all processes compile after the check that follows check `at`, if all are ready."""
        _try(lambda: self._plan_compilation(at))

    @property
    def _ready(self) -> list[str]:
        return [f"{COMPILED}/ready/{rank}" for rank in range(self.size)]

    def _plan_compilation(self, at: int) -> None:
        if self._store.check(self._ready):
            self._store.compare_set(f"{COMPILED}/plan", "", json.dumps([at, "compile"]))

    def compilation_due(self, at: int) -> bool:
        """Returns whether all record a call now, at check `at`, and compile after it."""
        return self._due(f"{COMPILED}/plan", at) is not None

    def plan_look(self, number: int, at: int) -> None:
        """Makes all gather for the look `number` after the check that follows check `at`."""
        _try(lambda: self._store.compare_set(f"look/{number}", "", json.dumps([at, "look"])))

    def look_due(self, number: int, at: int) -> bool:
        """Returns whether all gather for the look now, at check `at`."""
        return self._due(f"look/{number}", at) is not None

    def _due(self, key: str, at: int) -> str | None:
        """Returns the reason of a request that is due, or None.

        A request made at this very check has to wait. Other processes may have passed it already,
        but none is a whole check ahead.
        """
        return _try(lambda: self._asked_before(key, at))

    def _asked_before(self, key: str, at: int) -> str | None:
        if not self._store.check([key]):
            return None
        asked, what = json.loads(self._store.get(key))
        return str(what) if asked < at else None

    def _wait(self, keys: Sequence[str], seconds: float) -> bool:
        """Polls instead of waiting in the store, because no signal is handled there."""
        ends = self._clock() + seconds
        while not self._store.check(list(keys)):
            if self._clock() >= ends or self._cancelled():
                return False
            self._pause(POLL_SECONDS)
        return True


def _try(ask: Callable[[], Result]) -> Result | None:
    """Returns None if the store is gone. Its process is gone too, so the run ends."""
    try:
        return ask()
    except (RuntimeError, OSError, ValueError, FieldError):
        return None


def known_round(number: int) -> str:
    """Returns the round in which one module's known settings are decided, whenever it is called."""
    return f"known/{number}"


def decide(everyone: Sequence[Choices]) -> Choices:
    """Returns what all have in common, by module. A module that one process does not name is left
    out.

    Nothing is decided if processes measured different modules. If they share nothing for the first
    module, only that one is decided, because the other modules took over its settings.
    """
    first = everyone[0].first
    if any(one.first != first for one in everyone):
        return Choices(first, {})
    named = set(everyone[0].settings).intersection(*(one.settings for one in everyone))
    found = {number: common([one.settings[number] for one in everyone]) for number in named}
    of_first = found.get(first, TunedSettings())
    if _shares_nothing(of_first):
        return Choices(first, {first: of_first})
    return Choices(first, found)


def _shares_nothing(tuned: TunedSettings) -> bool:
    """Returns whether no setting of the module is shared. The optimizer's kernel belongs to no
    module.
    """
    plain = TunedSettings()
    own = {name: getattr(plain, name) for name in OWN}
    kernel = {name: getattr(plain, name) for name in ("fused_optimizer", "optimizers_judged")}
    return replace(tuned, **kernel, **own) == plain


def common(all_settings: Sequence[TunedSettings]) -> TunedSettings:
    """Returns the values that are equal in all processes, and the script's own value for the
    others.
    """
    plain = TunedSettings()
    kept: dict[str, Any] = {}
    for field in fields(TunedSettings):
        values = {getattr(settings, field.name) for settings in all_settings}
        kept[field.name] = values.pop() if len(values) == 1 else getattr(plain, field.name)
    if len({settings.regional_compile for settings in all_settings}) > 1:
        kept["compile"] = False  # one process compiled the whole, another one its blocks
    if len({settings.optimizers_judged for settings in all_settings}) > 1:
        kept["fused_optimizer"] = False  # a step's optimizers are fused in all processes or in none
    if not kept["compile"]:
        for name in ("regional_compile", "dynamic_shapes", "cuda_graphs"):
            kept[name] = False
    return TunedSettings(**kept)


def _text(choices: Choices) -> str:
    settings = {str(number): encode(tuned) for number, tuned in choices.settings.items()}
    return json.dumps({"first": choices.first, "settings": settings}, sort_keys=True)


def _choices(text: bytes) -> Choices:
    """Raises `ValueError` or `FieldError` if the text has no choices."""
    found = json.loads(text)
    try:
        first, settings = int(found["first"]), dict(found["settings"])
    except (TypeError, KeyError) as error:
        raise ValueError("no choices") from error
    decoded = {
        int(number): decode(TunedSettings, settings[number], "agreement") for number in settings
    }
    return Choices(first, decoded)
