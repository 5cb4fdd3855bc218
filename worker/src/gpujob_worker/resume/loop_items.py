"""What a `for` goes over: whether a new iterator gives the same items, and where a turn is among
them.

On the way back an iterator is made anew before the script's variables are all put back. What it is
made of must be what it was when the loop began. A list, an array or a tensor may differ until then:
its iterator reads from it, and its content is put back in place.
"""

import ast
import hashlib
from collections.abc import Sequence
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpujob_worker.resume.passes import Pass
from gpujob_worker.resume.script_names import is_script_callable, value_of
from gpujob_worker.resume.script_source import Link, Loop, called, source_of

# Items among which one is looked for.
ITEMS_MAX = 100_000
_NUMBERS = (int, str, bool, float)
_PLAIN = (*_NUMBERS, type(None), bytes)
_ARRAYS = (np.ndarray, torch.Tensor)
_MODULES = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_DICTS = (dict, torch.nn.ModuleDict, torch.nn.ParameterDict)
_CONTAINERS = (list, tuple, range, str, *_ARRAYS, *_MODULES, *_DICTS)
_COUNTING = ("range", "trange", "count")
_VIEWS = ("items", "keys", "values")
# Functions that read all items before the first turn, or in another order.
_READING_AHEAD = ("sorted", "reversed", "list", "tuple")
# Functions whose further arguments are for people.
_SHOWING = ("tqdm", "track", "progress_bar")
# Functions whose iterators do not give one item for each one that they take.
_GIVING_OTHERWISE = ("cycle", "chain", "zip_longest", "product", "groupby", "filter", "compress",
                     "takewhile", "dropwhile", "filterfalse", "repeat", "tee", "pairwise",
                     "batched")  # fmt: skip
# Functions that follow from their arguments alone.
_PURE = ("len", "int", "float", "bool", "min", "max", "abs", "round", "ceil", "floor", "sqrt")
_STEADY = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.BoolOp,
           ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.operator, ast.unaryop,
           ast.boolop, ast.cmpop, ast.expr_context, ast.Slice)  # fmt: skip


class NoPlaceError(Exception):
    """The script cannot be brought back to where it is; the text is the reason."""


class LoopItems:
    """The items of one `for` that is under way."""

    def __init__(
        self, frame: FrameType, loop: Loop, passes: Sequence[Pass], *, outermost: bool
    ) -> None:
        """`outermost`: the script comes to the loop by what is done before its first step, which is
        done again from the same random numbers.

        Raises `NoPlaceError` if a new iterator may give other items than the one under way.
        """
        self._frame, self._loop, self._outermost = frame, loop, outermost
        # What the iterator is made of, by its expression.
        self.given: dict[str, Any] = {}
        self._changed = loop.changed_names() | self._bound_elsewhere()
        self._loaders = 0
        for link in loop.links():
            self._check_link(link, passes)
        for source in loop.source_names():
            self._check_source(source)
        if passes:
            self._check_passes(passes)

    def _bound_elsewhere(self) -> set[str]:
        source = source_of(self._frame.f_code.co_filename)
        return source.bound_elsewhere if source is not None else set()

    def _refuse(self, what: ast.expr, why: str) -> NoPlaceError:
        return NoPlaceError(f"the loop in line {self._loop.line}: {ast.unparse(what):.80} {why}")

    def _check_link(self, link: Link, passes: Sequence[Pass]) -> None:
        """A function that hands on the items of others."""
        call = link.call
        function = value_of(self._frame, call.func)
        if function is None or is_script_callable(function):
            raise self._refuse(call, "may give other items when it begins anew")
        more = [*link.more, *(each.value for each in call.keywords)]
        bounds = called(call) == "islice" and len(link.more) > 1
        if passes and (called(call) in _READING_AHEAD or bounds):
            raise self._refuse(call, "reads other batches than its turns get")
        if called(call) == "iter" and more:
            raise self._refuse(call, "may give other items when it begins anew")
        if called(call) not in _SHOWING:
            for each in more:
                self._check_steady(each)

    def _check_source(self, source: ast.expr) -> None:
        if isinstance(source, (ast.List, ast.Tuple, ast.Dict, ast.Constant)):
            self._check_steady(source)
        elif isinstance(source, ast.Call):
            self._check_call(source)
        elif isinstance(value_of(self._frame, source), DataLoader):
            self._loaders += 1
        else:
            self._check_container(source)

    def _check_call(self, call: ast.Call) -> None:
        name, function = called(call), value_of(self._frame, call.func)
        if name in _COUNTING and function is not None and not is_script_callable(function):
            for each in (*call.args, *(keyword.value for keyword in call.keywords)):
                self._check_steady(each)
            return
        if isinstance(call.func, ast.Attribute) and name in _VIEWS:
            if isinstance(value_of(self._frame, call.func.value), _DICTS):
                self._check_container(call.func.value)
                return
        elif name not in _GIVING_OTHERWISE:
            self._loaders += 1  # if its passes begin in the loop
            return
        raise self._refuse(call, "may give other items when it begins anew")

    def _check_passes(self, passes: Sequence[Pass]) -> None:
        through = next((each.through for each in passes if each.through is not None), None)
        if through is not None:
            raise NoPlaceError(f"{through} reads a loader for the loop in line {self._loop.line}")
