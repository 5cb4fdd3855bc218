"""The place of a script: the functions from its module to its present loop, and each loop's turn.

A place is the beginning of a loop's turn. No expression is half evaluated there, except in the
calls on the way, which are made again. The script's state is in its variables and in the loops'
iterators. A `for` is brought back to its turn by a new iterator, from which items are taken until
the turn is reached: by the number of batches that were read, or by the variable that distinguishes
turns.
"""

import dis
import functools
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from gpujob_worker.resume.call_on_way import refusal
from gpujob_worker.resume.loop_items import LoopItems
from gpujob_worker.resume.loop_items import NoPlaceError as NoPlaceError
from gpujob_worker.resume.passes import Pass, Passes
from gpujob_worker.resume.script_names import value_of
from gpujob_worker.resume.script_source import Loop, call_at, loops_around
from gpujob_worker.run.installed_files import is_script_file

# Maximum number of functions that call one another on the way to the loop.
FRAMES_MAX = 100
# Functions that are left in their middle while their callers are in their middle too.
_HALTS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_FOR_ITER = dis.opmap["FOR_ITER"]
# Instructions that may call a function of the script for each of some items.
_ITERATING = ("UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "SET_UPDATE", "CONTAINS_OP",
              "FOR_ITER", "CALL_INTRINSIC_1")  # fmt: skip
_CALLING_OFTEN = ("map", "filter", "sorted", "min", "max", "list", "tuple", "set", "frozenset",
                  "dict", "sum", "any", "all", "reduce", "zip", "enumerate")  # fmt: skip
# Libraries whose calls on the way may differ with other settings of a run.
_OUR_WAYS = ("torch", "gpujob_worker", "gpujob_api", "importlib", "runpy")


@dataclass(frozen=True, slots=True)
class At:
    """One function of the script on the way, with its running loops."""

    frame: FrameType
    loops: tuple[Loop, ...]
    # The library calls through which it calls the next function.
    through: tuple[str, ...] = ()

    @property
    def call(self) -> list[Any]:
        """The source position of the function's present call, and the library calls in between."""
        return [self.frame.f_lineno, *_columns(self.frame), *self.through]

    @property
    def name(self) -> dict[str, Any]:
        """Facts that distinguish the function and its line from all others of the script."""
        code = self.frame.f_code
        return {"file": code.co_filename, "code": code.co_name, "first": code.co_firstlineno}

    @property
    def key(self) -> tuple[str, str, int]:
        """A key that is the same in each attempt, whatever folder the script is in."""
        code = self.frame.f_code
        return function_key(code.co_filename, code.co_name, code.co_firstlineno)


def function_key(file: str, code: str, first: int) -> tuple[str, str, int]:
    """Returns the key of a function of the script. Its folder may differ between attempts."""
    return os.path.basename(file), code, first


def begins_turn(frame: FrameType, loops: Sequence[Loop]) -> bool:
    """Returns whether the frame's next line begins a turn of its innermost loop."""
    if not loops or frame.f_lineno not in loops[-1].header:
        return False
    if loops[-1].is_for:
        return _asks_iterator(frame)
    # The first line of an endless loop's body may come again in a turn, at the end of a `with`.
    return not loops[-1].is_endless or frame.f_lasti in dict(_jumps_back(frame.f_code))


def _asks_iterator(frame: FrameType) -> bool:
    """Returns whether the instruction gets the next item, and does not make the iterator."""
    instructions, offset = frame.f_code.co_code, frame.f_lasti
    while instructions[offset] == dis.EXTENDED_ARG:
        offset += 2  # a prefix of the instruction, whose jump is long
    return instructions[offset] == _FOR_ITER


@functools.lru_cache(maxsize=4096)
def _jumps_back(code: CodeType) -> tuple[tuple[int, int], ...]:
    """Returns the positions in the code's instructions where loops begin and end."""
    return tuple(
        (int(each.argval), each.offset)
        for each in dis.get_instructions(code)
        if "JUMP_BACKWARD" in each.opname
    )


