"""Detects whether the script catches `KeyboardInterrupt` around a call and may save there."""

import ast
import linecache
from types import FrameType

from gpujob_worker.run.installed_files import is_script_file

FRAMES_MAX = 200
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def caught_by_script(frame: FrameType | None) -> bool:
    """Returns whether the innermost `except KeyboardInterrupt` around `frame` is the script's own.

    A library's handler would end the script in its own way. Lightning, for example, leaves with
    exit code 1.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            return False
        if _catches(frame):
            filename = frame.f_code.co_filename
            # Code without a file is that of `python -c`, whose lines Python 3.13 keeps.
            return filename.startswith("<") or is_script_file(filename)
        frame = frame.f_back
    return False


def _catches(frame: FrameType) -> bool:
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    if "KeyboardInterrupt" not in source:
        return False
    try:
        handlers = _handlers_around(ast.parse(source), frame.f_lineno)
    except (SyntaxError, ValueError):
        return False
    return any(_names_it(handler.type) for handler in handlers)


def _handlers_around(tree: ast.AST, line: int) -> list[ast.ExceptHandler]:
    """Returns the handlers around the line within its function."""
    found: list[ast.ExceptHandler] = []
    node: ast.AST | None = tree
    while node is not None:
        inside = next((child for child in ast.iter_child_nodes(node) if _has(child, line)), None)
        if isinstance(inside, _SCOPES):
            found = []
        elif isinstance(node, ast.Try) and inside in node.body:
            found += node.handlers
        node = inside
    return found


def _has(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _names_it(kind: ast.expr | None) -> bool:
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(found, ast.Name) and found.id == "KeyboardInterrupt" for found in kinds)
