"""What the processes of CPU cards use, from /proc: CPU time and memory.

Everything here is readable without rights over the process, so a worker may run as any user.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

# Returns the names in NVIDIA_VISIBLE_DEVICES of a process's container, or nothing.
DevicesOf = Callable[[int], tuple[str, ...]]
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Command lines that are equal up to this length count as one.
COMMAND_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class BoundProcess:
    """A process that uses CPU cards. `started_ticks` distinguishes two users of one process id."""

    pid: int
    parent: int
    started_ticks: int
    cpu_seconds: float
    memory_bytes: int
    cards: tuple[str, ...]


def bound_processes(
    uuids: Iterable[str], devices_of: DevicesOf, proc: Path = Path("/proc")
) -> dict[int, BoundProcess]:
    """Returns all processes that were given one of the CPU cards, with their use so far.

    Memory is anonymous and shared memory, because a library's file pages would not be on a GPU.
    Forked children share pages with their parent, which count once (see `_without_shared`).
    """
    wanted = frozenset(uuids)
    found: dict[int, BoundProcess] = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            cards = tuple(sorted(wanted.intersection(devices_of(int(entry)))))
            process = _read(proc / entry, cards) if cards else None
            if process is not None:
                found[process.pid] = process
    return {pid: _without_shared(process, found, proc) for pid, process in found.items()}


def _read(folder: Path, cards: tuple[str, ...]) -> BoundProcess | None:
    """Returns None for a process that ended while it was read."""
    try:
        # The name in parentheses may contain anything, so fields count from the last parenthesis.
        fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        memory = _kibibytes((folder / "status").read_text(errors="replace"), "RssAnon", "RssShmem")
        return BoundProcess(
            pid=int(folder.name),
            parent=int(fields[1]),
            started_ticks=int(fields[19]),
            cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
            memory_bytes=memory * 1024,
            cards=cards,
        )
    except (OSError, ValueError, IndexError):
        return None


def _kibibytes(text: str, *names: str) -> int:
    total = 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += int(value.split()[0])
    return total


def _without_shared(
    process: BoundProcess, found: Mapping[int, BoundProcess], proc: Path
) -> BoundProcess:
    """Counts pages once that a process shares with relatives among the found processes.

    The kernel only gives the same user each process's proportional part. Otherwise a child that
    still runs its parent's command is a fork (a data loader's worker), and counts with what it has
    beyond its parent.
    """
    children = any(other.parent == process.pid for other in found.values())
    parent = found.get(process.parent)
    if not children and parent is None:
        return process
    try:
        text = (proc / str(process.pid) / "smaps_rollup").read_text()
        return replace(process, memory_bytes=_kibibytes(text, "Pss_Anon", "Pss_Shmem") * 1024)
    except (OSError, ValueError, IndexError):
        pass
    if parent is None or _command(process.pid, proc) != _command(parent.pid, proc):
        return process
    return replace(process, memory_bytes=max(0, process.memory_bytes - parent.memory_bytes))


def _command(pid: int, proc: Path) -> bytes:
    try:
        with (proc / str(pid) / "cmdline").open("rb") as file:
            return file.read(COMMAND_BYTES_MAX)
    except OSError:
        return f"pid {pid}".encode()
