"""Waits for the next place at which a script can be saved: the beginning of a turn of a loop.

Python's trace function sees each line of the functions that are watched. It is in force from the
moment a place is wanted until one is found, and not in between.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from gpujob_worker.resume.script_place import begins_turn
from gpujob_worker.resume.script_source import is_script_file, loops_around

# Calls on the way from the script's module.
_FRAMES_MAX = 200


class TurnWatch:
    """Calls `at_turn(frame)` at the beginning of each turn, until that returns True.

    What it raises is raised in the script, at that line.
    """

    def __init__(self, at_turn: Callable[[FrameType], bool]) -> None:
        self._at_turn = at_turn
        self._before: Any = None
        self._watched: list[tuple[FrameType, Any]] = []
        # Whether functions that are called meanwhile are watched, too: training waits in them.
        self.looks_everywhere = False

    @property
    def waits(self) -> bool:
        return bool(self._watched)

    def start(self, frame: FrameType | None) -> None:
        """Watches the script's functions from this frame outwards."""
        if self._watched:
            # Libraries that trace for a while may leave nothing in force.
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
        if self._watched:
            sys.settrace(self._call)

    def stop(self) -> None:
        watched, self._watched = self._watched, []
        for frame, before in watched:
            frame.f_trace = before
        if watched:
            sys.settrace(self._before)
            self._before = None

    def _call(self, frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if self.looks_everywhere and is_script_file(frame.f_code.co_filename):
            self._watched.append((frame, None))
            return self._line
        return None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        if event != "line" or not self._watched:
            return self._line
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
