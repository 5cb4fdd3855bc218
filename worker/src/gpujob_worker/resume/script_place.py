"""Where a script is: the functions from its module to the loop that it is in, and each loop's turn.

A place is the beginning of a loop's turn. There no expression is half evaluated but in the calls on
the way, which are made again; what the script has is in its variables and in the loops' iterators.
A `for` is brought back to its turn by its iterator, made anew, that hands on items until the turn
is reached: by the number of batches that were read, or by the variable that tells turns apart.
"""

import ast
import builtins
import collections
import dis
import inspect
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpujob_worker.resume.passes import Pass, Passes
from gpujob_worker.resume.script_source import (
    Loop,
    called,
    is_script_file,
    loops_around,
    source_of,
)

# Functions that call one another on the way to the loop.
FRAMES_MAX = 100
# Items among which one is looked for.
ITEMS_MAX = 100_000
# Of functions that are left in their middle, and whose callers are in their middle, too.
_HALTS = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_FOR_ITER = dis.opmap["FOR_ITER"]
_NUMBERS = (int, str, bool, float)
_CONTAINERS = (list, tuple, dict, set, range, str, np.ndarray, torch.Tensor, collections.deque,
               torch.nn.ModuleList)  # fmt: skip
_COUNTING = ("range", "trange", "count")
# Functions whose iterators do not give one item for each one that they take.
_GIVING_OTHERWISE = ("cycle", "chain", "zip_longest", "product", "groupby", "filter", "compress",
                     "takewhile", "dropwhile", "filterfalse", "repeat", "tee", "pairwise",
                     "batched")  # fmt: skip


class NoPlaceError(Exception):
    """The script cannot be brought back to where it is; the text is the reason."""


@dataclass(frozen=True, slots=True)
class At:
    """One function of the script on the way, and the loops in it that are under way."""

    frame: FrameType
    loops: tuple[Loop, ...]

    @property
    def name(self) -> dict[str, Any]:
        """What tells the function and its line apart from all others of the script."""
        code = self.frame.f_code
        return {"file": code.co_filename, "code": code.co_name, "first": code.co_firstlineno}

    @property
    def key(self) -> tuple[str, str, int]:
        """The same in each attempt, in whatever folder the script lies."""
        code = self.frame.f_code
        return function_key(code.co_filename, code.co_name, code.co_firstlineno)


def function_key(file: str, code: str, first: int) -> tuple[str, str, int]:
    """What a function of the script is known by: the folder may be another one in each attempt."""
    return os.path.basename(file), code, first


def begins_turn(frame: FrameType, loops: Sequence[Loop]) -> bool:
    """Whether the line that the frame is about to run begins a turn of its innermost loop."""
    if not loops or frame.f_lineno not in loops[-1].header:
        return False
    return not loops[-1].is_for or _asks_iterator(frame)


def _asks_iterator(frame: FrameType) -> bool:
    """Whether the instruction is the one that gets the next item, and not the making of the
    iterator.
    """
    instructions, offset = frame.f_code.co_code, frame.f_lasti
    while instructions[offset] == dis.EXTENDED_ARG:
        offset += 2  # a prefix of the instruction: its jump is a long one
    return instructions[offset] == _FOR_ITER


def functions_of(frame: FrameType | None) -> list[At]:
    """The script's functions from its module to `frame`, the module first.

    Raises `NoPlaceError`.
    """
    found: list[At] = []
    count = 0
    while frame is not None and count < FRAMES_MAX:
        count += 1
        code = frame.f_code
        is_main = code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
        if code.co_flags & _HALTS:
            raise NoPlaceError(f"{code.co_name} line {frame.f_lineno} is a generator's")
        if is_main or is_script_file(code.co_filename):
            found.append(At(frame, _loops(frame)))
        elif found and _loops_of_library(frame):
            raise NoPlaceError(f"{code.co_filename} line {frame.f_lineno} calls it in a loop")
        if is_main:
            return found[::-1]
        frame = frame.f_back
    raise NoPlaceError("its loop is not in the main thread of a script")


def _loops(frame: FrameType) -> tuple[Loop, ...]:
    try:
        return loops_around(frame.f_code, frame.f_lineno)
    except LookupError as error:
        raise NoPlaceError(str(error)) from None


def _loops_of_library(frame: FrameType) -> bool:
    try:
        return bool(loops_around(frame.f_code, frame.f_lineno))
    except LookupError:
        return False


class Place:
    """The beginning of a turn, with the loops around it."""

    def __init__(self, frame: FrameType, passes: Passes) -> None:
        """Raises `NoPlaceError`."""
        self.functions = functions_of(frame)
        self._passes = passes
        last = self.functions[-1]
        if not last.loops:
            raise NoPlaceError("its steps are in no loop")
        # A function that is not the last one and reads from an iterator is one that is read from.
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
        """The place as plain values and tensors. Raises `NoPlaceError`."""
        described: list[dict[str, Any]] = []
        for at in self.functions:
            last = at is self.functions[-1]
            loops = [
                {"line": loop.line, **self._turn(at, loop, last and loop is at.loops[-1])}
                for loop in at.loops
            ]
            line = None if last else at.frame.f_lineno
            described.append({**at.name, "line": line, "loops": loops})
        return described

    def lines(self) -> dict[str, set[int]]:
        """The loops' lines by file: what has to be rewritten for a way back."""
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
    """The turn of a loop: the last one that is over in the innermost, else that under way.

    Raises `NoPlaceError`.
    """
    if not loop.is_for:
        return {"kind": "while"}
    read = passes.of_loop(frame, loop.header)
    if read and _hands_on(frame, loop, read):
        return {"kind": "passes", **_position(read, innermost)}
    _refuse_unknown(frame, loop, outermost=outermost)
    value = _number(frame, loop)
    if value is not None and (loop.counts or _distinct(frame, loop)):
        return {"kind": "number", "value": value}
    index = _index(frame, loop)
    if index is not None:
        return {"kind": "index", "value": index}
    raise NoPlaceError(
        f"the turns of the loop in line {loop.line} of {frame.f_code.co_name} cannot be told apart;"
        " a loop over enumerate(...) can be"
    )


