"""Reads which process started which from Linux's lists. On other systems nothing is known."""

import contextlib
import glob
import os
from collections.abc import Iterator
from pathlib import Path

_ANCESTORS_MAX = 32
# Positions in /proc/PID/stat after the program's name, which may contain anything, even brackets.
_PARENT, _START = 1, 19
_SHELLS = ("ash", "bash", "busybox", "dash", "ksh", "sh", "zsh")


def ancestors() -> Iterator[int]:
    """Yields process ids, the nearest first."""
    pid = os.getppid()
    for _ in range(_ANCESTORS_MAX):
        if pid <= 0:
            return
        yield pid
        pid = int(_field(pid, _PARENT) or 0)


def children(pid: int | str) -> set[int]:
    """Returns the ids of the processes that the process started and has not waited for."""
    found: set[int] = set()
    paths = glob.glob(f"/proc/{pid}/task/*/children")
    if not paths:
        return _with_parent(os.getpid() if pid == "self" else int(pid))
    for path in paths:
        with contextlib.suppress(OSError), open(path) as file:
            found.update(map(int, file.read().split()))
    return found


def _with_parent(pid: int) -> set[int]:
    """Returns the same for a kernel that was built without lists of children."""
    numbers = [int(os.path.basename(path)) for path in glob.glob("/proc/[0-9]*")]
    return {number for number in numbers if _field(number, _PARENT) == str(pid)}


def start_of(pid: int) -> str:
    """Returns its start in ticks since the machine's start. Together with the id, it identifies a
    process.
    """
    return _field(pid, _START)


def program_of(pid: int) -> str:
    """Returns the name of the file that it runs. For a script, that is the interpreter's."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return ""


def input_of(pid: int) -> str:
    """Returns a name of the pipe that is its standard input, or an empty string if it is
    no pipe.
    """
    return _pipe(pid, 0)


def outputs_of(pid: int) -> set[str]:
    """Returns names of the pipes that are its standard output and error."""
    return {_pipe(pid, 1), _pipe(pid, 2)} - {""}


def handles(pid: int, number: int) -> bool:
    """Returns whether it has a handler for the signal."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        status = Path(f"/proc/{pid}/status").read_bytes()
        return bool(int(status.split(b"SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)
    return False


def is_shell(pid: int) -> bool:
    return program_of(pid) in _SHELLS


def _pipe(pid: int, descriptor: int) -> str:
    try:
        name = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""
    return name if name.startswith("pipe:") else ""


def _field(pid: int, position: int) -> str:
    try:
        # A name is cut after 15 bytes, possibly in the middle of a character.
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        return stat.rpartition(b")")[2].split()[position].decode()
    except (OSError, IndexError, ValueError):
        return ""
