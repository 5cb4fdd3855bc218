"""The random state at the first object that a turn of a loop makes.

A resumed script runs what its present turns did before its place once more: a model of a fold, its
loader. What that draws has to be what it drew then, or a sampler gets other weights, and data are
split otherwise.
"""

from collections.abc import Sequence
from typing import Any

from gpujob_worker.resume.made_at import MadeAt, turn_mark
from gpujob_worker.resume.random_numbers import random_state, restore_random
from gpujob_worker.resume.script_place import At

TURNS_MAX = 64
_Key = tuple[int, int]


class TurnRandom:
    """`sees` is called before each object is made; `expect` gives what is to be there again."""

    def __init__(self) -> None:
        self._known: dict[_Key, tuple[Any, str, dict[str, Any]]] = {}
        self._expected: list[dict[str, Any]] = []
        # In the loop of the steps themselves nothing is run again.
        self.innermost: _Key | None = None

    def sees(self, made: MadeAt) -> None:
        expected = [each for each in self._expected if each["at"] == made.key]
        if expected:
            self._expected = [each for each in self._expected if each["at"] != made.key]
            restore_random(expected[-1]["random"])
        state: dict[str, Any] | None = None
        for frame, line, turn in made.turns:
            key = frame, line
            known = self._known.get(key)
            if turn is None or key == self.innermost or (known is not None and known[0] == turn):
                continue
            state = state or random_state()
            self._known.pop(key, None)
            self._known[key] = turn, made.key, state
        while len(self._known) > TURNS_MAX:
            del self._known[next(iter(self._known))]

    def saved(self, functions: Sequence[At]) -> list[dict[str, Any]]:
        """Of the turns on the way to a place, the outermost first."""
        found: list[dict[str, Any]] = []
        for at in functions:
            for loop in at.loops:
                known = self._known.get((id(at.frame), loop.line))
                if known is not None and known[0] == turn_mark(at.frame, loop):
                    found.append({"at": known[1], "random": known[2]})
        return found

    def expect(self, saved: Sequence[dict[str, Any]]) -> None:
        """On the way back; with none at its end."""
        self._expected = list(saved)
