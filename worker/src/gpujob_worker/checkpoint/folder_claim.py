"""Which of several processes a folder's checkpoints are of: of the first that claimed it.

It holds a lock for as long as it lives, and leaves a digest of its command, by which it is known
in the next run. A command that comes twice in one run names no process; from then on nothing in
the folder is used.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.manifest import read_small, write_durably

_LOCK, _CLAIM, _TWICE = "CLAIM.lock", "CLAIM", "claimed-twice"
_ANOTHER = "another process of this run is the one that is saved"
_ALIKE = "several processes of one run have this command, so that it tells none of them"


class FolderClaim:
    """One process's claim. `run` is the same for all processes of one run, and for no others."""

    def __init__(self, folder: Path, command: Sequence[str], run: str) -> None:
        self._folder = folder
        self._run = run
        # A command line may hold what is not for everybody's eyes.
        self._command = hashlib.sha256(json.dumps(list(command)).encode()).hexdigest()
        self._descriptor: int | None = None

    def is_known(self) -> bool:
        """Whether the folder is of a process with this command, of another run."""
        try:
            known = self._known()
        except CorruptError:
            return False
        return known is not None and known[0] == self._command and known[1] != self._run

    def take(self) -> str | None:
        """Why the folder is not this process's; None where it is, from now on until it ends.

        Raises `OSError` where nothing can be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        refusal = self._lock()
        if refusal is None:
            refusal = self._compare()
            if refusal is not None:
                self._release()
        return refusal

    def _lock(self) -> str | None:
        path = self._folder / _LOCK
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return self._compare_with_holder()
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        # A forked child has the same open file, and may live longer: a loader's process does.
        os.register_at_fork(after_in_child=self._release)
        return None

    def _compare_with_holder(self) -> str:
        known = self._known()
        if known is not None and known[0] == self._command:
            self._note_twice()
        return _ANOTHER

    def _compare(self) -> str | None:
        known = self._known()
        if known is not None:
            command, run = known
            if command == self._command and run == self._run:
                self._note_twice()
            if run == self._run:
                return _ANOTHER
            if command != self._command:
                return "the checkpoints that are there are of another command"
        elif any(self._folder.glob("step-*")):
            return "the checkpoints that are there are of nobody who is known"
        if (self._folder / _TWICE).exists():
            return _ALIKE
        text = json.dumps({"command": self._command, "run": self._run})
        write_durably(self._folder / _CLAIM, text.encode())
        return None

    def _note_twice(self) -> None:
        write_durably(self._folder / _TWICE, b"")

    def _known(self) -> tuple[str, str] | None:
        """The command and the run of the folder's process. Raises `CorruptError`."""
        path = self._folder / _CLAIM
        if not path.exists():
            return None
        try:
            known = json.loads(read_small(path))
            return str(known["command"]), str(known["run"])
        except (ValueError, KeyError, TypeError):
            raise CorruptError(f"{_CLAIM} cannot be read") from None

    def _release(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            os.close(descriptor)
