"""The host memory that this process may still take, of the machine and of its container."""

from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")
# The file of the limit, the file of the use, and the name of reclaimable memory in `memory.stat`.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_FILE_BYTES_MAX = 1 << 20


def available_bytes() -> int | None:
    """Returns the minimum of the machine's free memory and of each group's remaining limit.

    None if nothing reports it.
    """
    found = [bytes_ for bytes_ in (_free_in_machine(), *_left_in_groups()) if bytes_ is not None]
    return min(found, default=None)


def _free_in_machine() -> int | None:
    for line in _read(_MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _left_in_groups() -> Iterator[int | None]:
    for folder in _group_folders():
        for limit_file, use_file, reclaimable in _FILES:
            limit, use = _number(folder / limit_file), _number(folder / use_file)
            if limit is not None and use is not None:
                yield max(0, limit - use + _statistic(folder / "memory.stat", reclaimable))


def _group_folders() -> Iterator[Path]:
    """Yields the process's own group as it appears here, and those around it."""
    yield _MOUNT
    yield _MOUNT / "memory"
    for line in _read(_GROUPS).splitlines():
        _, controllers, path = line.split(":", 2) if line.count(":") >= 2 else ("", "-", "")
        if controllers not in ("", "memory"):
            continue
        folder = (_MOUNT / "memory" if controllers else _MOUNT) / path.lstrip("/")
        while folder not in (_MOUNT, _MOUNT / "memory", _MOUNT.parent):
            yield folder
            folder = folder.parent


def _statistic(path: Path, name: str) -> int:
    for line in _read(path).splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        with path.open() as stream:
            return stream.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError):
        return ""
