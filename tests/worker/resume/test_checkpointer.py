"""Saving beside the training: who waits for whom, and what is said and kept when it fails."""

import errno
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_api.report import CheckpointReport, WorkerPhase
from gpujob_api.settings import Settings
from gpujob_worker.checkpoint.background_writer import BackgroundWriter
from gpujob_worker.checkpoint.errors import FencedError
from gpujob_worker.checkpoint.interval import CheckpointCost
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.resume import checkpointer
from gpujob_worker.resume.checkpointer import Checkpointer
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.graceful_stop import Interrupted
from gpujob_worker.run.session import Session
from tests.harness.checkpoint_process import SlowStore

pytestmark = pytest.mark.timeout(120)


class Run:
    """A training whose state is its number of steps."""

    def __init__(self, store: Store | None, every_seconds: int | None, **environment: Any) -> None:
        settings = Settings(checkpoint_interval_seconds=every_seconds)
        self.session = Session(Environment(settings=settings, **environment))
        self.session.state.enter(WorkerPhase.TRAINING)
        self.store = store
        self.weights = torch.zeros(4)
        self.checkpointer = Checkpointer(self.session, store, self.state)

    def state(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def step(self) -> None:
        self.session.meter.steps += 1
        self.weights += 1.0
        self.checkpointer.safe_point()

    def written(self) -> bool:
        return self.checkpointer.wait(60.0)

    @property
    def said(self) -> str:
        return "\n".join(self.session.log.lines)

    @property
    def committed(self) -> int | None:
        at = self.session.state.checkpoint
        return at.step if at is not None else None


@pytest.fixture
def slow(tmp_path: Path) -> Generator[SlowStore]:
    store = SlowStore(tmp_path)
    yield store
    store.goes_on.set()


def at_every_step(asked: int | None, cost: CheckpointCost | None, notice: float) -> float:
    del asked, cost, notice
    return 0.0


def loaded_step(folder: Path) -> tuple[int, list[float]]:
    loaded = Store(folder, attempt=9).load()
    assert loaded is not None
    return loaded.step, loaded.state["weights"].tolist()


def test_training_goes_on_while_a_checkpoint_is_written(
    slow: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store does nothing until it is told to: any wait for it would end the test."""
    monkeypatch.setattr(checkpointer, "interval_seconds", at_every_step)
    run = Run(slow, None)
    for _ in range(20):
        run.step()
    assert run.committed is None
    slow.goes_on.set()
    assert run.written()
    run.step()
    assert run.committed == 1, "what came due meanwhile was left out"
    assert loaded_step(tmp_path) == (1, [1.0] * 4)
    assert "checkpoint applied: 0 MB: training stood still for" in run.said


def test_what_is_asked_for_at_every_step_is_waited_for(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 0)
    for _ in range(5):
        run.step()
    assert run.written()
    run.step()
    assert (run.committed or 0) >= 5
    assert "one is written while the next is due" in run.said


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("of any kind")]
)
def test_a_failed_write_is_said_and_the_next_one_is_tried(
    slow: SlowStore, tmp_path: Path, error: Exception
) -> None:
    slow.fails = error
    slow.goes_on.set()
    run = Run(slow, 0)
    run.step()
    assert run.written()
    run.step()
    assert f"checkpoint not written: {error}" in run.said
    assert run.committed is None
    slow.fails = None
    for _ in range(3):
        run.step()
        assert run.written()
    assert (run.committed or 0) >= 3


def test_a_newer_attempt_ends_the_run_at_its_next_step(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 0)
    Store(tmp_path, attempt=2)
    run.step()
    assert run.written()
    with pytest.raises(FencedError, match="attempt 2 owns"):
        run.step()


def test_without_room_for_a_copy_training_waits(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 0)
    run.checkpointer = Checkpointer(run.session, run.store, run.state, free_bytes=lambda: 10)
    run.step()
    assert run.committed == 1
    assert "training waits until it is written: a copy of 16 bytes takes more than half" in run.said


def test_a_copy_keeps_the_memory_limit_of_a_job_without_a_gpu(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 0, memory_limit_bytes=1000)
    run.step()
    assert run.committed == 1, "the process holds more than its limit: no copy was made"
    assert "of the 0 bytes" in run.said


def test_a_state_that_cannot_be_saved_is_said_and_ends_nothing(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 0)
    run.checkpointer = Checkpointer(run.session, run.store, lambda: {"weights": object()})
    for _ in range(3):
        run.step()
    assert "not written: state.weights: a object cannot be saved without pickle" in run.said


def leave(run: Run) -> int:
    run.session.stop.request("SIGTERM", run.session.environment.grace_seconds)
    with pytest.raises(Interrupted) as left:
        run.checkpointer.safe_point()
    assert run.session.state.phase is WorkerPhase.DRAINING
    code = left.value.code
    assert isinstance(code, int)
    return code


def test_a_stop_saves_the_newest_step(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 1000)
    for _ in range(7):
        run.step()
    assert leave(run) == 143
    assert loaded_step(tmp_path) == (7, [7.0] * 4)


def test_a_stop_waits_for_the_write_under_way_and_saves_what_came_after(
    slow: SlowStore, tmp_path: Path
) -> None:
    run = Run(slow, None, grace_seconds=60.0)
    run.checkpointer.begin()
    run.step()
    slow.goes_on.set()
    assert leave(run) == 143
    assert slow.steps() == [1, 0]


@pytest.mark.promise("I13")
def test_a_stop_gives_an_older_write_up_when_both_do_not_fit(
    slow: SlowStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(slow, 1000, grace_seconds=30.0)
    run.checkpointer._cost = CheckpointCost(0.0, 15.0)
    run.checkpointer.begin()
    run.step()
    monkeypatch.setattr(BackgroundWriter, "rest_seconds", 14.0)
    assert leave(run) == 143
    assert slow.steps() == [1], "the older write was given up"
    assert "give it up for the newest step" in run.said


def test_a_stop_that_is_too_short_finishes_what_is_under_way(
    slow: SlowStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(slow, 1000, grace_seconds=30.0)
    run.checkpointer._cost = CheckpointCost(0.0, 25.0)
    run.checkpointer.begin()
    run.step()
    slow.goes_on.set()
    monkeypatch.setattr(BackgroundWriter, "rest_seconds", 10.0)
    assert leave(run) == 144, "the newest step is not in it"
    assert slow.steps() == [0]
    assert run.committed == 0


def test_a_resumed_step_is_saved_already(tmp_path: Path) -> None:
    run = Run(Store(tmp_path, attempt=1), 1000)
    run.session.state.committed(CheckpointReport(0))
    assert leave(run) == 143
    assert not list(tmp_path.glob("step-*"))


def test_without_a_directory_a_stop_leaves_unsaved() -> None:
    run = Run(None, 0)
    run.step()
    assert leave(run) == 144
