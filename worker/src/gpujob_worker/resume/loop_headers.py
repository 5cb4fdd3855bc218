"""Compiles a source with other loop headers, which call the listener for a loop's items or its
continuation.

Lines, columns and names are those of the source, in tracebacks and for tracers too.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from types import CodeType
from typing import Any

from gpujob_worker.resume.rerun import LOOP, TURN


def rewritten(source: bytes, filename: str, lines: Collection[int]) -> CodeType:
    """Returns the module's code, in which the `for` and `while` statements in `lines` call the
    listener.

    Raises the errors of `compile`.
    """
    tree: Any = compile(source, filename, "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.For) and node.lineno in lines:
            node.iter = _call(LOOP, filename, node.lineno, node.iter, node.iter)
        elif isinstance(node, ast.While) and node.lineno in lines:
            node.test = _asking(filename, node.lineno, node.test)
    return compile(tree, filename, "exec", dont_inherit=True)


def _asking(filename: str, line: int, test: ast.expr) -> ast.expr:
    if isinstance(test, ast.Constant) and not test.value:
        return test  # the body never runs
    call = _call(TURN, filename, line, test)
    return ast.copy_location(ast.BoolOp(ast.And(), [call, test]), test)


def _call(name: str, filename: str, line: int, place: ast.expr, *more: ast.expr) -> ast.expr:
    """Returns a call at the position of the expression."""
    new = [ast.Name(name, ast.Load()), ast.Constant(filename), ast.Constant(line)]
    function, *values = (ast.copy_location(each, place) for each in new)
    return ast.copy_location(ast.Call(function, [*values, *more], []), place)
