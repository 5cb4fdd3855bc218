"""The loops in which a script makes its steps: the running ones, and those that are over.

A script may train in one loop after another. Loops that are over are left out on the way back, if
all their results are in variables of functions that still run. In the turn of a loop around its
place, a script repeats the code before the place, so there must be no step in it.
"""

import ast
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.made_at import mark_of, turn_mark
from gpujob_worker.resume.script_place import (
    At,
    NoPlaceError,
    begins_turn,
    function_key,
    functions_of,
)
from gpujob_worker.resume.script_source import Loop, loops_around, source_of
from gpujob_worker.run.installed_files import is_script_file

TURNS_MAX = 256
_Key = tuple[int, int]
_Within = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class _Training:
    """The outermost loop of a step: which call of which function it is in.

    Frames are known by their identity and never held. A frame would keep all variables of its
    function alive, including models and open files.
    """

    frame: int
    # The calls around the function, each with its instruction. They are the same for one call of
    # it.
    callers: tuple[int, ...]
    name: dict[str, Any]
    loop: Loop


class TrainingLoops:
    """Of nested loops, the outermost one is recorded."""

    def __init__(self) -> None:
        self._now: _Training | None = None
        self._over: list[dict[str, Any]] = []
        # By loop: a mark of its present turn, and the places in the turn where steps were made. A
        # place is the line of a call and the loop in it, or a loop, or neither.
        self._turns: dict[_Key, tuple[Any, set[_Within]]] = {}
        # The way to the last step, and its loops. Most steps are made on the same way.
        self._way: tuple[int, ...] = ()
        self._nested: list[tuple[int, str | None, _Key, _Within]] = []

    @property
    def began(self) -> bool:
        return self._now is not None

    def step_in(self, frame: FrameType) -> None:
        """Records a step in a call from `frame`. Raises `NoPlaceError`."""
        frames = _frames(frame)
        way = tuple(number for each in frames for number in (id(each), each.f_lasti))
        if way != self._way:
            functions = functions_of(frame, strict=False)
            self._trains_in(functions)
            self._way = way
            self._nested = [
                (frames.index(at), loop.number_name, (id(at), loop.line), within)
                for at, loop, within in _nested(functions)
            ]
        self._note_turns(frames)

    def _trains_in(self, functions: list[At]) -> None:
        known, now = self._now, _training(functions)
        if now is None:
            self._now = None
            raise NoPlaceError("its steps are in no loop")
        self._now = now
        if known is None or (known.frame, known.callers, known.loop.line) == (
            now.frame,
            now.callers,
            now.loop.line,
        ):
            return
        line = known.loop.line
        if known.loop.node.orelse:
            raise NoPlaceError(f"the training loop in line {line}, which is over, has an else")
        self._over.append({**known.name, "loop": line, "frame": known.frame})
        if known.frame not in [id(at.frame) for at in functions]:
            code = known.name["code"]
            raise NoPlaceError(f"it trained in {code} line {line} before, which has returned")

    def _note_turns(self, frames: list[FrameType]) -> None:
        variables: dict[int, dict[str, Any]] = {}
        for at, name, key, within in self._nested:
            turn = None
            if name is not None:
                known = variables.get(at)
                if known is None:
                    # Python makes this dictionary anew for each access.
                    known = variables[at] = frames[at].f_locals
                turn = mark_of(known.get(name))
            before = self._turns.get(key)
            if before is None or before[0] != turn:
                self._turns[key] = turn, {within}
            else:
                before[1].add(within)
        while len(self._turns) > TURNS_MAX:
            del self._turns[next(iter(self._turns))]

    def refusal(self, functions: Sequence[At]) -> str | None:
        """Returns why the script cannot be brought back to a place in these functions, or None.

        The reason is a step that would be made again on the way.
        """
        for frame, loop, within in _nested(functions)[:-1]:
            turn, made = self._turns.get((id(frame), loop.line), (None, set()))
            if turn == turn_mark(frame, loop) and made - {within}:
                return f"a step was made before it in the turn of the loop in line {loop.line}"
        return None

    def begins_turn(self, frame: FrameType) -> bool:
        """Returns whether a turn of the loop itself begins there, and not one of an inner loop."""
        known = self._now
        if known is None or id(frame) != known.frame:
            return False
        try:
            loops = loops_around(frame.f_code, frame.f_lineno)
        except LookupError:
            return False
        return len(loops) == 1 and begins_turn(frame, loops)

    @property
    def innermost(self) -> _Key | None:
        """The loop of the last step: its function's call, and its line."""
        return self._nested[-1][2] if self._nested else None

    def is_innermost(self, frame: FrameType) -> bool:
        """Returns whether the loop whose turn begins there made the last step, and is not one
        around it.
        """
        return self.innermost is not None and self.innermost == _key_at(frame)

    def makes_steps(self, frame: FrameType) -> bool:
        """Returns whether the last step was made in the loop whose turn begins there."""
        at = _key_at(frame)
        return at is not None and at in [key for _, _, key, _ in self._nested]

    def ended(self, functions: Sequence[At]) -> list[dict[str, Any]]:
        """Returns the loops that are over. Raises `UnsavableError` for one whose function has
        returned.
        """
        frames = {id(at.frame) for at in functions}
        for loop in self._over:
            if loop["frame"] not in frames:
                text = f"it trained in {loop['code']} line {loop['loop']}, which has returned"
                raise UnsavableError(text)
        begun = {(at.key, loop.line) for at in functions for loop in at.loops}
        for loop in self._over:
            if (function_key(loop["file"], loop["code"], loop["first"]), loop["loop"]) in begun:
                raise UnsavableError(f"{loop['code']} trains in a loop, and calls itself after it")
        keys = ("file", "code", "first", "loop")
        return [{key: loop[key] for key in keys} for loop in self._over]

    def lines(self) -> list[tuple[str, int]]:
        return [(loop["file"], loop["loop"]) for loop in self._over]

    def read_after(self, at: At) -> set[str]:
        """Returns the names that the function reads between its finished training loops and its
        present line.

        A resume leaves the loops out, and runs the code between.
        """
        over = [loop["loop"] for loop in self._over if loop["frame"] == id(at.frame)]
        source = source_of(at.frame.f_code.co_filename) if over else None
        node = source.scope(at.frame.f_code) if source is not None else None
        now = at.loops[0].line if at.loops else at.frame.f_lineno
        return {
            each.id
            for each in (ast.walk(node) if node is not None else ())
            if isinstance(each, ast.Name)
            and isinstance(each.ctx, ast.Load)
            and min(over) < each.lineno < now
        }

    def adopt(self, over: list[dict[str, Any]], functions: Sequence[At]) -> None:
        """Called when the script was brought back to a place, with these loops behind it."""
        self._now = _training(functions)
        self._over = [
            {**at.name, "loop": loop["loop"], "frame": id(at.frame)}
            for loop in over
            for at in functions
            if at.key == function_key(loop["file"], loop["code"], loop["first"])
        ]


