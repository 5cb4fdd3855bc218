"""Which of a pod's processes speaks for it: the first that claims the termination message.

The claim is a lock on the file, held for as long as the process lives, so that one that is killed
leaves it to the next. Who speaks in place of whom says `lineage`.
"""

import contextlib
import fcntl
import os
from pathlib import Path

from gpujob_api.codec import FieldError
from gpujob_api.report import Report


class Claim:
    """A claim on one file; without a file everybody may speak."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether this process speaks; it does where nothing can be locked."""
        if self._path is None or self._descriptor is not None:
            return True
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError:
            os.close(descriptor)
            return True
        self._descriptor = descriptor
        # A child holds it too, by the same open file, and may live longer: a loader's process does.
        os.register_at_fork(after_in_child=self.release)
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def written(path: Path | None) -> Report | None:
    """The report that another process of the pod left; None where there is none to be read."""
    if path is None:
        return None
    try:
        return Report.from_text(path.read_text())
    except (OSError, ValueError, FieldError):
        return None
