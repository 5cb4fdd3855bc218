"""Finds the pod of a process, from its cgroup as the kubelet names it, or from its environment.

Both are read from /proc on the node. A process that ends during the read belongs to no pod.
"""

import re
from collections.abc import Callable
from pathlib import Path

from cachetools import LRUCache

from gpujob_api.settings import ENV_POD_UID

# kubepods/burstable/pod<uid>/... (cgroupfs) and
# kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope (systemd).
_POD = re.compile(
    r"(?:^|[/:-])pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|"
    r"[0-9a-f]{32})(?:\.slice)?(?:[/:]|$)"
)
_UID = re.compile(r"^[0-9A-Za-z-]{1,64}$")
PIDS_REMEMBERED_MAX = 4096
ENVIRONMENT_BYTES_MAX = 1024 * 1024

OwnerOf = Callable[[int], str | None]


def pod_uid_in_cgroup(text: str) -> str | None:
    """Returns the pod UID in the text of /proc/PID/cgroup, v1 or v2, or None outside pods."""
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        match = _POD.search(path)
        if match is not None:
            return match[1].replace("_", "-")
    return None


def owner_by_cgroup(proc: Path = Path("/proc")) -> OwnerOf:
    def owner(pid: int) -> str | None:
        try:
            return pod_uid_in_cgroup((proc / str(pid) / "cgroup").read_text())
        except (OSError, UnicodeDecodeError):
            return None

    return owner


def owner_by_environment(proc: Path = Path("/proc")) -> OwnerOf:
    """Serves nodes whose pods are plain processes. Child processes inherit the variable."""
    prefix = f"{ENV_POD_UID}=".encode()

    def owner(pid: int) -> str | None:
        try:
            with (proc / str(pid) / "environ").open("rb") as file:
                environment = file.read(ENVIRONMENT_BYTES_MAX)
        except OSError:
            return None
        for entry in environment.split(b"\0"):
            if entry.startswith(prefix):
                uid = entry[len(prefix) :].decode(errors="replace")
                return uid if _UID.match(uid) else None
        return None

    return owner


def remembered(owner: OwnerOf, started: Callable[[int], int | None]) -> OwnerOf:
    """Returns `owner` with a cache, because a process does not change pods.

    A reused PID has another start time. A process without a pod is looked up again, because a
    starting process may not have its environment or its pod's cgroup yet.
    """
    answers: LRUCache[tuple[int, int], str] = LRUCache(PIDS_REMEMBERED_MAX)

    def ask(pid: int) -> str | None:
        start = started(pid)
        if start is None:
            return owner(pid)
        key = (pid, start)
        uid = answers.get(key) or owner(pid)
        if uid is not None and key not in answers:
            answers[key] = uid
        return uid

    return ask


def start_ticks(proc: Path = Path("/proc")) -> Callable[[int], int | None]:
    """Returns a reader of field 22 of /proc/PID/stat: the start time in clock ticks since boot."""

    def started(pid: int) -> int | None:
        try:
            line = (proc / str(pid) / "stat").read_text(errors="replace")
            return int(line.rpartition(")")[2].split()[19])
        except (OSError, IndexError, ValueError):
            return None

    return started
