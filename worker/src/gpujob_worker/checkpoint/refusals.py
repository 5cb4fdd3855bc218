"""Records checkpoints from which the training could not resume.

An attempt that gives up writes the reason into the directory. The next attempt puts the checkpoints
aside and saves its own. The newest one is kept for people to examine. If one of its checkpoints is
refused too, resuming does not work for this script, and nothing is saved from then on.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.manifest import read_small, sync_directory, write_durably
from gpujob_worker.checkpoint.reading import is_there

FILE = "not-resumable"
REFUSALS_MAX = 2
REASON_LENGTH_MAX = 1000


class Refusals:
    """The refusals of earlier attempts in one checkpoint directory. Raises `UnreadableError`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE

    def add(self, reason: str, attempt: int) -> None:
        """Records that the present checkpoints must not be tried again. Several processes of one
        attempt count once.
        """
        known = self._read()
        if known["attempt"] == attempt:
            return
        times = known["times"] + 1
        self._write(times=times, reason=reason[:REASON_LENGTH_MAX], attempt=attempt, aside=False)

    @property
    def awaits(self) -> bool:
        """Whether the present checkpoints are refused and not yet put aside."""
        return not self._read()["aside"]

    def reason(self) -> str | None:
        """Returns why nothing is saved any more, or None if a fresh run may be saved."""
        known = self._read()
        return known["reason"] if known["times"] >= REFUSALS_MAX else None

    def put_aside(self, steps: Sequence[int]) -> str | None:
        """Puts the checkpoints aside for a fresh run, and returns a note. `steps` has the newest
        first.

        The attempt that owns the directory calls this under its lock.
        """
        known = self._read()
        if known["aside"] or known["times"] >= REFUSALS_MAX:
            return None
        for step in steps:
            target = self._directory / f"refused-step-{step}"
            shutil.rmtree(target, ignore_errors=True)
            (self._directory / f"step-{step}").rename(target)
            if step != steps[0]:
                shutil.rmtree(target, ignore_errors=True)
        sync_directory(self._directory)
        self._write(**{**known, "aside": True})
        return f"an earlier checkpoint was refused ({known['reason']}); the run begins anew"

    def _read(self) -> dict[str, Any]:
        if not is_there(self._path):
            return {"times": 0, "reason": "", "attempt": -1, "aside": True}
        try:
            found = json.loads(read_small(self._path))
            return {
                "times": int(found["times"]),
                "reason": str(found["reason"]),
                "attempt": int(found["attempt"]),
                "aside": bool(found["aside"]),
            }
        except (CorruptError, ValueError, KeyError, TypeError):
            reason = f"an earlier attempt found it not resumable, and {FILE} cannot be read"
            return {"times": REFUSALS_MAX, "reason": reason, "attempt": -1, "aside": True}

    def _write(self, **known: Any) -> None:
        write_durably(self._path, json.dumps(known).encode())
