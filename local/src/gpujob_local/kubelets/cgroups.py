"""A node's control group in every hierarchy: made before its kubelet, and emptied and removed after
it.
"""

import contextlib
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
KILL_ROUNDS_MAX = 100
ROUND_SECONDS = 0.1
_V2_CONTROLLERS = ("cpu", "cpuset", "memory", "pids")


def hierarchies(root: Path = ROOT) -> list[Path]:
    """Returns one folder per controller with version 1, and the root alone with version 2."""
    if (root / "cgroup.controllers").is_file():
        return [root]
    folders = [entry for entry in sorted(root.iterdir()) if entry.is_dir()]
    return [
        entry for entry in folders if (entry / "cgroup.procs").is_file() and not entry.is_symlink()
    ]


def make(name: str, root: Path = ROOT) -> None:
    """Makes the group. A kubelet requires its root, with processors and memory nodes assigned."""
    for hierarchy in hierarchies(root):
        folder = hierarchy / name.lstrip("/")
        folder.mkdir(exist_ok=True)
        for setting in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / setting).is_file():
                (folder / setting).write_text((hierarchy / setting).read_text())
        if (hierarchy / "cgroup.controllers").is_file() and hierarchy == root:
            _enable(hierarchy)
            _enable(folder)


def _enable(folder: Path) -> None:
    there = (folder / "cgroup.controllers").read_text().split()
    wanted = " ".join(f"+{name}" for name in _V2_CONTROLLERS if name in there)
    (folder / "cgroup.subtree_control").write_text(wanted)


def processes(name: str, root: Path = ROOT) -> set[int]:
    """Returns the ids of processes in the group and those below it, in any hierarchy."""
    found: set[int] = set()
    for folder in _folders(name, root):
        with contextlib.suppress(OSError):
            found |= {int(line) for line in (folder / "cgroup.procs").read_text().split()}
    return found


def remove(name: str, root: Path = ROOT) -> list[int]:
    """Kills the group's processes and removes it. Returns the processes that could not be ended."""
    for _ in range(KILL_ROUNDS_MAX):
        alive = processes(name, root)
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not alive and _remove_folders(name, root):
            return []
        time.sleep(ROUND_SECONDS)
    return sorted(processes(name, root))


def _remove_folders(name: str, root: Path) -> bool:
    for folder in _folders(name, root):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return not any(_folders(name, root))


def _folders(name: str, root: Path) -> Generator[Path]:
    """Yields folders, the deepest first."""
    for hierarchy in hierarchies(root):
        for folder, _, _ in os.walk(hierarchy / name.lstrip("/"), topdown=False):
            yield Path(folder)
