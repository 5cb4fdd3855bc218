"""Assigns to variables of a running or halted function, as debuggers do."""

import sys
from types import FrameType
from typing import Any


def set_variables(frame: FrameType, values: dict[str, Any]) -> None:
    """Sets the given variables. Others stay."""
    variables = frame.f_locals
    for name, value in values.items():
        variables[name] = value
    if sys.version_info < (3, 13) and variables is not frame.f_globals:
        import ctypes

        # Before Python 3.13, `f_locals` does not write through, and this writes it back.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
