"""What one checkpoint of the worker takes, as the script feels it: in a measured process.

In the first half of each block the script makes steps alone; in the second half the worker writes a
checkpoint, and the block waits until it is committed. What the second half took above the first is
the checkpoint's, its extra work in the steps that follow included. Nothing of the worker is looked
into but when a checkpoint is due, so an older worker is measured alike.
"""

import math
import os
import time
from importlib import import_module
from typing import Any

COMMIT_SECONDS_MAX = 60.0
_LOOK_SECONDS = 0.002
# By the clock, of the training's own thread, and of all threads of the process.
Times = tuple[float, float, float]


class Saves:
    """`took` is of the last block: seconds for which the training stood still, and until the
    checkpoint was committed, by the clock and by the processor.
    """

    def __init__(self, directory: str, half: int) -> None:
        self.took: dict[str, float] = {}
        self._directory = directory
        self._half = half
        self._steps = 0
        self._due = self._installed = False
        self._before: set[str] = set()
        self._starts: Times = (0.0, 0.0, 0.0)
        self._plain: Times = (0.0, 0.0, 0.0)

    def block_starts(self) -> None:
        if not self._installed:
            self._installed = True
            self._install()
        self._steps, self._starts = 0, _times()

    def after_step(self) -> None:
        self._steps += 1
        if self._steps == self._half:
            self._plain = _since(self._starts)
            self._before, self._due, self._starts = self._committed(), True, _times()
        elif self._steps == 2 * self._half:
            stood = _since(self._starts)
            written = self._wait()
            self.took = {
                "blocked": stood[0] - self._plain[0],
                "blocked_processor": stood[1] - self._plain[1],
                "written": written[0] - self._plain[0],
                "written_processor": written[2] - self._plain[2],
            }

    def _install(self) -> None:
        """A checkpoint is due when the block says so, and never else."""
        checkpointer: Any = import_module("gpujob_worker.resume.checkpointer")
        begin = checkpointer.Checkpointer.begin

        def begins(one: Any) -> None:
            self._due = False
            begin(one)

        def interval_seconds(*_: Any) -> float:
            return 0.0 if self._due else math.inf

        checkpointer.Checkpointer.begin = begins
        checkpointer.interval_seconds = interval_seconds

    def _committed(self) -> set[str]:
        return {name for name in os.listdir(self._directory) if name.startswith("step-")}

    def _wait(self) -> Times:
        """Raises `RuntimeError` where none is committed."""
        deadline = time.monotonic() + COMMIT_SECONDS_MAX
        while not self._committed() - self._before:
            if time.monotonic() > deadline:
                raise RuntimeError("no checkpoint was committed")
            time.sleep(_LOOK_SECONDS)
        return _since(self._starts)


def _times() -> Times:
    return time.perf_counter(), time.thread_time(), time.process_time()


def _since(starts: Times) -> Times:
    now = _times()
    return now[0] - starts[0], now[1] - starts[1], now[2] - starts[2]
