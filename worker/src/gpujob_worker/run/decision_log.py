"""What was applied to the script and what was skipped, with the reason: one line per item.

Code that needs to know what was decided asks for the decision; lines are for people.
"""

import sys
from dataclasses import dataclass, field, replace
from enum import Enum

ITEMS_MAX = 64
LINE_CHARACTERS_MAX = 300


class Verdict(Enum):
    APPLIED = "applied"
    SKIPPED = "skipped"
    RECOMMENDED = "recommended"
    # Neither: something is told of the item.
    NOTED = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided of one item, and why."""

    item: str
    verdict: Verdict
    reason: str

    @property
    def text(self) -> str:
        """Without the item."""
        return f"{self.verdict.value}: {self.reason}" if self.verdict.value else self.reason

    def __str__(self) -> str:
        return f"{self.item} {self.text}"[:LINE_CHARACTERS_MAX]


@dataclass(slots=True)
class DecisionLog:
    """The newest decision of every item, in the order in which items first spoke. Bounded."""

    verbose: bool = False
    # Where the same is said too, each item with the addition.
    within: "DecisionLog | None" = None
    addition: str = ""
    _decisions: dict[str, Decision] = field(default_factory=dict[str, Decision])
    # Items of which the newest decision was not said aloud.
    _quiet: set[str] = field(default_factory=set[str])

    def applied(self, item: str, what: str) -> None:
        self._record(Decision(item, Verdict.APPLIED, what))

    def skipped(self, item: str, why: str, *, aloud: bool = True) -> None:
        self._record(Decision(item, Verdict.SKIPPED, why), aloud=aloud)

    def recommended(self, item: str, what: str) -> None:
        self._record(Decision(item, Verdict.RECOMMENDED, what))

    def note(self, item: str, what: str, *, aloud: bool = True) -> None:
        self._record(Decision(item, Verdict.NOTED, what), aloud=aloud)

    def said(self, item: str) -> None:
        """Its newest decision was said in another way."""
        self._quiet.discard(item)

    def end(self) -> None:
        """Says aloud what was kept for the end."""
        for item, decision in self._decisions.items():
            if item in self._quiet:
                sys.stderr.write(f"gpujob: {decision}\n")
        self._quiet.clear()

    def decision(self, item: str) -> Decision | None:
        """What was last decided of the item; None when nothing was."""
        return self._decisions.get(item)

    def line(self, item: str) -> str:
        """The same for people; empty when nothing was."""
        decision = self.decision(item)
        return str(decision) if decision is not None else ""

    def about(self, whose: str) -> "DecisionLog":
        """For one of several that the same items are said of; it is said here as well."""
        return DecisionLog(within=self, addition=f" of {whose}")

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
            sys.stderr.write(f"gpujob: {decision}\n")
        else:
            self._quiet.add(item)
