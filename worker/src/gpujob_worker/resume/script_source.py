"""The loops of a script, read from its source: which ones are around a line, and what counts their
turns.

Nothing is run here. A file is parsed once, when it is first needed.
"""

import ast
import functools
import hashlib
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from gpujob_worker.run.installed_files import is_script_file

# Calls that yield each number once, in an order of their own.
_COUNTING = ("range", "trange", "enumerate", "count")
# Calls that pass on their items one for one.
_HANDING_ON = (
    "tqdm",
    "islice",
    "iter",
    "track",
    "reversed",
    "sorted",
    "list",
    "tuple",
    "progress_bar",
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


# Since this version a comprehension's loop is in the code around it.
_HAS_COMPREHENSIONS_INLINE = sys.version_info >= (3, 12)
# Methods that change a container's items or their positions.
_CHANGING = ("append", "appendleft", "extend", "insert", "remove", "pop", "popleft", "popitem",
             "clear", "sort", "reverse", "rotate", "add", "discard", "update", "setdefault",
             "resize")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Link:
    """A call in a loop's head that passes on the items of its first argument, or of all
    in a `zip`.
    """

    call: ast.Call
    # The arguments that yield no items.
    more: tuple[ast.expr, ...]


@functools.lru_cache(maxsize=4096)
def _number_name(loop: ast.For | ast.While) -> str | None:
    if not isinstance(loop, ast.For):
        return None
    target = loop.target
    if isinstance(target, (ast.Tuple, ast.List)) and target.elts:
        target = target.elts[0]
    if not isinstance(target, ast.Name) or target.id in _bound(loop.body):
        return None
    others = [each for each in ast.walk(loop.target) if each is not target]
    return None if any(target.id in _names(each) for each in others[1:]) else target.id


@dataclass(frozen=True, slots=True)
class Loop:
    """A `for` or `while` statement of one file."""

    node: ast.For | ast.While

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def is_for(self) -> bool:
        return isinstance(self.node, ast.For)

    @property
    def header(self) -> range:
        """The lines at which a turn of the loop begins."""
        if self.is_endless:
            # Python leaves out the test of a constant, so a turn begins with the body.
            return range(self.node.lineno, self.node.body[0].lineno + 1)
        return range(self.node.lineno, (self._head.end_lineno or self._head.lineno) + 1)

    @property
    def _head(self) -> ast.expr:
        return self.node.iter if isinstance(self.node, ast.For) else self.node.test

    @property
    def is_endless(self) -> bool:
        return isinstance(self.node, ast.While) and isinstance(self.node.test, ast.Constant)

    @property
    def body(self) -> range:
        last = self.node.body[-1]
        return range(self.node.body[0].lineno, (last.end_lineno or last.lineno) + 1)

    @property
    def refusal(self) -> str | None:
        """Why the script cannot be brought back into this loop, or None."""
        head = self._head
        last = head.end_lineno or head.lineno
        if last >= self.node.body[0].lineno:
            return f"the loop in line {self.line} has its body in the line of its head"
        if isinstance(self.node, ast.While) and last > self.line:
            # A line of it may come again while the condition is half evaluated.
            return f"the loop in line {self.line} has its condition in more than one line"
        if _HAS_COMPREHENSIONS_INLINE and self._has_comprehension():
            return f"the loop in line {self.line} has a comprehension where its turns begin"
        return None

    def _has_comprehension(self) -> bool:
        begins: list[ast.AST] = [self._head]
        if self.is_endless:
            line = self.node.body[0].lineno
            found = ast.walk(self.node.body[0])
            begins = [each for each in found if getattr(each, "lineno", 0) == line]
        return any(isinstance(node, _COMPREHENSIONS) for each in begins for node in ast.walk(each))

    @property
    def number_name(self) -> str | None:
        """The variable that distinguishes the turns of a `for`, if the body does not change it."""
        return _number_name(self.node)

    @property
    def takes_whole_item(self) -> bool:
        """Whether the variable that distinguishes the turns is the iterator's whole item."""
        return isinstance(self.node, ast.For) and isinstance(self.node.target, ast.Name)

    @property
    def counts(self) -> bool:
        """Whether the iterator yields no number twice, according to its expression."""
        if not isinstance(self.node, ast.For):
            return False
        found = self.node.iter
        while isinstance(found, ast.Call):
            name = called(found)
            if name in _COUNTING:
                return True
            if isinstance(found.func, ast.Attribute) and name in ("items", "keys"):
                return True
            if name not in _HANDING_ON or not found.args:
                return False
            found = found.args[0]
        if isinstance(found, (ast.List, ast.Tuple)):
            values = [each.value for each in found.elts if isinstance(each, ast.Constant)]
            return len(values) == len(found.elts) == len({repr(value) for value in values})
        return False

    def source_names(self) -> list[ast.expr]:
        """Returns the expressions from which the loop's iterator takes its items one for one,
        outermost first.

        That is `loader` in `enumerate(tqdm(loader))`, and both in `zip(labelled, unlabelled)`.
        """
        return [each for each in self._taken_from() if not isinstance(each, Link)]

    def links(self) -> list[Link]:
        """Returns the calls around these, outermost first."""
        return [each for each in self._taken_from() if isinstance(each, Link)]

    def _taken_from(self) -> list[ast.expr | Link]:
        return list(_taken_from(self.node.iter)) if isinstance(self.node, ast.For) else []

    def changed_names(self) -> frozenset[str]:
        """Returns the names that a turn binds, or whose items it changes, as far as it
        names them.
        """
        return _changed_names(self.node)


@functools.lru_cache(maxsize=4096)
def _changed_names(loop: ast.For | ast.While) -> frozenset[str]:
    targets = _names(loop.target) if isinstance(loop, ast.For) else set[str]()
    return frozenset(_bound(loop.body) | changed_in(loop) | targets)


def _taken_from(found: ast.expr) -> Iterator[ast.expr | Link]:
    name = called(found) if isinstance(found, ast.Call) else ""
    if not isinstance(found, ast.Call) or not found.args:
        yield found
    elif name == "zip":
        yield Link(found, ())
        for argument in found.args:
            yield from _taken_from(argument)
    elif name in ("enumerate", *_HANDING_ON):
        yield Link(found, tuple(found.args[1:]))
        yield from _taken_from(found.args[0])
    else:
        yield found


def called(call: ast.Call) -> str:
    """Returns the name of the called function, without its owner."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _bound(body: list[ast.stmt]) -> set[str]:
    """Returns names that the statements may bind, in this scope or as another one's `nonlocal` or
    `global`.
    """
    found: set[str] = set()
    for node in _nodes(body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found.update(node.names)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
            found.add(node.name or "")
        elif isinstance(node, ast.MatchMapping):
            found.add(node.rest or "")
    return found


@functools.lru_cache(maxsize=4096)
def changed_in(scope: ast.AST) -> frozenset[str]:
    """Returns names of containers whose items or their positions change."""
    found: list[ast.expr] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
                found.append(node.func.value)
            if called(node) == "shuffle":
                found += node.args[:1]
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            moves = isinstance(node.ctx, ast.Del) or isinstance(node.slice, ast.Slice)
            found += [node.value] if moves else []
    return frozenset(root_of(each) for each in found)


def root_of(expression: ast.expr) -> str:
    """Returns the name to which an attribute or an entry belongs."""
    while isinstance(expression, (ast.Attribute, ast.Subscript)):
        expression = expression.value
    return expression.id if isinstance(expression, ast.Name) else ""


def _names(expression: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(expression) if isinstance(each, ast.Name)}


def _nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    for statement in body:
        yield from ast.walk(statement)


def bindings(scope: ast.AST, around: list[ast.For | ast.While]) -> dict[str, list[ast.expr | None]]:
    """Returns the values bound to names in a scope, or None for anything but a plain assignment.

    Targets of the loops `around` are left out.
    """
    found: dict[str, list[ast.expr | None]] = {}
    plain: set[int] = set()
    for node in ast.walk(scope):
        if isinstance(node, (ast.For, ast.While)) and node in around:
            targets = ast.walk(node.target) if isinstance(node, ast.For) else ()
            plain.update(map(id, targets))
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(node.value)
                plain.add(id(target))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in plain:
            found.setdefault(node.id, []).append(None)
    return found


class Source:
    """One file of the script."""

    def __init__(self, text: str) -> None:
        self._tree = ast.parse(text)
        # Names that functions may bind for others.
        self.bound_elsewhere = {
            name
            for node in ast.walk(self._tree)
            if isinstance(node, (ast.Global, ast.Nonlocal))
            for name in node.names
        }

    def loops_around(self, code: CodeType, line: int) -> list[Loop]:
        """Returns the loops of `code` whose head or body has the line, outermost first.

        Raises `LookupError` if the source has no such code, or if the line is in a comprehension.
        """
        return list(self._around(self.scope(code), line))

    def loop_at(self, line: int) -> Loop | None:
        """Returns the loop whose statement begins in the line, or None."""
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.For, ast.While)) and node.lineno == line:
                return Loop(node)
        return None

    def call_at(self, place: tuple[int | None, ...]) -> ast.Call | None:
        """Returns the call with this first and last line and column, or None."""
        return self._calls.get(place)

    @functools.cached_property
    def _calls(self) -> dict[tuple[int | None, ...], ast.Call]:
        return {
            (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset): node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Call)
        }

    def statement_of(self, call: ast.Call) -> ast.stmt | None:
        """Returns the innermost statement that contains the call."""
        return self._statements.get(call)

    @functools.cached_property
    def _statements(self) -> dict[ast.Call, ast.stmt]:
        found: dict[ast.Call, ast.stmt] = {}
        for statement in ast.walk(self._tree):
            # Outer statements come first, and inner ones overwrite them.
            if isinstance(statement, ast.stmt):
                found.update(
                    (each, statement) for each in ast.walk(statement) if isinstance(each, ast.Call)
                )
        return found

    def scope(self, code: CodeType) -> ast.AST:
        """Returns the module, or the function with this code. Raises `LookupError`."""
        if code.co_name == "<module>":
            return self._tree
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef) and node.name == code.co_name:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if code.co_firstlineno == first:
                    return node
        raise LookupError(f"{code.co_name} is not a plain function of its file")

    def _around(self, scope: ast.AST, line: int) -> Iterator[Loop]:
        for child in ast.iter_child_nodes(scope):
            first, last = getattr(child, "lineno", None), getattr(child, "end_lineno", None)
            if first is None or last is None:
                yield from self._around(child, line)
                continue
            if isinstance(child, _SCOPES) or not first <= line <= last:
                continue
            if isinstance(child, _COMPREHENSIONS) and first == last == line:
                continue  # other parts of the line may be running
            if isinstance(child, ast.AsyncFor):
                raise LookupError(f"line {line} is in an asynchronous loop")
            if isinstance(child, (ast.For, ast.While)):
                loop = Loop(child)
                if line in loop.header or line in loop.body:
                    yield loop
            yield from self._around(child, line)


@functools.lru_cache(maxsize=256)
def source_of(filename: str) -> Source | None:
    """Returns the file's source, or None if it cannot be read."""
    text = "".join(linecache.getlines(filename))
    if not text:
        return None
    try:
        return Source(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def loops_around(code: CodeType, line: int) -> tuple[Loop, ...]:
    """Like `Source.loops_around`, for any code. Raises `LookupError` without a source too."""
    found = _loops_around(code, line)
    if isinstance(found, str):
        raise LookupError(found)
    return found


@functools.lru_cache(maxsize=4096)
def _loops_around(code: CodeType, line: int) -> tuple[Loop, ...] | str:
    """Returns the loops, or why they are not known."""
    source = source_of(code.co_filename)
    if source is None:
        return f"the source of {code.co_filename} cannot be read"
    try:
        return tuple(source.loops_around(code, line))
    except LookupError as error:
        return str(error)


def function_of(code: CodeType) -> ast.AST | None:
    """Returns the function with this code as it is written, or None for a module."""
    source = source_of(code.co_filename)
    return source.scope(code) if source is not None and code.co_name != "<module>" else None


def call_at(filename: str, place: tuple[int | None, ...]) -> ast.Call | None:
    """Returns the call of a file with this first line and column, and last line and column, or
    None.
    """
    source = source_of(filename)
    return source.call_at(place) if source is not None else None


def file_hash(filename: str) -> str | None:
    try:
        return hashlib.sha256(Path(filename).read_bytes()).hexdigest()
    except OSError:
        return None


def is_of_script(value: Any) -> bool:
    """Returns whether a class or function is the script's own."""
    if isinstance(value, FunctionType):
        return is_script_file(value.__code__.co_filename)
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(module, "__name__", "")
    return name == "__main__" or is_script_file(getattr(module, "__file__", None) or "<none>")


# Modules of libraries by name. There are thousands, and each checkpoint needs those of the user.
_of_libraries: dict[str, Any] = {}
# The imported modules at the last call, and its result.
_imported: tuple[list[str], list[Any], list[str]] = ([], [], [])


def script_modules() -> list[str]:
    """Returns the names of imported modules that are the user's, `__main__` first."""
    global _imported
    known, values = list(sys.modules), list(sys.modules.values())
    # Identical values are not compared for equality.
    if known != _imported[0] or values != _imported[1]:
        modules = list(zip(known, values, strict=False))
        unknown = [(name, each) for name, each in modules if _of_libraries.get(name) is not each]
        names = [name for name, module in unknown if _is_script_module(name, module)]
        _of_libraries.update((name, module) for name, module in unknown if name not in names)
        _imported = known, values, ["__main__", *sorted(names)]
    return _imported[2]


def _is_script_module(name: str, module: Any) -> bool:
    if name in ("__main__", "__mp_main__") or name.startswith("gpujob_"):
        return False
    return is_script_file(getattr(module, "__file__", None) or "<none>")