def _columns(frame: FrameType) -> tuple[int | None, ...]:
    """Returns the end line and the columns of the frame's present expression."""
    positions = list(frame.f_code.co_positions())
    return positions[frame.f_lasti // 2][1:]


def functions_of(frame: FrameType | None, *, strict: bool = True) -> list[At]:
    """Returns the script's functions from its module to `frame`, the module first.

    Raises `NoPlaceError`. If not `strict`, it is raised only if there is no such way at all.
    """
    found: list[At] = []
    between: list[str] = []
    count = 0
    while frame is not None and count < FRAMES_MAX:
        count += 1
        code = frame.f_code
        is_main = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if strict and code.co_flags & _HALTS:
            raise NoPlaceError(f"{code.co_name} line {frame.f_lineno} is a generator's")
        if is_main or is_script_file(code.co_filename):
            if found and strict:
                _refuse_call(frame)
            found.append(At(frame, _loops(frame), tuple(reversed(between))))
            between = []
        elif found and strict:
            if _is_in_loop(frame):
                raise NoPlaceError(f"{code.co_filename} line {frame.f_lineno} calls it in a loop")
            module = str(frame.f_globals.get("__name__"))
            if module.partition(".")[0] not in _OUR_WAYS:
                between.append(f"{module} {code.co_name} {frame.f_lineno}")
        if is_main:
            _refuse_outer_loops(frame.f_back)
            return found[::-1]
        frame = frame.f_back
    raise NoPlaceError("its loop is not in the main thread of a script")


def _refuse_outer_loops(frame: FrameType | None) -> None:
    """Raises `NoPlaceError` if another script runs this one in a loop."""
    count = 0
    while frame is not None and count < FRAMES_MAX:
        count += 1
        if is_script_file(frame.f_code.co_filename) and _is_in_loop(frame):
            where = f"{frame.f_code.co_filename} line {frame.f_lineno}"
            raise NoPlaceError(f"{where} runs the script in a loop")
        frame = frame.f_back


def _refuse_call(frame: FrameType) -> None:
    """Raises `NoPlaceError` if Python itself calls a function for each of some items, or if a
    statement has read values that it may not read again.
    """
    code, offset = frame.f_code, frame.f_lasti
    name = dis.opname[code.co_code[offset]]
    often = name in _ITERATING
    line, (end_line, column, end_column) = frame.f_lineno, _columns(frame)
    call = call_at(code.co_filename, (line, column, end_line, end_column))
    if call is not None:
        function = value_of(frame, call.func)
        known = getattr(function, "__name__", "")
        module = getattr(function, "__module__", "")
        often = often or (known in _CALLING_OFTEN and module in ("builtins", "_functools"))
    if often:
        raise NoPlaceError(f"{code.co_name} line {line} may call a function for each of some items")
    why = refusal(frame, call)
    if why is not None:
        raise NoPlaceError(f"{code.co_name} {why}")


def _loops(frame: FrameType) -> tuple[Loop, ...]:
    try:
        return loops_around(frame.f_code, frame.f_lineno)
    except LookupError as error:
        raise NoPlaceError(str(error)) from None


def _is_in_loop(frame: FrameType) -> bool:
    """Decides by the source, else by the instructions, which do not show exception handlers."""
    try:
        return bool(loops_around(frame.f_code, frame.f_lineno))
    except LookupError:
        jumps = _jumps_back(frame.f_code)
        return any(first <= frame.f_lasti <= last for first, last in jumps)


class Place:
    """The beginning of a turn, with the loops around it."""

    def __init__(self, frame: FrameType, passes: Passes) -> None:
        """Raises `NoPlaceError`."""
        self.functions = functions_of(frame)
        self._passes = passes
        # Cached, because the script stands still meanwhile.
        self._saved: list[dict[str, Any]] | None = None
        last = self.functions[-1]
        if not last.loops:
            raise NoPlaceError("its steps are in no loop")
        # A function that is not the last one and reads from an iterator is calling a generator.
        for at in self.functions[:-1]:
            if at.loops and at.loops[-1].is_for and at.frame.f_lineno in at.loops[-1].header:
                name = at.frame.f_code.co_name
                raise NoPlaceError(f"{name} line {at.frame.f_lineno} reads from a generator")
        for at in self.functions:
            for loop in at.loops:
                if loop.refusal is not None:
                    raise NoPlaceError(loop.refusal)

    @property
    def frame(self) -> FrameType:
        return self.functions[-1].frame

    def saved(self) -> list[dict[str, Any]]:
        """Returns the place as plain values and tensors. Raises `NoPlaceError`."""
        if self._saved is None:
            self._saved = self._described()
        return self._saved

    def _described(self) -> list[dict[str, Any]]:
        described: list[dict[str, Any]] = []
        for at in self.functions:
            last = at is self.functions[-1]
            loops = [
                {"line": loop.line, **self._turn(at, loop, last and loop is at.loops[-1])}
                for loop in at.loops
            ]
            call = None if last else at.call
            described.append({**at.name, "call": call, "loops": loops})
        return described

    def lines(self) -> dict[str, set[int]]:
        """Returns the loops' lines by file, which must be rewritten for a way back."""
        found: dict[str, set[int]] = {}
        for at in self.functions:
            lines = found.setdefault(at.frame.f_code.co_filename, set())
            lines.update(loop.line for loop in at.loops)
        return found

    def _turn(self, at: At, loop: Loop, innermost: bool) -> dict[str, Any]:
        first = next((each, of) for each in self.functions for of in each.loops)
        outermost = first[0] is at and first[1] is loop
        return turn_of(at.frame, loop, self._passes, innermost=innermost, outermost=outermost)


def turn_of(
    frame: FrameType, loop: Loop, passes: Passes, *, innermost: bool, outermost: bool
) -> dict[str, Any]:
    """Returns the turn of a loop: the last finished one in the innermost loop, else the running
    one.

    Raises `NoPlaceError`.
    """
    if not loop.is_for:
        return {"kind": "while"}
    read = passes.of_loop(frame, loop.header)
    items = LoopItems(frame, loop, read, outermost=outermost)
    if read:
        return {"kind": "passes", **_position(read, innermost), "given": items.given}
    if items.number is not None:
        return {"kind": "number", "value": items.number, "given": items.given}
    if items.index is not None:
        return {"kind": "index", "value": items.index, "given": items.given}
    raise NoPlaceError(
        f"the turns of the loop in line {loop.line} of {frame.f_code.co_name} cannot be"
        " distinguished; a loop over enumerate(...) can be"
    )


def _position(passes: list[Pass], innermost: bool) -> dict[str, Any]:
    taken = {record.consumed for record in passes}
    if len(taken) != 1:
        raise NoPlaceError("its loop has read more batches of one loader than of another")
    done = taken.pop() - (0 if innermost else 1)
    if not all(record.is_of_early_data for record in passes):
        raise NoPlaceError("the data of its loop were made while it trained")
    for record in passes:
        if record.own_sampler is not None:
            # A new iterator would make it draw another order.
            why = f"{record.own_sampler} of the script may draw the order of a pass anew"
            raise NoPlaceError(why)
    try:
        states = [record.state(done) for record in passes]
    except ValueError as error:
        raise NoPlaceError(str(error)) from None
    return {"count": done, "passes": states}


def script_frame(frame: FrameType | None) -> FrameType | None:
    """Returns the nearest frame of the script, from this one outwards, or None."""
    count = 0
    while frame is not None and not is_script_file(frame.f_code.co_filename):
        count += 1
        frame = frame.f_back if count < FRAMES_MAX else None
    return frame


def current_frame(depth: int = 0) -> FrameType:
    """Returns the frame of the caller, or the one `depth` calls above it."""
    return sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
