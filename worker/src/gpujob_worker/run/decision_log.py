"""What was applied to the script and what was refused, with the reason: one line per item."""

import sys
from dataclasses import dataclass, field

ITEMS_MAX = 64
LINE_CHARACTERS_MAX = 300


@dataclass(slots=True)
class Explanation:
    """The newest line of every item, in the order in which items first spoke. Bounded."""

    verbose: bool = False
    # Where the same is said too, each item with the addition.
    within: "Explanation | None" = None
    addition: str = ""
    _lines: dict[str, str] = field(default_factory=dict[str, str])
    # Items of which the newest line was not said aloud.
    _quiet: set[str] = field(default_factory=set[str])

    def applied(self, item: str, what: str) -> None:
        self._say(item, f"applied: {what}")

    def refused(self, item: str, why: str) -> None:
        self._say(item, f"refused: {why}")

    def recommended(self, item: str, what: str) -> None:
        self._say(item, f"recommended: {what}")

    def note(self, item: str, what: str, *, aloud: bool = True) -> None:
        self._say(item, what, aloud=aloud)

    def end(self) -> None:
        """Says aloud what was kept for the end."""
        for item, line in self._lines.items():
            if item in self._quiet:
                sys.stderr.write(f"gpujob: {line}\n")
        self._quiet.clear()

    def line(self, item: str) -> str:
        """What was last said of the item; empty when nothing was."""
        return self._lines.get(item, "")

    def about(self, whose: str) -> "Explanation":
        """For one of several that the same items are said of; it is said here as well."""
        return Explanation(within=self, addition=f" of {whose}")

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines.values())

    def _say(self, item: str, text: str, *, aloud: bool = True) -> None:
        if self.within is not None:
            self.within.note(f"{item}{self.addition}", text, aloud=aloud)
        line = f"{item} {text}"[:LINE_CHARACTERS_MAX]
        if item not in self._lines and len(self._lines) >= ITEMS_MAX:
            return
        changed = self._lines.get(item) != line
        self._lines[item] = line
        if not self.verbose or not changed:
            return
        if aloud:
            self._quiet.discard(item)
            sys.stderr.write(f"gpujob: {line}\n")
        else:
            self._quiet.add(item)
