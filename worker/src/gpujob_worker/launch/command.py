"""The command that `gpujob-run` starts, and the environment in which its processes are hooked."""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpujob_worker.launch.first_process import ENV_FIRST_PROCESS

# The first folder on PYTHONPATH of every process in a run.
HOOK_FOLDER = Path(__file__).resolve().parents[1] / "python_path"
_OPTIONS_WITH_VALUE = ("-W", "-X")
_INTERPRETERS = ("python", "pypy")
_LINE_BYTES_MAX = 4096


def hooked(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which every Python process of a run is watched, from
    this one on.
    """
    folder = str(HOOK_FOLDER)
    there = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path != folder]
    path = os.pathsep.join([folder, *(path for path in there if path)])
    return {**environ, "PYTHONPATH": path, ENV_FIRST_PROCESS: str(os.getpid())}


def resolved(command: Sequence[str]) -> list[str] | None:
    """Returns the command with the program's path first, or None if there is no such program.

    `python` without a path, and a script as the program, mean the interpreter that runs this.
    """
    words = list(command)
    if words[0].endswith(".py"):
        words.insert(0, "python")
    own = Path(sys.executable).parent / words[0]
    if words[0].startswith("python") and os.sep not in words[0] and own.exists():
        return [str(own), *words[1:]]
    program = shutil.which(words[0])
    return [program, *words[1:]] if program is not None else None


def runs_python(command: Sequence[str]) -> bool:
    """Returns whether the program is an interpreter, or a script of one such as a console
    script.
    """
    if Path(command[0]).name.startswith(_INTERPRETERS):
        return True
    try:
        with open(command[0], "rb") as file:
            first, second = file.readline(_LINE_BYTES_MAX), file.readline(_LINE_BYTES_MAX)
    except OSError:
        return False
    # If a path is too long for the first line, pip writes it into the second one, for a shell.
    return first.startswith(b"#!") and (b"python" in first or second.startswith(b"'''exec'"))


def ignores_path(command: Sequence[str]) -> str | None:
    """Returns the option of a Python command line because of which PYTHONPATH is not
    read, or None.
    """
    if not Path(command[0]).name.startswith("python"):
        return None
    skip = False
    for word in command[1:]:
        if skip:
            skip = False
        elif word in _OPTIONS_WITH_VALUE:
            skip = True
        elif not word.startswith("-") or word in ("-m", "-c", "-"):
            return None
        elif not word.startswith("--") and set(word[1:]) & set("EIS"):
            return word
    return None
