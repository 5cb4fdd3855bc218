"""Who started whom, by Linux's own lists; elsewhere nothing is known."""

import contextlib
import glob
import os
from collections.abc import Iterator
from pathlib import Path

_ANCESTORS_MAX = 32
# Positions in /proc/PID/stat behind the program's name, which may hold anything, also brackets.
_PARENT, _START = 1, 19
_SHELLS = ("ash", "bash", "busybox", "dash", "ksh", "sh", "zsh")


def ancestors() -> Iterator[int]:
    """Process ids, the nearest first."""
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        if pid <= 0:
            return
        yield pid
        pid = int(_field(pid, _PARENT) or 0)


def children(pid: int | str) -> set[int]:
    """Process ids of those that the process started and that have not been waited for."""
    found: set[int] = set()
    for path in glob.glob(f"/proc/{pid}/task/*/children"):
        with contextlib.suppress(OSError), open(path) as file:
            found.update(map(int, file.read().split()))
    return found


def start_of(pid: int) -> str:
    """When it started, in ticks since the machine did: with the id it names one process."""
    return _field(pid, _START)


def program_of(pid: int) -> str:
    """The name of the file that it runs; of a script that is its interpreter's."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def input_of(pid: int) -> str:
    """Names the pipe that is its standard input; empty where it is none."""
    try:
        name = os.readlink(f"/proc/{pid}/fd/0")
    except OSError:
        return ""
    return name if name.startswith("pipe:") else ""


def is_shell(pid: int) -> bool:
    return program_of(pid) in _SHELLS


def _field(pid: int, position: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[position]
    except (OSError, IndexError):
        return ""
