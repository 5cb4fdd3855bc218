"""Removes everything that a cluster of kubelets changed on the machine, from its record alone."""

import ctypes
import os
import shutil
import time
from pathlib import Path

from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.kubelets import cgroups
from gpujob_local.kubelets.record import Record, others, restore_settings
from gpujob_local.processes.watchdog import kill_marked

UNMOUNT_DETACH = 2
MOUNTS = Path("/proc/self/mountinfo")
REMOVE_TRIES = 50
REMOVE_SECONDS = 0.1


def clean(record: Record) -> None:
    """Ends processes, then removes mounts, groups, settings and finally the record's folder.

    May be repeated, and does nothing if all is gone. Raises `ClusterError` naming what is left. The
    record is then left too.
    """
    # A node's first process takes down all others of the node, including containers.
    if not kill_marked(record.marker):
        raise ClusterError(f"processes of {record.directory} cannot be ended")
    for name in record.cgroups:
        if left := cgroups.remove(name):
            raise ClusterError(f"cgroup {name} is still in use by {left}")
    directory = Path(record.directory)
    for mount in mounts_below(directory, MOUNTS.read_text()):
        _unmount(mount)
    # Never remove through a mount, because the content behind it is not ours.
    if left := mounts_below(directory, MOUNTS.read_text()):
        raise ClusterError(f"still mounted: {', '.join(left)}")
    if not others(directory):
        restore_settings(record.settings)
    _remove(directory)


def mounts_below(directory: Path, mountinfo: str) -> list[str]:
    """Returns mount points in a folder, the deepest first, from the text of a mountinfo file."""
    points = [_unescaped(line.split()[4]) for line in mountinfo.splitlines() if line.strip()]
    inside = [point for point in points if point.startswith(f"{directory}/")]
    return sorted(inside, key=len, reverse=True)


def _unescaped(text: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _unmount(point: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(point), UNMOUNT_DETACH) != 0:
        raise ClusterError(f"cannot unmount {point}: {os.strerror(ctypes.get_errno())}")


def _remove(directory: Path) -> None:
    # The mounts of a namespace that just ended are released a moment later.
    for _ in range(REMOVE_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(REMOVE_SECONDS)
    raise ClusterError(f"{directory} cannot be removed")