def outermost_loop(frame: FrameType) -> _Key | None:
    """Returns the key of the outermost loop in which a call from `frame` is made, or None."""
    try:
        found = _training(functions_of(frame, strict=False))
    except NoPlaceError:
        return None
    return (found.frame, found.loop.line) if found is not None else None


def _key_at(frame: FrameType) -> _Key | None:
    """Returns the key of the innermost loop there, or None."""
    try:
        loops = loops_around(frame.f_code, frame.f_lineno)
    except LookupError:
        return None
    return (id(frame), loops[-1].line) if loops else None


def _frames(frame: FrameType | None) -> list[FrameType]:
    """Returns the script's functions from `frame` outwards."""
    found: list[FrameType] = []
    while frame is not None:
        if is_script_file(frame.f_code.co_filename):
            found.append(frame)
        frame = frame.f_back
    return found


def _training(functions: Sequence[At]) -> _Training | None:
    for number, at in enumerate(functions):
        if at.loops:
            around = [each.frame for each in functions[:number]]
            callers = tuple(number for each in around for number in (id(each), each.f_lasti))
            return _Training(id(at.frame), callers, at.name, at.loops[0])
    return None


def _nested(functions: Sequence[At]) -> list[tuple[FrameType, Loop, _Within]]:
    """Returns the loops, each with the way from its body to the next one."""
    flat = [(at, loop) for at in functions for loop in at.loops]
    found: list[tuple[FrameType, Loop, _Within]] = []
    for (at, loop), (next_at, inner) in itertools.zip_longest(
        flat, flat[1:], fillvalue=(None, None)
    ):
        assert at is not None
        assert loop is not None
        call = at.frame.f_lineno if next_at is not None and next_at is not at else None
        found.append((at.frame, loop, (call, inner.line if inner is not None else None)))
    return found
