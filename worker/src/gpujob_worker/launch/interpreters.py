"""Identifies the interpreter that a command names: this one, another with the worker, or another
without it.

A script's packages are those of its interpreter. `python` alone means this interpreter.
"""

import os
import subprocess
import sys
from enum import Enum
from pathlib import Path

_ASK = "import sys, importlib.util as u; print(sys.prefix); print(u.find_spec('gpujob_worker'))"
_ASK_SECONDS = 30.0


class Interpreter(Enum):
    """The interpreter of a command."""

    THIS = "this"
    OTHER = "other, with the worker installed"
    WITHOUT = "other, without the worker"


def interpreter_of(program: str) -> Interpreter:
    """Asks the interpreter if it is another file; one that does not answer counts as this one."""
    path = Path(program)
    if not path.name.startswith("python") or os.sep not in program:
        return Interpreter.THIS
    if path.absolute().parent == Path(sys.executable).parent:
        return Interpreter.THIS
    try:
        answer = subprocess.run(
            [program, "-c", _ASK], capture_output=True, text=True, timeout=_ASK_SECONDS, check=True
        )
        prefix, worker = answer.stdout.splitlines()[:2]
    except (OSError, ValueError, subprocess.SubprocessError):
        return Interpreter.THIS
    if os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        return Interpreter.THIS
    return Interpreter.WITHOUT if worker == "None" else Interpreter.OTHER
