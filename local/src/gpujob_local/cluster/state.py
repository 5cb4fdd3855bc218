"""The folders of named clusters, and the connection from the command line to a cluster's owner."""

import contextlib
import json
import os
import socket
import stat
import tempfile
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOCKET_NAME = "owner.sock"
STATE_NAME = "state.json"
LOG_NAME = "owner.log"
NAME_LENGTH_MAX = 40
ANSWER_BYTES_MAX = 1024 * 1024


class StateError(Exception):
    """Raised if there is no such cluster, or if it does not answer. The message has which."""


def state_root() -> Path:
    """Returns a private folder for all clusters of this user. GPUJOB_LOCAL_STATE sets another
    place.

    It is not below XDG_RUNTIME_DIR, which is in memory, because etcd's data and checkpoints are
    here. Raises `StateError` if another user owns the folder.
    """
    explicit = os.environ.get("GPUJOB_LOCAL_STATE")
    root = Path(explicit or Path(tempfile.gettempdir()) / f"gpujob-local-{os.getuid()}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StateError(f"{root} is not a folder of yours")
    return root


def remove_root_if_empty() -> None:
    """Removes the folder once the last cluster is gone. A folder set by the user stays."""
    if "GPUJOB_LOCAL_STATE" not in os.environ:
        with contextlib.suppress(OSError):
            state_root().rmdir()


def cluster_directory(name: str) -> Path:
    """Returns a cluster's folder. Raises `StateError` for a name that cannot be a folder."""
    plain = name.replace("-", "").replace("_", "")
    if not plain.isalnum() or not plain.isascii() or len(name) > NAME_LENGTH_MAX:
        message = f"must be letters, digits, - and _, at most {NAME_LENGTH_MAX}; got {name!r}"
        raise StateError(f"--name {message}")
    return state_root() / name


@contextlib.contextmanager
def socket_path(directory: Path) -> Generator[str]:
    """Yields a short path to the owner's socket, however long the directory's path is.

    The path to which a socket is bound or connected may have 107 bytes at most.
    """
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The record that the owner of a running cluster wrote. `environment` is for the
    user's shell.
    """

    name: str
    owner_pid: int
    marker: str
    directory: str
    environment: dict[str, str]

    def write(self) -> None:
        path = Path(self.directory) / STATE_NAME
        fields = {name: getattr(self, name) for name in self.__slots__}
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(fields, indent=1))
        os.replace(temporary, path)

    @classmethod
    def read(cls, name: str) -> "ClusterState":
        try:
            return cls(**json.loads((cluster_directory(name) / STATE_NAME).read_text()))
        except FileNotFoundError:
            known = ", ".join(cluster_names()) or "none"
            raise StateError(f"no cluster {name!r} is running (running: {known})") from None

    def alive(self) -> bool:
        """True while the very process that wrote this runs."""
        return _names(self.owner_pid, self.directory)


def in_use(directory: Path) -> bool:
    """Returns whether an owner or a watchdog has this folder in its command line."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return any(_names(pid, str(directory)) for pid in pids)


def _names(pid: int, directory: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return directory.encode() in command


def cluster_names() -> list[str]:
    """Returns the names of clusters that have come up."""
    return sorted(path.parent.name for path in state_root().glob(f"*/{STATE_NAME}"))


def ask_owner(name: str, command: str, limit_seconds: float = 30, **arguments: Any) -> Any:
    """Sends a command to a cluster's owner and returns its answer. Raises `StateError`."""
    state = ClusterState.read(name)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(limit_seconds)
        try:
            with socket_path(Path(state.directory)) as path:
                connection.connect(path)
            connection.sendall(json.dumps({"command": command} | arguments).encode() + b"\n")
            with connection.makefile("rb") as stream:
                text = stream.readline(ANSWER_BYTES_MAX)
        except OSError as error:
            raise StateError(f"cluster {name!r} does not answer: {error}") from None
    if not text:
        raise StateError(f"cluster {name!r} ended before it answered")
    answer = json.loads(text)
    if "error" in answer:
        raise StateError(answer["error"])
    return answer["result"]