def _position(passes: list[Pass], innermost: bool) -> dict[str, Any]:
    taken = {record.consumed for record in passes}
    if len(taken) != 1:
        raise NoPlaceError("its loop has read more batches of one loader than of another")
    done = taken.pop() - (0 if innermost else 1)
    try:
        states = [record.state(done) for record in passes]
    except ValueError as error:
        raise NoPlaceError(str(error)) from None
    return {"count": done, "passes": states}


def _hands_on(frame: FrameType, loop: Loop, passes: list[Pass]) -> bool:
    """Whether the loop gets a batch of each of these passes in each turn, as far as its expression
    tells.
    """
    names = loop.source_names()
    if any(isinstance(name, ast.Call) and called(name) in _GIVING_OTHERWISE for name in names):
        return False
    # What another call made is a loader if the loop itself began its pass.
    loaders = [
        name
        for name in names
        if isinstance(name, ast.Call) or isinstance(value_of(frame, name), DataLoader)
    ]
    return len(loaders) >= len(passes)


def _refuse_unknown(frame: FrameType, loop: Loop, *, outermost: bool) -> None:
    """Raises `NoPlaceError` if a new iterator may give other items than the one under way.

    What is made before the first step is made again from the same random numbers.
    """
    for source in loop.source_names():
        if isinstance(source, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Constant)):
            continue
        name = called(source) if isinstance(source, ast.Call) else ""
        if name in _COUNTING:
            continue
        function: Any = None
        if isinstance(source, ast.Call):
            if isinstance(source.func, ast.Attribute) and name in ("items", "keys", "values"):
                function = value_of(frame, source.func.value)
                if type(function) in _CONTAINERS:
                    continue
            function = value_of(frame, source.func)
            known = function is not None and not is_script_file(_file_of(function))
            if outermost and known and name not in _GIVING_OTHERWISE:
                continue
        elif isinstance(value_of(frame, source), _CONTAINERS):
            continue
        raise NoPlaceError(
            f"the loop in line {loop.line} goes over {ast.unparse(source):.80}, which may give"
            " other items when it begins anew"
        )


def _file_of(function: Any) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(getattr(function, "__func__", None), "__code__", None)
    return code.co_filename if code is not None else "<built-in>"


def value_of(frame: FrameType, expression: ast.expr) -> Any:
    """The value of a name, or of an attribute of one; None for all else, and if there is none."""
    if isinstance(expression, ast.Name):
        name = expression.id
        known = frame.f_globals.get(name, getattr(builtins, name, None))
        return frame.f_locals.get(name, known)
    if isinstance(expression, ast.Attribute):
        owner = value_of(frame, expression.value)
        name = expression.attr
        own = vars(owner).get(name) if hasattr(owner, "__dict__") else None
        return own if own is not None else getattr(type(owner), name, None)
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        owner = value_of(frame, expression.value)
        return owner.get(expression.slice.value) if type(owner) is dict else None
    return None


def _number(frame: FrameType, loop: Loop) -> Any:
    name, source = loop.number_name, source_of(frame.f_code.co_filename)
    if name is None or source is None or name in source.bound_elsewhere:
        return None
    value = frame.f_locals.get(name)
    return value if type(value) in _NUMBERS else None


def _items(frame: FrameType, loop: Loop) -> Sequence[Any] | None:
    """What the loop goes over, where that is a list, tuple, dict or the like of a variable."""
    names = loop.source_names()
    value: Any = value_of(frame, names[0]) if len(names) == 1 else None
    if type(value) not in (list, tuple, dict, range, str) or len(value) > ITEMS_MAX:
        return None
    return list(value)


def _distinct(frame: FrameType, loop: Loop) -> bool:
    items = _items(frame, loop)
    if items is None or not all(type(item) in _NUMBERS for item in items):
        return False
    return len(set(map(repr, items))) == len(items)


def _index(frame: FrameType, loop: Loop) -> int | None:
    """The place in a list of the item that the loop has, where it is there once."""
    name, items = loop.number_name, _items(frame, loop)
    if name is None or items is None or not loop.takes_whole_item:
        return None
    item = frame.f_locals.get(name)
    found = [index for index, each in enumerate(items) if each is item]
    return found[0] if len(found) == 1 and type(item) not in _NUMBERS else None


def script_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the script, from this one outwards."""
    count = 0
    while frame is not None and not is_script_file(frame.f_code.co_filename):
        count += 1
        frame = frame.f_back if count < FRAMES_MAX else None
    return frame


def current_frame(depth: int = 0) -> FrameType:
    """The frame of the caller, or `depth` calls above it."""
    return sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
