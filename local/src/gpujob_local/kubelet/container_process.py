"""One container as a local process. When its main process ends, everything that it started ends
too.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.processes import watchdog
from gpujob_local.processes.processes import kill_group, launch_command

CONTAINER_MARKER = "GPUJOB_LOCAL_CONTAINER"


class StartError(Exception):
    """The command cannot be executed. The message is that of a container runtime."""


@dataclass(frozen=True, slots=True)
class ProcessSpecification:
    """A container's process. `identity` marks every process of this container in its
    environment.
    """

    identity: str
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    cores: Sequence[int] | None


class ContainerProcess:
    """The main process of a container. When it ends, everything that it started ends too."""

    def __init__(self, specification: ProcessSpecification) -> None:
        self._specification = specification
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "start it first"
        return self._process.pid

    async def start(self) -> None:
        """Starts the process. Raises `StartError` if there is no such command."""
        wanted = self._specification
        _require_executable(wanted.command[0], wanted.environment, wanted.folder)
        with wanted.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *launch_command(wanted.command, wanted.cores),
                env={**wanted.environment, CONTAINER_MARKER: wanted.identity},
                cwd=wanted.folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def wait(self) -> int:
        """Returns the main process's return code once no process of the container is left."""
        assert self._process is not None, "start it first"
        code = await self._process.wait()
        kill_group(self._process.pid)
        marker = f"{CONTAINER_MARKER}={self._specification.identity}"
        await asyncio.to_thread(watchdog.kill_marked, marker)
        return code

    def terminate(self) -> None:
        """Sends SIGTERM to the main process only, as a container runtime does."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL to the main process and its group."""
        if self._process is not None and self._process.returncode is None:
            kill_group(self._process.pid)
            self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            # `Process.send_signal` polls the child first. If the child has just ended, the poll
            # takes the exit status away from asyncio, which then returns 255.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _require_executable(name: str, environment: Mapping[str, str], folder: Path) -> None:
    path = name if "/" in name else shutil.which(name, path=environment.get("PATH", ""))
    if path is None:
        raise StartError(f'exec: "{name}": executable file not found in $PATH')
    full = folder / path
    if not full.is_file():
        raise StartError(f'exec: "{name}": stat {path}: no such file or directory')
    if not os.access(full, os.X_OK):
        raise StartError(f'exec: "{name}": permission denied')
