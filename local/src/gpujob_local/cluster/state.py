"""Where named clusters live, and how the command line talks to the process that owns one."""

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
    """There is no such cluster, or it does not answer; the message says which."""


def state_root() -> Path:
    """A private folder for all clusters of this user; GPUJOB_LOCAL_STATE chooses another place.

    Not below XDG_RUNTIME_DIR, which is in memory: etcd's data and checkpoints lie here.
    Raises `StateError` when somebody else owns the folder.
    """
    explicit = os.environ.get("GPUJOB_LOCAL_STATE")
    root = Path(explicit or Path(tempfile.gettempdir()) / f"gpujob-local-{os.getuid()}")
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise StateError(f"{root} is not a folder of yours")
    return root


def remove_root_if_empty() -> None:
    """Leaves nothing behind once the last cluster is gone; a folder that was chosen stays."""
    if "GPUJOB_LOCAL_STATE" not in os.environ:
        with contextlib.suppress(OSError):
            state_root().rmdir()


def cluster_directory(name: str) -> Path:
    """Raises `StateError` for a name that cannot be a folder."""
    plain = name.replace("-", "").replace("_", "")
    if not plain.isalnum() or not plain.isascii() or len(name) > NAME_LENGTH_MAX:
        message = f"must be letters, digits, - and _, at most {NAME_LENGTH_MAX}; got {name!r}"
        raise StateError(f"--name {message}")
    return state_root() / name


@contextlib.contextmanager
def socket_path(directory: Path) -> Generator[str]:
    """A path to the owner's socket that is short while this lasts, however long the directory's is.

    The path that a socket is bound or connected to may have 107 bytes.
    """
    descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET_NAME}"
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the owner of a running cluster wrote down; `environment` is for the user's shell."""

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
        """True while the very process that wrote this is there."""
        return _names(self.owner_pid, self.directory)


def in_use(directory: Path) -> bool:
    """True while an owner or a watchdog names this folder in its command line."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return any(_names(pid, str(directory)) for pid in pids)


def _names(pid: int, directory: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return directory.encode() in command


def cluster_names() -> list[str]:
    """Clusters that have come up."""
    return sorted(path.parent.name for path in state_root().glob(f"*/{STATE_NAME}"))


def ask_owner(name: str, command: str, limit_seconds: float = 30, **arguments: Any) -> Any:
    """Has the owner of a cluster do something; returns its answer. Raises `StateError`."""
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
