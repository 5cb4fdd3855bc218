"""Reads which devices a process was given from its own environment.

This needs rights over the process. It is for nodes whose pods are plain processes of one user.
"""

from pathlib import Path

from gpujob_operator.agent.owners import ENVIRONMENT_BYTES_MAX

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NAMES_MAX = 64


def names_in(visible: str) -> tuple[str, ...]:
    """Returns the names in a value of NVIDIA_VISIBLE_DEVICES."""
    return tuple(name for part in visible.split(",")[:NAMES_MAX] if (name := part.strip()))


class EnvironmentDevices:
    """Devices by the environment of the process itself. None if it may not be read."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc

    def __call__(self, pid: int) -> tuple[str, ...]:
        try:
            with (self._proc / str(pid) / "environ").open("rb") as file:
                environment = file.read(ENVIRONMENT_BYTES_MAX)
        except OSError:
            return ()
        prefix = f"{VISIBLE_DEVICES}=".encode()
        for entry in environment.split(b"\0"):
            if entry.startswith(prefix):
                return names_in(entry[len(prefix) :].decode(errors="replace"))
        return ()
