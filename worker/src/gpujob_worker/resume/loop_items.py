"""The items of a `for`: whether a new iterator yields the same ones, and the position of a turn
among them.

On the way back an iterator is made anew before all of the script's variables are restored. The
values from which it is made must be those of when the loop began. A list, an array or a tensor may
differ until then, because its iterator reads from it and its content is restored in place.
"""

import ast
import functools
import hashlib
import io
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from gpujob_worker.resume.passes import Pass
from gpujob_worker.resume.script_names import is_script_callable, value_of
from gpujob_worker.resume.script_source import (
    Link,
    Loop,
    bindings,
    called,
    changed_in,
    function_of,
    loops_around,
    root_of,
    source_of,
)

# Maximum number of items that are searched for one.
ITEMS_MAX = 100_000
_NUMBERS = (int, str, bool, float)
_PLAIN = (*_NUMBERS, type(None), bytes)
_ARRAYS = (np.ndarray, torch.Tensor)
_MODULES = (torch.nn.ModuleList, torch.nn.Sequential, torch.nn.ParameterList)
_DICTS = (dict, torch.nn.ModuleDict, torch.nn.ParameterDict)
_CONTAINERS = (list, tuple, range, str, *_ARRAYS, *_MODULES, *_DICTS)
_COUNTING = ("range", "trange", "count")
# Their iterators read from them turn by turn, and they are restored in place.
_READ_IN_PLACE = (list, *_ARRAYS)
_ANOTHER = "may be another value when the loop begins anew"
_OTHERWISE = "may give other items when it begins anew"
_VIEWS = ("items", "keys", "values")
# Functions that read all items before the first turn, or in another order.
_READING_AHEAD = ("sorted", "reversed", "list", "tuple")
# Functions whose further arguments are for display.
_SHOWING = ("tqdm", "track", "progress_bar")
# Modules of the objects that these return.
_BARS = ("tqdm.", "rich.", "fastprogress.")
# Functions whose iterators do not yield one item per input item.
_GIVING_OTHERWISE = ("cycle", "chain", "zip_longest", "product", "groupby", "filter", "compress",
                     "takewhile", "dropwhile", "filterfalse", "repeat", "tee", "pairwise",
                     "batched")  # fmt: skip
# Functions whose result depends only on their arguments.
_PURE = ("len", "int", "float", "bool", "min", "max", "abs", "round", "ceil", "floor", "sqrt",
         "size", "numel", "dim", "get_world_size")  # fmt: skip
_STEADY = (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.UnaryOp, ast.BoolOp,
           ast.Compare, ast.IfExp, ast.Tuple, ast.List, ast.Dict, ast.operator, ast.unaryop,
           ast.boolop, ast.cmpop, ast.expr_context, ast.Slice)  # fmt: skip


class NoPlaceError(Exception):
    """The script cannot be brought back to its place. The text is the reason."""


