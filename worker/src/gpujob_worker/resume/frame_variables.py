"""Assigns to variables of a function that runs or is halted, as debuggers do."""

import sys
from types import FrameType
from typing import Any


def set_variables(frame: FrameType, values: dict[str, Any]) -> None:
    """Each becomes what is given; others stay."""
    variables = frame.f_locals
    for name, value in values.items():
        variables[name] = value
    if sys.version_info < (3, 13) and variables is not frame.f_globals:
        import ctypes

        # Before Python 3.13, which has `f_locals` write through, this is how it is written.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
