"""Assigns a folder of checkpoints to one of several processes: the first that claimed it.

That process holds a lock while it lives, and leaves a digest of its command, by which the next run
recognizes it. A command that occurs twice in one run identifies no process, so from then on no
checkpoint in the folder is used. Without a checkpoint, the next run's first process gets the
folder.
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

# Seconds that the holder of a folder's lock may take to write its claim.
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

    Every method raises `UnreadableError` if the claim cannot be read. The lock is between the
    processes of one attempt. A process of an older attempt may still live, and the checkpoint
    store's fence keeps it out.
    """

    def __init__(self, folder: Path, command: Sequence[str], run: str, attempt: int) -> None:
        self._folder = folder
        self._run, self._attempt = run, attempt
        self._lock = ProcessLock(folder / f"CLAIM-{attempt}.lock")
        # A command line may contain secrets.
        self._command = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()

    def is_known(self) -> bool:
        """Returns whether the folder belongs to a process with this command, of another run."""
        try:
            known = self._known()
        except CorruptError:
            return False
        return known is not None and known.command == self._command and known.run != self._run

    def meet(self) -> None:
        """Records that the process exists. A process that ends before it trains takes nothing.

        In the next run it may be the first one. Raises `OSError` and `CorruptError`.
        """
        if not self._lock.held:
            self._note_if_twice(self._known())

    def take(self) -> str | None:
        """Returns why the folder is not this process's, or None if it is from now on.

        Raises `OSError` if nothing can be written.
        """
        if self._lock.held:
            return None
        self._folder.mkdir(parents=True, exist_ok=True)
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while not self._lock.take():
            # The holder may not have written its claim yet, and may not get the folder itself.
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
        """Returns the claim on the folder, or None. Raises `CorruptError`."""
        path = self._folder / _CLAIM
        if not is_there(path):
            return None
        try:
            known = json.loads(read_small(path))
            return _Known(str(known["command"]), str(known["run"]), int(known["attempt"]))
        except (ValueError, KeyError, TypeError):
            raise CorruptError(f"{_CLAIM} cannot be read") from None
