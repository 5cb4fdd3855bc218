"""Records which settings were applied or skipped and why, one line for each.

Code reads the decision, and people read the lines.
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from gpujob_worker.run.standard_error import say

ITEMS_MAX = 64
LINE_CHARACTERS_MAX = 300


class Verdict(Enum):
    APPLIED = "applied"
    SKIPPED = "skipped"
    RECOMMENDED = "recommended"
    # Information about the setting, without a verdict.
    NOTED = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision about one setting, and the reason."""

    item: str
    verdict: Verdict
    reason: str

    @property
    def text(self) -> str:
        """The verdict and the reason, without the item."""
        return f"{self.verdict.value}: {self.reason}" if self.verdict.value else self.reason

    def __str__(self) -> str:
        return f"{self.item} {self.text}"[:LINE_CHARACTERS_MAX]


@dataclass(slots=True)
class DecisionLog:
    """The newest decision of every setting, in the order of their first decisions. Bounded."""

    verbose: bool = False
    # Another log that gets the same decisions, with a suffix for the setting's name.
    within: "DecisionLog | None" = None
    addition: str = ""
    _decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])
    # Settings whose newest decision was not printed.
    _quiet: set[str] = field(default_factory=set[str])

    def applied(self, item: str, what: str) -> None:
        self._record(Decision(item, Verdict.APPLIED, what))

    def skipped(self, item: str, why: str, *, aloud: bool = True) -> None:
        self._record(Decision(item, Verdict.SKIPPED, why), aloud=aloud)

    def recommended(self, item: str, what: str) -> None:
        self._record(Decision(item, Verdict.RECOMMENDED, what))

    def note(self, item: str, what: str, *, aloud: bool = True) -> None:
        self._record(Decision(item, Verdict.NOTED, what), aloud=aloud)

    def settle(self, item: str, part: str) -> None:
        """Makes the newest decision about a part of a setting the one about the setting."""
        if self.within is not None:
            self.within.settle(f"{item}{self.addition}", f"{part}{self.addition}")
        decision = self._decisions.pop(part, None)
        if decision is not None:
            self._decisions[item] = replace(decision, item=item)

    def said(self, item: str) -> None:
        """Marks the newest decision as already printed in another way."""
        self._quiet.discard(item)

    def end(self) -> None:
        """Prints the lines that were kept for the end."""
        for item, decision in self._decisions.items():
            if item in self._quiet:
                say(f"gpujob: {decision}")
        self._quiet.clear()

    def decision(self, item: str) -> Decision | None:
        """Returns the last decision about the setting, or None if there was none."""
        return self._decisions.get(item)

    def line(self, item: str) -> str:
        """Returns the same as text, or an empty string if there was none."""
        decision = self.decision(item)
        return str(decision) if decision is not None else ""

    def about(self, whose: str) -> "DecisionLog":
        """Returns a log for one of several models with the same settings. It adds its decisions
        here too.
        """
        return DecisionLog(within=self, addition=f" of {whose}")

    def applied_items(self, item: str) -> tuple[str, ...]:
        """Returns the applied items: the item itself and its parts (`precision tf32` of
        `precision`).
        """
        return tuple(
            name
            for name, decision in self._decisions.items()
            if decision.verdict is Verdict.APPLIED and f"{name} ".startswith(f"{item} ")
        )

    @property
    def skips(self) -> tuple[Decision, ...]:
        return tuple(d for d in self._decisions.values() if d.verdict is Verdict.SKIPPED)

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(str, self._decisions.values()))

    def _record(self, decision: Decision, *, aloud: bool = True) -> None:
        item = decision.item
        if self.within is not None:
            named = replace(decision, item=f"{item}{self.addition}")
            self.within._record(named, aloud=aloud)
        if item not in self._decisions and len(self._decisions) >= ITEMS_MAX:
            return
        changed = self.line(item) != str(decision)
        self._decisions[item] = decision
        if not self.verbose or not changed:
            return
        if aloud:
            self._quiet.discard(item)
            say(f"gpujob: {decision}")
        else:
            self._quiet.add(item)
