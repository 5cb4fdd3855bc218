"""Decides how many processes may load data next to the training process, by the cores that it may
use.

The affinity mask and the CPU quota of its cgroup (versions 1 and 2) bound the cores. Processes that
a launcher started on the same node share them, unless each is bound to its own cores.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WORKERS_MAX = 16
# Used if no measurement shows how many are needed.
UNMEASURED_MAX = 4
# Percent of the last ten seconds in which a runnable task waited for a core.
LOADED_PERCENT = 50.0
_CGROUPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Machine:
    """The files from which the facts are read. Tests replace them."""

    cgroups: Path = Path("/sys/fs/cgroup")
    proc: Path = Path("/proc")
    affinity: Callable[[int], set[int]] = os.sched_getaffinity

    def quota_cores(self) -> float | None:
        """Returns the tightest CPU quota above this process in cores, or None without a quota."""
        return min(self._quotas(), default=None)

    def _quotas(self) -> Iterator[float]:
        for folder in self._folders():
            with suppress(OSError, ValueError):
                limit, period = (folder / "cpu.max").read_text().split()
                if limit != "max":
                    yield int(limit) / int(period)
            with suppress(OSError, ValueError):
                limit = int((folder / "cpu.cfs_quota_us").read_text())
                if limit > 0:
                    yield limit / int((folder / "cpu.cfs_period_us").read_text())

    def _folders(self) -> Iterator[Path]:
        """Yields this process's groups and all above them. A container may see its own group as the
        root.
        """
        try:
            lines = (self.proc / "self" / "cgroup").read_text().splitlines()
        except OSError:
            lines = []
        for line in lines[:_CGROUPS_MAX]:
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if controllers and "cpu" not in controllers.split(","):
                continue
            for mount in ("", "unified") if not controllers else (controllers, "cpu"):
                top = self.cgroups / mount
                folder = top / path.lstrip("/")
                yield folder
                yield from (at for at in folder.parents if at.is_relative_to(top))

    def waiting_percent(self) -> float | None:
        """Returns the percent of the last ten seconds in which a task waited for a core, or None
        without statistics.

        The tasks are those of our cgroup, or those of the whole node if we may use all of it.
        """
        own = next(
            (folder for folder in self._folders() if (folder / "cpu.pressure").exists()), None
        )
        if own is not None:
            return _waiting(own / "cpu.pressure")
        whole = len(self.affinity(0)) >= (os.cpu_count() or 1)
        return _waiting(self.proc / "pressure" / "cpu") if whole else None


def _waiting(path: Path) -> float | None:
    try:
        first = path.read_text().splitlines()[0]
        fields = dict(field.split("=") for field in first.split()[1:])
        return float(fields["avg10"])
    except (OSError, ValueError, KeyError, IndexError):
        return None


def cores_here(environ: Mapping[str, str], machine: Machine) -> float:
    """Returns the cores for each of the training processes on this node."""
    own = machine.affinity(0)
    processes = _training_processes(environ)
    quota = machine.quota_cores()
    cores = float(len(own)) if _bound(own, machine) else len(own) / processes
    return cores if quota is None else min(cores, quota / processes)


def _training_processes(environ: Mapping[str, str]) -> int:
    """Returns the number of processes that a launcher started on this node."""
    text = environ.get("LOCAL_WORLD_SIZE", "1")
    return max(1, int(text)) if text.isdecimal() else 1


def _bound(own: set[int], machine: Machine) -> bool:
    """Returns whether this process has fewer cores than its parent."""
    try:
        return own < machine.affinity(os.getppid())
    except OSError:
        return False


def workers_wanted(environ: Mapping[str, str] = os.environ, machine: Machine | None = None) -> int:
    """Returns the number of spare cores next to the training process, at most `WORKERS_MAX`."""
    spare = int(cores_here(environ, machine or Machine())) - 1
    return max(0, min(WORKERS_MAX, spare))


def workers_that_fit(
    batch_bytes: int,
    batches_each: int,
    folder: Path = Path("/dev/shm"),  # noqa: S108
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Returns how many workers may hold `batches_each` batches ready in shared memory.

    They use half of the free shared memory, because a process that finds none is killed. The node's
    training processes share it.
    """
    try:
        free = os.statvfs(folder)
    except OSError:
        return WORKERS_MAX
    share = free.f_bavail * free.f_frsize // 2 // _training_processes(environ)
    return share // max(1, batches_each * batch_bytes)


def busy_cores(machine: Machine | None = None) -> str | None:
    """Returns why a worker would find no free core now, or None if it would."""
    machine = machine or Machine()
    percent = machine.waiting_percent()
    if percent is None or percent < LOADED_PERCENT:
        return None
    return f"something waits for a core {percent:.0f} % of the time"
