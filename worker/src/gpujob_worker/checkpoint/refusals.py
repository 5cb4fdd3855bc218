"""Checkpoints to which the training could not come back: it begins anew, once under protection.

The reason is written into the directory when an attempt gives up. The next attempt puts the
checkpoints aside, of which the newest stays for people to look at, and saves its own. If one of
those is refused, too, coming back does not work for this script: nothing is saved from then on.
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
    """What earlier attempts wrote into one checkpoint directory. Raises `UnreadableError`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / FILE

    def add(self, reason: str, attempt: int) -> None:
        """The checkpoints that are there must not be tried again; several processes of an attempt
        that say so count once.
        """
        known = self._read()
        if known["attempt"] == attempt:
            return
        times = known["times"] + 1
        self._write(times=times, reason=reason[:REASON_LENGTH_MAX], attempt=attempt, aside=False)

    @property
    def awaits(self) -> bool:
        """Whether the checkpoints that are there are refused and not yet put aside."""
        return not self._read()["aside"]

    def reason(self) -> str | None:
        """Why nothing is saved any more; None as long as a fresh run may be saved."""
        known = self._read()
        return known["reason"] if known["times"] >= REFUSALS_MAX else None

    def put_aside(self, steps: Sequence[int]) -> str | None:
        """Makes way for those of a fresh run; returns a note. `steps`: the newest first.

        Called by the one attempt that owns the directory, under its lock.
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
