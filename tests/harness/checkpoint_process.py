"""A store that takes its time, and a process that is killed by SIGKILL in the middle of a write."""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gpujob_worker.checkpoint.background_writer import BackgroundWriter
from gpujob_worker.checkpoint.staging import StagingBuffer
from gpujob_worker.checkpoint.store import Commit, Store
from gpujob_worker.checkpoint.tree import encode_tree

# More than one piece of the file, so that a process can end between two.
ELEMENTS = 6 << 20
_SECONDS_MAX = 60.0


def big_state(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(ELEMENTS, dtype=torch.float32) * step}


def dies_while_writing(directory: Path, point: str) -> None:
    """Commits step 1 and is killed at `point` of writing step 2: a stage or `piece-<n>`."""
    die_at = {"point": ""}

    def reached(name: str) -> None:
        if name == die_at["point"]:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store(directory, attempt=1, on_point=reached)
    store.save(1, big_state(1))
    die_at["point"] = point
    writer, pieces = _DyingWriter(store, point), StagingBuffer()
    text, tensors = encode_tree(big_state(2))
    writer.start(2, text, pieces.stage(tensors), {})
    writer.wait(60.0)


class _DyingWriter(BackgroundWriter):
    def __init__(self, store: Store, point: str) -> None:
        super().__init__(store)
        self._point, self._pieces = point, 0

    def _wrote(self, size: int) -> None:
        super()._wrote(size)
        self._pieces += 1
        if self._point == f"piece-{self._pieces}":
            os.kill(os.getpid(), signal.SIGKILL)


class SlowStore(Store):
    """Beside the training it takes until it is told to go on; `fails` after that."""

    def __init__(self, directory: Path, fails: Exception | None = None) -> None:
        super().__init__(directory, attempt=1)
        self.goes_on = threading.Event()
        self.fails = fails

    def write(
        self,
        step: int,
        text: str,
        tensors: Mapping[str, torch.Tensor],
        about: dict[str, Any],
        wrote: Callable[[int], None] = lambda size: None,
    ) -> Commit:
        deadline = time.monotonic() + _SECONDS_MAX
        while threading.current_thread() is not threading.main_thread():
            if self.goes_on.wait(0.01) or time.monotonic() > deadline:
                break
            wrote(0)
        if self.fails is not None:
            raise self.fails
        return super().write(step, text, tensors, about, wrote)
