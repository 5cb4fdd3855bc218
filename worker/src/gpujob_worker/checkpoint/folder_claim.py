"""Which of several processes a folder's checkpoints are of: of the first that claimed it.

It holds a lock for as long as it lives, and leaves a digest of its command, by which it is known
in the next run. A command that comes twice in one run names no process; from then on no checkpoint
in the folder is used. Where none is, the next run's first process gets the folder.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.manifest import read_small, write_durably
from gpujob_worker.checkpoint.reading import is_there, names_in
from gpujob_worker.process_lock import ProcessLock

# For so long the holder of a folder's lock may take to write whose the folder is.
LOCK_SECONDS_MAX = 10.0
_LOOK_SECONDS = 0.02
_CLAIM, _TWICE = "CLAIM", "claimed-twice"
_ANOTHER = "another process of this run is the one that is saved"
_ALIKE = "several processes of one run have this command, so that it tells none of them"


class _Known(NamedTuple):
    command: str
    run: str
    attempt: int


class FolderClaim:
    """One process's claim. `run` is the same for all processes of one run, and for no others.
    Every method raises `UnreadableError` where the system does not tell whose the folder is.

    The lock is between the processes of one attempt: of an older attempt, one may still live, and
    the checkpoint store's fence keeps it out.
    """

    def __init__(self, folder: Path, command: Sequence[str], run: str, attempt: int) -> None:
        self._folder = folder
        self._run, self._attempt = run, attempt
        self._lock = ProcessLock(folder / f"CLAIM-{attempt}.lock")
        # A command line may hold what is not for everybody's eyes.
        self._command = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()

    def is_known(self) -> bool:
        """Whether the folder is of a process with this command, of another run."""
        try:
            known = self._known()
        except CorruptError:
            return False
        return known is not None and known.command == self._command and known.run != self._run

    def meet(self) -> None:
        """Notes that the process is there: one that ends before it trains takes nothing, and in the
        next run may be the first. Raises `OSError` and `CorruptError`.
        """
        if not self._lock.held:
            self._note_if_twice(self._known())

    def take(self) -> str | None:
        """Why the folder is not this process's; None where it is, from now on until it ends.

        Raises `OSError` where nothing can be written.
        """
        if self._lock.held:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while not self._lock.take():
            # The holder may not have written yet whose the folder is, and may not get it itself.
            known = self._known()
            if known is not None and known.run == self._run:
                self._note_if_twice(known)
                return _ANOTHER
            if time.monotonic() > deadline:
                return _ANOTHER
            time.sleep(_LOOK_SECONDS)
        refusal = self._compare()
        if refusal is not None:
            self._lock.release()
        return refusal

    def _compare(self) -> str | None:
        known = self._known()
        self._note_if_twice(known)
        if known is not None and known.run == self._run:
            return _ANOTHER
        if known is not None and known.attempt > self._attempt:
            return "a newer attempt has begun"
        if any(name.startswith("step-") for name in names_in(self._folder)):
            if known is None:
                return "the checkpoints that are there are of nobody who is known"
            if known.command != self._command:
                return "the checkpoints that are there are of another command"
            if is_there(self._folder / _TWICE):
                return _ALIKE
        (self._folder / _TWICE).unlink(missing_ok=True)
        known = _Known(self._command, self._run, self._attempt)
        text = json.dumps(known._asdict())
        write_durably(self._folder / _CLAIM, text.encode())
        return None

    def _note_if_twice(self, known: _Known | None) -> None:
        if known is not None and (known.command, known.run) == (self._command, self._run):
            write_durably(self._folder / _TWICE, b"")

    def _known(self) -> _Known | None:
        """Whose the folder is. Raises `CorruptError`."""
        path = self._folder / _CLAIM
        if not is_there(path):
            return None
        try:
            known = json.loads(read_small(path))
            return _Known(str(known["command"]), str(known["run"]), int(known["attempt"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptError(f"{_CLAIM} cannot be read") from None
