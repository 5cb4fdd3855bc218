"""The loops in which a script makes its steps: the one under way, and those that are over.

A script may train in one loop after another. Those that are over are left out on the way back, as
long as all that they left is in variables of functions that still run.
"""

from collections.abc import Sequence
from types import FrameType
from typing import Any

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.script_place import (
    At,
    NoPlaceError,
    begins_turn,
    function_key,
    functions_of,
)
from gpujob_worker.resume.script_source import loops_around


class TrainingLoops:
    """Of each the outermost one is meant."""

    def __init__(self) -> None:
        self._now: At | None = None
        self._over: list[dict[str, Any]] = []

    @property
    def began(self) -> bool:
        return self._now is not None

    def step_in(self, frame: FrameType) -> None:
        """A step was made in a call from `frame`. Raises `NoPlaceError`."""
        known = self._now
        if known is not None and _is_in(frame, known):
            return
        self._now = next((at for at in functions_of(frame) if at.loops), None)
        if self._now is None:
            raise NoPlaceError("its steps are in no loop")
        if known is not None:
            line = known.loops[0].line
            if known.loops[0].node.orelse:
                raise NoPlaceError(f"the training loop in line {line}, which is over, has an else")
            self._over.append({**known.name, "loop": line, "frame": id(known.frame)})
            if known.frame not in [at.frame for at in functions_of(frame)]:
                code = known.frame.f_code.co_name
                raise NoPlaceError(f"it trained in {code} line {line} before, which has returned")

    def begins_turn(self, frame: FrameType) -> bool:
        """Whether it is a turn of the loop itself that begins there, and not of one in it."""
        known = self._now
        if known is None or frame is not known.frame:
            return False
        try:
            loops = loops_around(frame.f_code, frame.f_lineno)
        except LookupError:
            return False
        return len(loops) == 1 and begins_turn(frame, loops)

    def ended(self, functions: Sequence[At]) -> list[dict[str, Any]]:
        """Those that are over. Raises `UnsavableError` for one whose function has returned."""
        frames = {id(at.frame) for at in functions}
        for loop in self._over:
            if loop["frame"] not in frames:
                text = f"it trained in {loop['code']} line {loop['loop']}, which has returned"
                raise UnsavableError(text)
        keys = ("file", "code", "first", "loop")
        return [{key: loop[key] for key in keys} for loop in self._over]

    def lines(self) -> list[tuple[str, int]]:
        return [(loop["file"], loop["loop"]) for loop in self._over]

    def adopt(self, over: list[dict[str, Any]], functions: Sequence[At]) -> None:
        """The script was brought back to a place, with these loops behind it."""
        self._now = next((at for at in functions if at.loops), None)
        self._over = [
            {**at.name, "loop": loop["loop"], "frame": id(at.frame)}
            for loop in over
            for at in functions
            if at.key == function_key(loop["file"], loop["code"], loop["first"])
        ]


def _is_in(frame: FrameType | None, known: At) -> bool:
    while frame is not None and frame is not known.frame:
        frame = frame.f_back
    return frame is not None and frame.f_lineno in known.loops[0].body
