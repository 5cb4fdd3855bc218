"""Prints the demo: lines with the seconds since its start, and the table of claims."""

import sys
import time
from dataclasses import dataclass, field

NAME_WIDTH = 18


@dataclass(frozen=True, slots=True)
class Claim:
    """One promise of the demo, whether it held, and its figures."""

    title: str
    holds: bool
    figures: tuple[str, ...]


@dataclass(slots=True)
class Teller:
    """Prints events as they happen. Several threads may print, one line at a time."""

    started: float = field(default_factory=time.monotonic)
    claims: list[Claim] = field(default_factory=list[Claim])

    def say(self, who: str, text: str) -> None:
        seconds = time.monotonic() - self.started
        sys.stdout.write(f"{seconds:6.1f} s  {who:<{NAME_WIDTH}} {text}\n")
        sys.stdout.flush()

    def chapter(self, title: str) -> None:
        sys.stdout.write(f"\n== {title}\n")
        sys.stdout.flush()

    def claim(self, title: str, holds: bool, *figures: str) -> None:
        self.claims.append(Claim(title, holds, figures))
        self.say("claim holds" if holds else "CLAIM FAILS", title)
        for figure in figures:
            self.say("", f"  {figure}")

    def verdict(self) -> bool:
        """Prints the table of claims. Returns True if there is one and all hold."""
        self.chapter("Claims and results")
        for number, claim in enumerate(self.claims, 1):
            mark = "ok  " if claim.holds else "FAIL"
            sys.stdout.write(f"{mark} {number}. {claim.title}\n")
            for figure in claim.figures:
                sys.stdout.write(f"        {figure}\n")
        return bool(self.claims) and all(claim.holds for claim in self.claims)
