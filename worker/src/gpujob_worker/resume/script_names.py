"""Finds the values of names in a script's expressions without running anything."""

import ast
import builtins
import functools
import types
from types import FrameType
from typing import Any

from gpujob_worker.resume.script_source import is_of_script

# Functions in functions: decorators, partial applications.
_DEEP_MAX = 20


def value_of(frame: FrameType, expression: ast.expr) -> Any:
    """Returns the value of a name or of a name's attribute. None for anything else, and if it does
    not exist.
    """
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


def is_script_callable(function: Any) -> bool:
    """Returns whether a call of it may run code of the script.

    A library's decorator may be around a function of the script, and a library's class may be a
    base of the script's.
    """
    for _ in range(_DEEP_MAX):
        if isinstance(function, functools.partial):
            function = function.func
            continue
        if isinstance(function, (types.MethodType, staticmethod, classmethod)):
            function = function.__func__
            continue
        if is_of_script(
            function if isinstance(function, (types.FunctionType, type)) else type(function)
        ):
            return True
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is None:
            return False
        function = wrapped
    return True
