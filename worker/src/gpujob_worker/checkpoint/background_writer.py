"""Writes one checkpoint at a time in the background of the training, by the store's own commit
protocol.
"""

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
    """The write was given up for a newer one. Nothing of it is left."""


@dataclass(frozen=True, slots=True)
class Written:
    """How a write ended: the commit, or the error instead."""

    step: int
    commit: Commit | None = None
    error: Exception | None = None


class BackgroundWriter:
    """Runs at most one write at a time. Its errors reach the training only through `take`."""

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
        """The seconds that the current write will still take at its speed so far, or None if not
        known.
        """
        done, elapsed = self._done_bytes, time.monotonic() - self._started
        if not self.busy:
            return 0.0
        return elapsed * max(0, self._bytes - done) / done if done else None

    def start(
        self, step: int, text: str, tensors: Mapping[str, torch.Tensor], about: dict[str, Any]
    ) -> None:
        """Starts a write. `tensors` must not change until `busy` is false."""
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
        """Returns how the last write ended, once. None while a write is running, or if there was
        none.
        """
        if self.busy:
            return None
        written, self._written = self._written, None
        return written

    def wait(self, seconds: float) -> bool:
        """Waits for the current write. Returns True if none is left."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, seconds))
        return not self.busy

    def cancel(self) -> None:
        """Gives up the current write at its next piece, unless it is being committed."""
        self._cancelled = True

    def close(self) -> None:
        """Called before the interpreter ends, when no thread of ours may be in the middle of
        anything.
        """
        self.cancel()
        self.wait(_CLOSE_SECONDS_MAX)

    def _run(
        self, step: int, text: str, tensors: Mapping[str, torch.Tensor], about: dict[str, Any]
    ) -> None:
        try:
            commit = self._store.write(step, text, tensors, about, self._wrote)
            self._written = Written(step, commit)
        except Exception as error:
            # Raised again by the caller of `take`, without the frames that hold the state.
            with contextlib.suppress(AttributeError):
                error.__traceback__ = None
            self._written = Written(step, error=error)

    def _wrote(self, size: int) -> None:
        self._done_bytes += size
        if self._cancelled:
            raise CancelledError
