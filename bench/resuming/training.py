"""A training loop of a few milliseconds a step, with a state as large as wanted, in one process."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gpujob_api.report import WorkerPhase
from gpujob_api.settings import Settings
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.resume.checkpointer import Checkpointer
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session

BESIDE, BLOCKING = WAYS = "beside the training", "training waits"
# As many as GPT-2 with 124 million parameters and AdamW has.
TENSORS = 444
STEPS_COMPARED = 10


@dataclass(frozen=True, slots=True)
class Work:
    """What a process trains, and where it saves."""

    way: str
    megabytes: int
    device: str
    interval_seconds: int
    directory: str


class Training:
    def __init__(self, work: Work) -> None:
        settings = Settings(checkpoint_interval_seconds=work.interval_seconds)
        self.session = Session(Environment(settings=settings, grace_seconds=60.0))
        self.session.leaves_stops_to_script()
        self.session.state.enter(WorkerPhase.TRAINING)
        elements = work.megabytes * 10**6 // 4 // TENSORS
        self.state = [torch.ones(elements, device=work.device) for _ in range(TENSORS)]
        self._factor = torch.randn(384, 384, device=work.device)
        self._device = work.device
        room = (lambda: 0) if work.way == BLOCKING else None
        store = Store(Path(work.directory), attempt=1, keep=2)
        self.checkpointer = Checkpointer(self.session, store, self._snapshot, room)

    def _snapshot(self) -> dict[str, Any]:
        return {"state": self.state}

    def step(self) -> float:
        """Makes a step and passes a safe point; returns the step's seconds, and changes the state
        as an optimizer would."""
        start = time.perf_counter()
        product = self._factor
        for _ in range(8):
            product = torch.tanh(product @ self._factor)
        self.state[self.session.meter.steps % TENSORS].add_(float(product[0, 0]))
        self.session.meter.steps += 1
        return time.perf_counter() - start


def cost_of_saving(
    work: Work, rounds: int, take_turns: Callable[[], None]
) -> list[dict[str, float]]:
    """In each round: seconds that training stood still, those of the write, and of the steps before
    and after it. `take_turns` returns when it is this process's turn."""
    torch.set_num_threads(1)
    training = Training(work)
    rows: list[dict[str, float]] = []
    for round_number in range(rounds + 1):
        take_turns()
        before = sum(training.step() for _ in range(STEPS_COMPARED))
        start = time.perf_counter()
        training.checkpointer.begin()
        blocked = time.perf_counter() - start
        after = sum(training.step() for _ in range(STEPS_COMPARED))
        while not training.checkpointer.wait(0.05):
            training.step()
        training.checkpointer.safe_point()
        report = training.session.state.checkpoint
        assert report is not None
        if round_number:  # the first one takes the memory for the copy
            rows.append(
                {
                    "blocked": blocked,
                    "write": report.write_seconds,
                    "dip": after / before - 1.0,
                }
            )
    return rows


def train_until_stopped(work: Work, ready: str) -> None:
    """Trains until SIGTERM; the exit code says whether the newest step is committed."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    training = Training(work)
    training.session.stop.listen()
    code = 1
    try:
        while True:
            training.step()
            training.checkpointer.safe_point()
            if training.session.meter.steps == 1:
                Path(ready).touch()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        os._exit(code)
