"""A lock on a file that a process holds while it lives. Its forked children do not hold it."""

import contextlib
import fcntl
import os
from pathlib import Path


class ProcessLock:
    """A lock on one file. A process that is killed releases it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self._let_go_in_children = False

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def take(self) -> bool:
        """Returns whether this process now holds the lock.

        Raises `OSError` if nothing can be locked, as on a file system without locks.
        """
        if self.held:
            return True
        # Over NFS, a file must be open for writing to be locked exclusively.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        if not self._let_go_in_children:
            # A child has the same open file, and may live longer, as a loader's process does.
            os.register_at_fork(after_in_child=self.release)
            self._let_go_in_children = True
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            # The script may have closed it.
            with contextlib.suppress(OSError):
                os.close(descriptor)
