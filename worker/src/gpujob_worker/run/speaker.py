"""Which of a pod's processes speaks for it: the first that claims the termination message.

The claim is a lock on the file, held for as long as the process lives, so that one that is killed
leaves it to the next. Who speaks in place of whom says `lineage`.
"""

from pathlib import Path

from gpujob_api.codec import FieldError
from gpujob_api.report import Report
from gpujob_worker.process_lock import ProcessLock


class Claim:
    """A claim on one file; without a file everybody may speak."""

    def __init__(self, path: Path | None) -> None:
        self._lock = ProcessLock(path) if path is not None else None

    def take(self) -> bool:
        """Whether this process speaks; it does where nothing can be locked."""
        try:
            return self._lock is None or self._lock.take()
        except OSError:
            return True

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()


def written(path: Path | None) -> Report | None:
    """The report that another process of the pod left; None where there is none to be read."""
    if path is None:
        return None
    try:
        return Report.from_text(path.read_text())
    except (OSError, ValueError, FieldError):
        return None
