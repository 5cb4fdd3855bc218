"""Children that never outlive us, however we end.

There are two nets. The kernel kills a child when its parent dies (`launch.py`). A watchdog
(`watchdog.py`) kills every process with the cluster's marker in its environment, including children
of children.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.processes import launch, watchdog

MARKER = "GPUJOB_LOCAL_CLUSTER"
_ISOLATED = (sys.executable, "-I", "-S")

# The kernel's parent-death signal comes when the *thread* that started a child ends. One thread
# that lives as long as this process therefore starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="start-children")


@dataclass(frozen=True, slots=True)
class Child:
    """A started process, with the file that has its output."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def alive(self) -> bool:
        return self.process.poll() is None

    def log_tail(self, bytes_max: int = 2000) -> str:
        return self.log.read_bytes()[-bytes_max:].decode(errors="replace")


def launch_command(command: Sequence[str], cores: Sequence[int] | None = None) -> list[str]:
    """Returns the command wrapped so that it dies with this process and keeps to these cores."""
    wanted = ",".join(map(str, cores)) if cores else "-"
    return [*_ISOLATED, launch.__file__, str(os.getpid()), wanted, *command]


def start_child(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    folder: Path | None = None,
    cores: Sequence[int] | None = None,
) -> Child:
    """Starts a command in its own session. Output is appended to `log`."""

    def start() -> subprocess.Popen[bytes]:
        with log.open("ab") as output:
            return subprocess.Popen(
                launch_command(command, cores),
                env=dict(environment),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    return Child(name, _starter.submit(start).result(), log)


def stop_child(child: Child, grace_seconds: float) -> int:
    """Sends SIGTERM, then SIGKILL to the whole group after the grace period. Returns the
    exit code.
    """
    if grace_seconds > 0 and child.alive():
        child.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(grace_seconds)
    kill_group(child.pid)
    return child.process.wait()


def kill_group(leader: int) -> None:
    """Sends SIGKILL to a process group. It is no error if it is gone."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


class Watchdog:
    """Kills processes with `marker` and removes `directory` once this process is gone or releases
    it.
    """

    def __init__(self, marker_value: str, directory: Path) -> None:
        self.marker = f"{MARKER}={marker_value}"
        command = [*_ISOLATED, watchdog.__file__, self.marker, str(directory)]
        self._process = subprocess.Popen(
            command,
            env={},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def release(self, limit_seconds: float = 15) -> bool:
        """Makes it clean up now. Returns True if nothing is left."""
        pipe = self._process.stdin
        if pipe is not None:
            pipe.close()
        return self._process.wait(limit_seconds) == 0


def marked_processes(marker_value: str) -> list[int]:
    """Returns the ids of a cluster's processes, by the marker in their environment."""
    return watchdog.marked_processes(f"{MARKER}={marker_value}")