class LoopItems:
    """The items of one running `for`."""

    def __init__(
        self, frame: FrameType, loop: Loop, passes: Sequence[Pass], *, outermost: bool
    ) -> None:
        """Raises `NoPlaceError` if a new iterator may yield other items than the present one.

        With `outermost`, the script reaches the loop by code before its first step, which is
        repeated from the same random numbers.
        """
        self._frame, self._loop, self._outermost = frame, loop, outermost
        # The values from which the iterator is made, by expression.
        self.given: dict[str, Any] = {}
        self._changed = loop.changed_names() | self._bound_elsewhere()
        self._loaders: list[ast.expr] = []
        self._bindings_seen: set[str] = set()
        for link in loop.links():
            self._check_link(link, passes)
        for source in loop.source_names():
            self._check_source(source)
        if passes:
            self._check_passes(passes)
        elif self._loaders:
            self._check_others()

    def _bound_elsewhere(self) -> set[str]:
        source = source_of(self._frame.f_code.co_filename)
        return source.bound_elsewhere if source is not None else set()

    def _refuse(self, what: ast.expr, why: str) -> NoPlaceError:
        return NoPlaceError(f"the loop in line {self._loop.line}: {ast.unparse(what):.80} {why}")

    def _check_link(self, link: Link, passes: Sequence[Pass]) -> None:
        """Checks a function that passes on the items of others."""
        call = link.call
        function = value_of(self._frame, call.func)
        if function is None or is_script_callable(function):
            raise self._refuse(call, _OTHERWISE)
        more = [*link.more, *(each.value for each in call.keywords)]
        bounds = called(call) == "islice" and len(link.more) > 1
        if passes and (called(call) in _READING_AHEAD or bounds):
            raise self._refuse(call, "reads other batches than its turns get")
        if called(call) == "iter" and more:
            raise self._refuse(call, _OTHERWISE)  # it calls its argument
        if called(call) not in _SHOWING:
            for each in more:
                self._check_steady(each)

    def _check_source(self, source: ast.expr) -> None:
        if isinstance(source, (ast.List, ast.Tuple, ast.Dict, ast.Constant)):
            self._check_steady(source)
        elif isinstance(source, ast.Call):
            self._check_call(source)
        elif _may_be_read_by(value_of(self._frame, source)):
            self._loaders.append(source)
        else:
            self._check_container(source)

    def _check_call(self, call: ast.Call) -> None:
        name, function = called(call), value_of(self._frame, call.func)
        if name in _COUNTING and function is not None and not is_script_callable(function):
            for each in (*call.args, *(keyword.value for keyword in call.keywords)):
                self._check_steady(each)
        elif isinstance(call.func, ast.Attribute) and name in _VIEWS:
            ahead = name != "keys" and not self._outermost and self._reads_ahead
            if ahead or not isinstance(value_of(self._frame, call.func.value), _DICTS):
                raise self._refuse(call, _OTHERWISE)
            self._check_container(call.func.value)
        elif name in _GIVING_OTHERWISE:
            raise self._refuse(call, _OTHERWISE)
        else:
            self._loaders.append(call)  # if its passes begin in the loop

    def _check_passes(self, passes: Sequence[Pass]) -> None:
        """Checks that the loop gets a batch of each pass in each turn."""
        through = next((each.through for each in passes if each.through is not None), None)
        if through is not None:
            raise NoPlaceError(f"{through} reads a loader for the loop in line {self._loop.line}")
        if len(self._loaders) != len(passes):
            raise NoPlaceError(
                f"the loop in line {self._loop.line} reads {len(passes)} loaders, and goes over"
                f" {len(self._loaders)}"
            )

    def _check_others(self) -> None:
        """Checks calls that yield no batches. Libraries yield the same before the first step."""
        for source in self._loaders:
            function = value_of(self._frame, source.func) if isinstance(source, ast.Call) else None
            known = function is not None and not is_script_callable(function)
            if not (known and self._outermost and self._takes_no_iterator(source)):
                raise self._refuse(source, _OTHERWISE)

    def _takes_no_iterator(self, source: ast.expr) -> bool:
        """Returns whether no argument of the call continues from an earlier position."""
        for node in ast.walk(source):
            if node is source:
                continue
            if isinstance(node, ast.GeneratorExp):
                return False
            if isinstance(node, ast.Call):
                function = value_of(self._frame, node.func)
                if function is None or is_script_callable(function):
                    return False
            if isinstance(node, (ast.Name, ast.Attribute)):
                value = value_of(self._frame, node)
                if hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
                    return False
        return True

    @functools.cached_property
    def _wrappers(self) -> set[str]:
        return {called(link.call) for link in self._loop.links()}

    @property
    def _reads_ahead(self) -> bool:
        return not self._wrappers.isdisjoint(_READING_AHEAD)

    def _check_container(self, source: ast.expr) -> None:
        value = value_of(self._frame, source)
        in_order = isinstance(value, (set, frozenset)) and "sorted" in self._wrappers
        if not (in_order or _is_container(value)):
            raise self._refuse(source, _OTHERWISE)
        if root_of(source) in self._changed:
            raise self._refuse(source, "changes while the loop goes over it")
        if isinstance(value, _READ_IN_PLACE) and not self._reads_ahead:
            return
        if len(value) > ITEMS_MAX:
            raise self._refuse(source, f"has more than {ITEMS_MAX} items")
        if not self._outermost:
            self._check_bindings(root_of(source))
        self.given[ast.unparse(source)] = content_of(value)

    def _check_steady(self, expression: ast.expr) -> None:
        """Checks that the other values of the loop's expression are those of when the
        loop began.
        """
        if self._outermost:
            return
        for node in ast.walk(expression):
            if isinstance(node, (*_STEADY, ast.Call)) and not self._is_unknown_call(node):
                continue
            raise self._refuse(expression, _ANOTHER)
        for leaf in _leaves(expression):
            if root_of(leaf) in self._changed:
                raise self._refuse(leaf, "changes while the loop goes on")
            self._check_bindings(root_of(leaf))
            value = value_of(self._frame, leaf)
            if not callable(value):
                self.given[ast.unparse(leaf)] = content_of(value)

    def _check_bindings(self, name: str) -> None:
        """Checks that names bound in the loops around are bound to the same again on the way."""
        if name in self._bindings_seen:
            return
        self._bindings_seen.add(name)
        scope, around = self._scope
        if scope is not None and name in changed_in(scope):
            raise self._refuse(ast.Name(name), _ANOTHER)
        for value in bindings(scope, around).get(name, ()) if scope is not None else ():
            if value is None:
                raise self._refuse(ast.Name(name), _ANOTHER)
            self._check_steady(value)

    @functools.cached_property
    def _scope(self) -> tuple[ast.AST | None, list[ast.For | ast.While]]:
        """The code that runs again on the way to the loop, within its function, and the loops
        around.
        """
        code = self._frame.f_code
        around = loops_around(code, self._frame.f_lineno)
        first = around[0].node
        return first if first is not self._loop.node else function_of(code), [
            loop.node for loop in around
        ]

    def _is_unknown_call(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = value_of(self._frame, node.func)
        return called(node) not in _PURE or function is None or is_script_callable(function)

    @property
    def number(self) -> Any:
        """A value that distinguishes the turn from all others of the loop, or None."""
        name = self._loop.number_name
        if not self._loop.counts or name is None or name in self._bound_elsewhere():
            return None
        value = self._frame.f_locals.get(name)
        return value if type(value) in _NUMBERS else None

    @property
    def index(self) -> int | None:
        """The position of the loop's item among those of a variable, or None unless it occurs there
        once.
        """
        name, items = self._loop.number_name, self._items()
        if name is None or items is None or not self._loop.takes_whole_item:
            return None
        if name in self._bound_elsewhere() or name not in self._frame.f_locals:
            return None
        item = self._frame.f_locals[name]
        found = [index for index, each in enumerate(items) if _is_same(each, item)]
        return found[0] if len(found) == 1 else None

    def _items(self) -> Sequence[Any] | None:
        """Returns the loop's items if they are a list, tuple, dict or the like of a variable, or
        None.
        """
        names = self._loop.source_names()
        value: Any = value_of(self._frame, names[0]) if len(names) == 1 else None
        if not _is_container(value) or isinstance(value, _ARRAYS) or len(value) > ITEMS_MAX:
            return None
        items = list(value)
        for link in reversed(self._loop.links()):
            name = called(link.call)
            if name in ("enumerate", "zip") or (name == "islice" and len(link.more) > 1):
                return None
            if name == "reversed":
                items.reverse()
            if name == "sorted":
                if link.call.keywords or not all(type(item) in _NUMBERS for item in items):
                    return None
                items.sort()
        return items


def differs(frame: FrameType, given: dict[str, Any]) -> str | None:
    """Returns the expression of a loop's head whose value differs, or None."""
    for text, content in given.items():
        if content_of(value_of(frame, ast.parse(text, mode="eval").body)) != content:
            return text
    return None


def content_of(value: Any) -> Any:
    """Returns the facts of a value on which a loop can depend, as a plain value."""
    if type(value) in _PLAIN:
        return value
    kind = type(value).__name__
    if isinstance(value, _ARRAYS):
        return f"{kind} {tuple(value.shape)}"
    try:
        size = len(value)
    except Exception:  # a class of the script may raise anything
        return kind
    items: list[Any] = []
    if size <= ITEMS_MAX and isinstance(value, (dict, list, tuple, range, set, frozenset)):
        items = list(cast("Sequence[Any]", value))  # the keys of a dict
        if isinstance(value, (set, frozenset)):
            items.sort(key=repr)
    shown = hashlib.sha256(repr([_shown(item) for item in items]).encode()).hexdigest()
    return f"{kind} {size} {shown}"


def _shown(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [_shown(each) for each in cast("Sequence[Any]", value)]
    return value if type(value) in _PLAIN else type(value).__name__


def _may_be_read_by(value: Any) -> bool:
    """Returns whether it is a loader, or a progress bar for one."""
    return isinstance(value, DataLoader) or type(value).__module__.startswith(_BARS)


def _is_same(one: Any, other: Any) -> bool:
    if type(one) in _NUMBERS:
        return type(one) is type(other) and repr(one) == repr(other)
    return one is other


def _is_container(value: Any) -> bool:
    """Returns whether its iterator yields its items in their order."""
    base = next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)
    return base is not None and not is_script_callable(type(value).__iter__)


def _leaves(expression: ast.AST) -> Iterator[ast.expr]:
    """Yields names, and attributes and entries of names, as long as possible."""
    if isinstance(expression, (ast.Name, ast.Attribute)) or (
        isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant)
    ):
        yield expression
        return
    for child in ast.iter_child_nodes(expression):
        yield from _leaves(child)
