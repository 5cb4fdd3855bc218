"""Runs one process within limits of time, memory and disk, and ends it with all that it started.

Whatever a build does, the caller gets a reason in words: it hangs, crashes, leaks, fills the disk,
prints without end or ends without a result. Nothing here imports torch.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpujob_worker.run.process_tree import children

POLL_SECONDS = 0.1
TAIL_BYTES = 4096
_READ_BYTES = 65_536
_FILES_MAX = 200_000
_DESCENDANTS_MAX = 1000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_KILL_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Limits:
    """`memory_bytes` is the resident memory of the process and its descendants together."""

    seconds: float
    memory_bytes: int | None = None
    disk_bytes: int = 8 * 1024**3


@dataclass(frozen=True, slots=True)
class Ended:
    """`problem` is None if the process ended with 0. `tail` is the end of what it printed."""

    problem: str | None
    seconds: float
    tail: str


def command_again() -> list[str]:
    """Returns the command of this process, as the interpreter was given it."""
    return [sys.executable, *sys.orig_argv[1:]]


def run_child(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, limits: Limits
) -> Ended:
    """Runs the command in the present folder. Files in `folder` count towards the disk limit."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    tail = _Tail(process.stdout)
    problem: str | None = None
    try:
        _limit_files(process.pid, limits.disk_bytes)
        while problem is None and process.poll() is None:
            problem = _beyond(process.pid, start, folder, limits)
            if problem is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
    finally:
        _end(process)
    text = tail.text()
    if problem is None and process.returncode:
        problem = _how(process.returncode, text)
    return Ended(problem, time.monotonic() - start, text)


def resident_bytes(pids: Iterator[int]) -> int:
    """Returns the resident memory of the processes. Those that are gone count as nothing."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            total += _PAGE_BYTES * int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return total


def descendants(pid: int) -> Iterator[int]:
    """Yields the process and all that it started, directly or not."""
    waiting, seen = deque([pid]), {pid}
    while waiting and len(seen) < _DESCENDANTS_MAX:
        one = waiting.popleft()
        yield one
        fresh = children(one) - seen
        seen |= fresh
        waiting.extend(fresh)


def folder_bytes(folder: Path) -> int:
    """Returns the space that files below the folder take. At most 200,000 of them are counted."""
    total = counted = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            counted += 1
            if counted > _FILES_MAX:
                return total
            with contextlib.suppress(OSError):
                total += 512 * os.lstat(os.path.join(parent, name)).st_blocks
    return total


def _beyond(pid: int, start: float, folder: Path, limits: Limits) -> str | None:
    """Returns which limit is exceeded, or None."""
    if time.monotonic() - start > limits.seconds:
        return f"took longer than {limits.seconds:.0f} s"
    if limits.memory_bytes is not None:
        used = resident_bytes(descendants(pid))
        if used > limits.memory_bytes:
            return f"needed {_mib(used)} of memory, at most {_mib(limits.memory_bytes)}"
    used = folder_bytes(folder)
    if used > limits.disk_bytes:
        return f"wrote {_mib(used)} to the disk, at most {_mib(limits.disk_bytes)}"
    return None


def _limit_files(pid: int, disk_bytes: int) -> None:
    """Stops a file that grows between two looks, and core dumps."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        most = disk_bytes if hard == resource.RLIM_INFINITY else min(disk_bytes, hard)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, hard))
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process and all that it started."""
    started = list(descendants(process.pid)) if process.poll() is None else []
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pid in started[1:]:
        # Compilers may have begun a session of their own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_SECONDS)


def _how(code: int, text: str) -> str:
    lines = text.strip().splitlines()
    last = f": {lines[-1][:200]}" if lines else ""
    if code > 0:
        return f"ended with exit code {code}{last}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"was ended by {name}{last}"


def _mib(count: int) -> str:
    return f"{count / 1024**2:,.0f} MiB"


class _Tail:
    """The end of what a process prints, read as it comes, so that it never waits for a reader."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = b""
        self._thread = threading.Thread(target=self._read, name="gpujob-child", daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Waits for the end of the output, which a grandchild may hold open, for a second."""
        self._thread.join(1.0)
        return self._kept.decode(errors="replace")

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while block := os.read(self._pipe.fileno(), _READ_BYTES):
                self._kept = (self._kept + block)[-TAIL_BYTES:]
        with contextlib.suppress(OSError):
            self._pipe.close()
