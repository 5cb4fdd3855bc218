"""The loops of a script, read from its source: which ones are around a line, and what counts them.

Nothing is run here. A file is parsed once, when something of it is asked for.
"""

import ast
import functools
import hashlib
import linecache
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import gpujob_api
import gpujob_worker

# Calls that give each number once, in an order of their own.
_COUNTING = ("range", "trange", "enumerate", "count")
# Calls that hand on what they are given, one for one.
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
        head = self.node.iter if isinstance(self.node, ast.For) else self.node.test
        if isinstance(head, ast.Constant) and not self.is_for:
            # Python leaves out a test of a constant: a turn begins with the body.
            return range(self.node.body[0].lineno, self.node.body[0].lineno + 1)
        return range(self.node.lineno, (head.end_lineno or head.lineno) + 1)

    @property
    def body(self) -> range:
        last = self.node.body[-1]
        return range(self.node.body[0].lineno, (last.end_lineno or last.lineno) + 1)

    @property
    def refusal(self) -> str | None:
        """Why the script cannot be brought back into this loop; None where it can."""
        head = self.node.iter if isinstance(self.node, ast.For) else self.node.test
        if (head.end_lineno or head.lineno) >= self.node.body[0].lineno:
            return f"the loop in line {self.line} has its body in the line of its head"
        return None

    @property
    def number_name(self) -> str | None:
        """The variable that tells the turns of a `for` apart, if the body leaves it alone."""
        if not isinstance(self.node, ast.For):
            return None
        target = self.node.target
        if isinstance(target, (ast.Tuple, ast.List)) and target.elts:
            target = target.elts[0]
        if not isinstance(target, ast.Name) or target.id in _assigned(self.node.body):
            return None
        return target.id

    @property
    def takes_whole_item(self) -> bool:
        """Whether the variable that tells the turns apart is all that the iterator gives."""
        return isinstance(self.node, ast.For) and isinstance(self.node.target, ast.Name)

    @property
    def counts(self) -> bool:
        """Whether the iterator gives no number twice, by what its expression is."""
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
        if isinstance(found, (ast.List, ast.Tuple, ast.Set)):
            values = [each.value for each in found.elts if isinstance(each, ast.Constant)]
            return len(values) == len(found.elts) == len({repr(value) for value in values})
        return False

    def source_names(self) -> list[ast.expr]:
        """The expressions that the loop's iterator takes its items from, one for one, outermost
        first: `loader` of `enumerate(tqdm(loader))`, both of `zip(labelled, unlabelled)`.
        """
        if not isinstance(self.node, ast.For):
            return []
        return list(_taken_from(self.node.iter))


def _taken_from(found: ast.expr) -> Iterator[ast.expr]:
    if not isinstance(found, ast.Call):
        yield found
        return
    name = called(found)
    if name == "zip":
        for argument in found.args:
            yield from _taken_from(argument)
    elif name in ("enumerate", *_HANDING_ON) and found.args:
        yield from _taken_from(found.args[0])
    else:
        yield found


def called(call: ast.Call) -> str:
    """The name of the function that is called, without what it belongs to."""
    function = call.func
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _assigned(body: list[ast.stmt]) -> set[str]:
    """Names that the statements may bind, in this scope or as `nonlocal` or `global` of others."""
    found: set[str] = set()
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.add(node.id)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                found.update(node.names)
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
        """The loops of `code` whose head or body has the line, outermost first.

        Raises `LookupError` if the source has no such code, or if the line is in a comprehension.
        """
        return list(self._around(self._scope(code), line))

    def loop_at(self, line: int) -> Loop | None:
        """The loop whose statement begins in the line."""
        for node in ast.walk(self._tree):
            if isinstance(node, (ast.For, ast.While)) and node.lineno == line:
                return Loop(node)
        return None

    def _scope(self, code: CodeType) -> ast.AST:
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
                continue  # other parts of the line may be what runs
            if isinstance(child, ast.AsyncFor):
                raise LookupError(f"line {line} is in an asynchronous loop")
            if isinstance(child, (ast.For, ast.While)):
                loop = Loop(child)
                if line in loop.header or line in loop.body:
                    yield loop
            yield from self._around(child, line)


@functools.lru_cache(maxsize=256)
def source_of(filename: str) -> Source | None:
    """The file's source; None where there is none to read."""
    text = "".join(linecache.getlines(filename))
    if not text:
        return None
    try:
        return Source(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=4096)
def loops_around(code: CodeType, line: int) -> tuple[Loop, ...]:
    """As `Source.loops_around`, of any code. Raises `LookupError` also where there is no source."""
    source = source_of(code.co_filename)
    if source is None:
        raise LookupError(f"the source of {code.co_filename} cannot be read")
    return tuple(source.loops_around(code, line))


def file_hash(filename: str) -> str | None:
    try:
        return hashlib.sha256(Path(filename).read_bytes()).hexdigest()
    except OSError:
        return None


def _library_folders() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {paths[name] for name in names if name in paths}
    own = [str(Path(of).resolve().parent) for of in (gpujob_api.__file__, gpujob_worker.__file__)]
    return (*(folder + "/" for folder in (*folders, *own)), "<frozen")


_FOLDERS = _library_folders()


@functools.lru_cache(maxsize=8192)
def is_script_file(filename: str) -> bool:
    """Whether the file is the user's: of no installed package, and not of Python."""
    if filename.startswith((*_FOLDERS, "<")):
        return False
    return "site-packages" not in filename and "dist-packages" not in filename


def script_modules() -> list[str]:
    """Names of imported modules that are the user's, `__main__` first."""
    names = [
        name
        for name, module in list(sys.modules.items())
        if name not in ("__main__", "__mp_main__")
        and not name.startswith("gpujob_")
        and is_script_file(getattr(module, "__file__", None) or "<none>")
    ]
    return ["__main__", *sorted(names)]
