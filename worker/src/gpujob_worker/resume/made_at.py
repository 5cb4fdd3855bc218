"""Where a script made an object, and in which turns of its loops. That decides whether a resume
makes it again.

A resumed script runs up to its first training loop and, in each loop on the way to its place, the
turn in which it was. An object that it made in another turn and still has is not made again.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gpujob_worker.resume.script_place import At
from gpujob_worker.resume.script_source import Loop, loops_around
from gpujob_worker.run.installed_files import is_script_file

_CALLS_MAX = 100
_NUMBERS = (int, str, bool, float)


class _Item:
    """A loop's item that is no number. Another item may have its identity once it is gone."""

    def __init__(self, item: Any) -> None:
        self._item = weakref.ref(item)

    def __eq__(self, other: object) -> bool:
        item = self._item()
        return item is not None and isinstance(other, _Item) and other._item() is item

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class MadeAt:
    """`key` names the calls and lines. `turns` are the loops around them, by frame and line, each
    with a mark of its turn.
    """

    key: str
    turns: tuple[tuple[int, int, Any], ...]
    # The script did not make it; a resume did.
    made_elsewhere: bool = False

    def is_lost(self, functions: Sequence[At]) -> bool:
        """Returns whether a resume from the place of these functions does not reach this line
        again.
        """
        if self.made_elsewhere:
            return True
        for frame, line, turn in self.turns:
            for at in functions:
                if id(at.frame) != frame:
                    continue
                for loop in at.loops:
                    if loop.line != line:
                        continue
                    innermost = at is functions[-1] and loop is at.loops[-1]
                    if innermost or turn is None or turn != turn_mark(at.frame, loop):
                        return True
        return False


def made_at(frame: FrameType | None) -> MadeAt:
    """Returns the origin of an object that is being made in a call from `frame`."""
    lines: list[str] = []
    turns: list[tuple[int, int, Any]] = []
    for _ in range(_CALLS_MAX):
        if frame is None:
            break
        code = frame.f_code
        if is_script_file(code.co_filename):
            lines.append(f"{code.co_name}:{frame.f_lineno}")
            try:
                loops = loops_around(code, frame.f_lineno)
            except LookupError:
                loops = ()
            turns += [(id(frame), loop.line, turn_mark(frame, loop)) for loop in loops]
        if code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
            break
        frame = frame.f_back
    return MadeAt(" ".join(lines)[:1000], tuple(turns))


def turn_mark(frame: FrameType, loop: Loop) -> Any:
    """Returns a mark that distinguishes the loop's present turn from the others, or None."""
    name = loop.number_name
    return mark_of(frame.f_locals.get(name)) if name is not None else None


def mark_of(value: Any) -> Any:
    """Returns a mark of a loop's item that does not keep it alive."""
    if type(value) in _NUMBERS:
        return value
    try:
        return _Item(value)
    except TypeError:
        return None  # a type that cannot be referenced weakly
