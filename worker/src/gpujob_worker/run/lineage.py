"""Shared facts of a process and its ancestors, which forked it or started it as a program.

A process that trains reports for its pod in place of all processes that it forked or started,
because the pod's end follows its own. Each process of a run has a few bytes of memory without a
name in any folder. A forked child gets them from its parent's session. Any other descendant finds
them among its ancestors' open files, whatever is in between (a shell, a fork server) and whatever
environment it got. If they cannot be read, an ancestor is assumed not to train.
"""

import contextlib
import glob
import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

from gpujob_api.codec import FieldError
from gpujob_api.report import Report
from gpujob_worker.process_lock import ProcessLock
from gpujob_worker.run.process_tree import ancestors


class Lineage:
    """The bytes of a process and of its ancestors that leave their reports in the same file."""

    _TRAINS, _CHILD_SPEAKS = range(2)
    _BYTES = 2

    def __init__(self, path: Path | None, parent: "Lineage | None" = None) -> None:
        """`path` is where reports are left. `parent` is the lineage of the process that forked this
        one.
        """
        self._name = _name(path) if path is not None else None
        self._forked_from = (parent._own, *parent._ancestors) if parent is not None else ()
        self._started_by: tuple[mmap.mmap, ...] = ()
        self._own = self._memory()

    def _memory(self) -> mmap.mmap:
        if self._name is None or not hasattr(os, "memfd_create"):
            return mmap.mmap(-1, self._BYTES)
        try:
            descriptor = os.memfd_create(self._name)
        except OSError:
            return mmap.mmap(-1, self._BYTES)
        try:
            os.truncate(descriptor, self._BYTES)
            # The map has its own descriptor, by which other processes find it.
            return mmap.mmap(descriptor, self._BYTES)
        finally:
            os.close(descriptor)

    @property
    def _ancestors(self) -> tuple[mmap.mmap, ...]:
        return (*self._forked_from, *self._started_by)

    def meet(self) -> None:
        """Finds ancestors that live. They may have begun after this process was started."""
        if self._name is not None:
            self._started_by = tuple(_found(self._name, self._BYTES))

    def trains(self) -> None:
        """Marks this process as training."""
        self._own[self._TRAINS] = 1

    def speaks(self) -> None:
        """Marks in all ancestors that a child reports for the pod."""
        for ancestor in self._ancestors:
            ancestor[self._CHILD_SPEAKS] = 1

    @property
    def ancestor_trains(self) -> bool:
        """Whether an ancestor trains, no matter since when."""
        return any(ancestor[self._TRAINS] for ancestor in self._ancestors)

    @property
    def child_speaks(self) -> bool:
        """Whether a descendant has reported for the pod."""
        return bool(self._own[self._CHILD_SPEAKS])


def _name(path: Path) -> str:
    """Returns a name that is the same in all processes of one pod, and in no others on
    the machine.
    """
    digest = hashlib.blake2b(os.fsencode(path.absolute()), digest_size=12)
    return f"gpujob-lineage-{digest.hexdigest()}"


def _found(name: str, size: int) -> Iterator[mmap.mmap]:
    for pid in ancestors():
        for path in glob.glob(f"/proc/{pid}/fd/*"):
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(path).startswith(f"/memfd:{name}"):
                    yield _mapped(path, size)


def _mapped(path: str, size: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class Claim:
    """A claim on one file. Without a file every process may report."""

    def __init__(self, path: Path | None) -> None:
        self._lock = ProcessLock(path) if path is not None else None

    def take(self) -> bool:
        """Returns whether this process reports. It does if nothing can be locked."""
        try:
            return self._lock is None or self._lock.take()
        except OSError:
            return True

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def written(path: Path | None) -> Report | None:
    """Returns the report that another process of the pod left, or None if none can be read."""
    if path is None:
        return None
    try:
        return Report.from_text(path.read_text())
    except (OSError, ValueError, FieldError):
        return None
