"""Waits for the next place at which a script can be saved: the beginning of a loop's turn.

Python's trace function sees each line of the watched functions. It is active from the moment a
place is wanted until one is found, and not in between.
"""

import atexit
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from gpujob_worker.resume.script_place import At, begins_turn
from gpujob_worker.resume.script_source import Loop, loops_around
from gpujob_worker.run.installed_files import is_script_file

# Maximum number of calls on the way from the script's module.
_FRAMES_MAX = 200


class TurnWatch:
    """Calls `at_turn(frame)` at the beginning of each turn, until that returns True.

    Its errors are raised in the script, at that line.
    """

    def __init__(self, at_turn: Callable[[FrameType], bool]) -> None:
        self._at_turn = at_turn
        self._before: Any = None
        self._waits = False
        self._in = 0
        # The functions in which the watch began, with their earlier trace functions.
        self._watched: list[tuple[FrameType, Any]] = []
        # Whether functions that are called meanwhile are watched too, because training waits in
        # them.
        self.looks_everywhere = False
        self._around: frozenset[int] = frozenset()
        self._loop: Loop | None = None
        self._left: Callable[[], None] = lambda: None
        # The interpreter takes modules apart at its end, and would still call the trace function.
        atexit.register(self.stop)

    def keep_to(self, functions: Sequence[At], left: Callable[[], None]) -> None:
        """Calls `left` before the first line outside of the innermost loop."""
        self._around = frozenset(id(at.frame) for at in functions[:-1])
        self._in, self._loop = id(functions[-1].frame), functions[-1].loops[-1]
        self._left = left

    def _has_left(self, frame: FrameType) -> bool:
        if self._loop is None:
            return False
        inside = frame.f_lineno in self._loop.header or frame.f_lineno in self._loop.body
        return id(frame) in self._around or (id(frame) == self._in and not inside)

    @property
    def waits(self) -> bool:
        return self._waits

    def start(self, frame: FrameType | None) -> None:
        """Watches the script's functions from this frame outwards."""
        if self._waits:
            # A library that traces for a while may leave no trace function.
            if sys.gettrace() != self._call:
                sys.settrace(self._call)
            return
        self._before = sys.gettrace()
        for _ in range(_FRAMES_MAX):
            if frame is None:
                break
            if is_script_file(frame.f_code.co_filename):
                self._watched.append((frame, frame.f_trace))
                frame.f_trace = self._line
            frame = frame.f_back
        self._waits = bool(self._watched)
        if self._waits:
            sys.settrace(self._call)

    def stop(self) -> None:
        for frame, before in self._watched:
            frame.f_trace = before
        self._watched = []
        if self._waits:
            self._waits = False
            sys.settrace(self._before)
            self._before = None

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        everywhere = self._waits and self.looks_everywhere
        return self._line if everywhere and is_script_file(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event == "return":
            # The variables of a function that is over are not kept alive.
            self._watched = [each for each in self._watched if each[0] is not frame]
        if event != "line" or not self._waits:
            return self._line
        if self._has_left(frame):
            self.stop()
            self._left()
            return None
        try:
            loops = loops_around(frame.f_code, frame.f_lineno)
        except LookupError:
            return self._line
        if begins_turn(frame, loops):
            found = False
            try:
                found = self._at_turn(frame)
            except BaseException:
                self.stop()
                raise
            if found:
                self.stop()
                return None
        return self._line
