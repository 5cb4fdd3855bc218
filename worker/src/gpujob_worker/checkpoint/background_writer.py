"""Writes one checkpoint at a time beside the training, by the store's own commit protocol."""

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.store import Commit, Store

_CLOSE_SECONDS_MAX = 2.0


class CancelledError(Exception):
    """The write was given up for a newer one; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Written:
    """How a write ended: the commit, or the error instead of one."""

    step: int
    commit: Commit | None = None
    error: Exception | None = None


class BackgroundWriter:
    """At most one write under way. Nothing that happens in it reaches the training by itself."""

    def __init__(self, store: Store | SharedStore) -> None:
        self._store = store
        self._thread: threading.Thread | None = None
        self._written: Written | None = None
        self._cancelled = False
        self._started = 0.0
        self._done_bytes = self._bytes = 0

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def rest_seconds(self) -> float | None:
        """How long the write under way will still take at its speed so far; None: not known."""
        done, elapsed = self._done_bytes, time.monotonic() - self._started
        if not self.busy:
            return 0.0
        return elapsed * max(0, self._bytes - done) / done if done else None

    def start(
        self, step: int, text: str, tensors: Mapping[str, torch.Tensor], about: dict[str, Any]
    ) -> None:
        """Begins to write; `tensors` must stay as they are until `busy` is false."""
        assert not self.busy, "one write at a time"
        self._written, self._cancelled = None, False
        self._started, self._done_bytes = time.monotonic(), 0
        self._bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        arguments = (step, text, tensors, about)
        self._thread = threading.Thread(
            target=self._run, args=arguments, name="gpujob-checkpoint", daemon=True
        )
        self._thread.start()

    def take(self) -> Written | None:
        """How the last write ended, once; None while one is under way or none was."""
        if self.busy:
            return None
        written, self._written = self._written, None
        return written

    def wait(self, seconds: float) -> bool:
        """Waits for the write under way; True when none is left."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, seconds))
        return not self.busy

    def cancel(self) -> None:
        """Gives the write under way up at its next piece, unless it is being committed."""
        self._cancelled = True

    def close(self) -> None:
        """Before the interpreter ends: no thread of ours is to be in the middle of anything."""
        self.cancel()
        self.wait(_CLOSE_SECONDS_MAX)

    def _run(
        self, step: int, text: str, tensors: Mapping[str, torch.Tensor], about: dict[str, Any]
    ) -> None:
        try:
            commit = self._store.write(step, text, tensors, about, self._wrote)
            self._written = Written(step, commit)
        except Exception as error:
            # Raised again by whoever takes it, without the frames that hold the state.
            with contextlib.suppress(AttributeError):
                error.__traceback__ = None
            self._written = Written(step, error=error)

    def _wrote(self, size: int) -> None:
        self._done_bytes += size
        if self._cancelled:
            raise CancelledError
