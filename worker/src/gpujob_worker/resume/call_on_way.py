"""Decides whether a call in the middle of a statement can be repeated with the same result.

A statement's values from before the call are in half an expression, which cannot be read. On the
way back they are read again before all variables are restored. If a value might differ then, the
script has no place there.
"""

import ast
from types import FrameType

from gpujob_worker.resume.script_names import value_of
from gpujob_worker.resume.script_source import source_of

_PLAIN = (bool, int, float, complex, str, bytes, tuple, type(None))
# The first value of these is read and dropped before the next one is evaluated.
_DROPPING = (ast.BoolOp, ast.IfExp)


def refusal(frame: FrameType, call: ast.Call | None) -> str | None:
    """Returns why the statement in `frame` that contains this call cannot be started again, or
    None.
    """
    source = source_of(frame.f_code.co_filename)
    statement = source.statement_of(call) if source is not None and call is not None else None
    if source is None or call is None or statement is None:
        return None
    read = _read_before(statement, call) or []
    if isinstance(statement, ast.AugAssign):
        read.insert(0, statement.target)
    for expression in read:
        if _may_differ(frame, expression, source.bound_elsewhere):
            text = ast.unparse(expression)
            return f"line {frame.f_lineno} reads {text:.60} before the call that is under way"
    return None


def _read_before(node: ast.AST, call: ast.Call) -> list[ast.expr] | None:
    """Returns the expressions in `node` that are read before the call, or None if the call is not
    in it.
    """
    if node is call:
        return []
    before: list[ast.expr] = []
    for child in _in_order(node):
        found = _read_before(child, call)
        if found is not None:
            return found if isinstance(node, _DROPPING) else before + found
        if isinstance(child, ast.expr):
            before.append(child)
    return None


def _in_order(node: ast.AST) -> list[ast.AST]:
    """Returns the parts of a statement's own expressions in Python's order of evaluation."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
        return [node.value] if node.value is not None else []
    if isinstance(node, (ast.For, ast.While, ast.If)):
        return [node.iter if isinstance(node, ast.For) else node.test]
    if isinstance(node, ast.With):
        return [item.context_expr for item in node.items]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        return [each for pair in pairs for each in pair if each is not None]
    if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Try)):
        return []
    return list(ast.iter_child_nodes(node))


def _may_differ(frame: FrameType, expression: ast.expr, bound_elsewhere: set[str]) -> bool:
    """Returns whether the expression may have another value before all variables are restored."""
    if isinstance(expression, (ast.Constant, ast.Lambda)):
        return False
    if isinstance(expression, ast.Name):
        # Plain values of a function's own variables are restored before its loops begin.
        own = expression.id in frame.f_locals and expression.id not in bound_elsewhere
        return not own and isinstance(value_of(frame, expression), _PLAIN)
    if isinstance(expression, (ast.Attribute, ast.Subscript)):
        return isinstance(value_of(frame, expression), _PLAIN)
    if isinstance(expression, ast.Call):
        return True
    return any(
        _may_differ(frame, child, bound_elsewhere)
        for child in ast.iter_child_nodes(expression)
        if isinstance(child, ast.expr)
    )
