"""Worker processes that die, hang or have an older dataset cost the script nothing."""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

from gpujob_worker.inject import worker_batches
from gpujob_worker.inject.worker_batches import LoaderFacts, WorkerBatches
from tests.worker.inject.test_worker_batches import SAMPLES, Samples, plain


def test_processes_that_are_killed_cost_no_batch_and_no_error() -> None:
    """They die while the loop computes, and nobody has waited for them."""
    loader: Any = DataLoader(Samples(plain), batch_size=4)
    iterator = iter(loader)
    seen: list[float] = next(iterator)[:, 0].tolist()
    facts = LoaderFacts()
    iterator._next_data = batches = WorkerBatches(iterator, loader, 1, facts)
    killed = 0
    for batch in iterator:
        seen += batch[:, 0].tolist()
        processes = batches._processes
        if processes is not None and len(seen) > 20 and facts.refusal is None:
            os.kill(processes._workers[0].pid, signal.SIGKILL)
            until_it_has_ended(processes._workers[0].pid)
            killed += 1
    assert seen == [*range(SAMPLES)]
    assert killed
    assert "worker processes failed: RuntimeError: DataLoader worker" in (facts.refusal or "")


def until_it_has_ended(process: int) -> None:
    """Leaves it to be reaped, as a loop that computes does; Python runs its handlers meanwhile."""
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    for _ in range(1000):
        time.monotonic()


def test_batches_that_a_script_keeps_hold_no_shared_memory() -> None:
    def two_views(samples: list[torch.Tensor]) -> Any:
        rows = torch.stack(samples)
        return {"rows": rows, "first": [rows[:, 0]], "own": Held(rows + 1)}

    loader: Any = DataLoader(Samples(plain), batch_size=4, collate_fn=two_views)
    iterator, facts = iter(loader), LoaderFacts()
    kept = [next(iterator)]
    iterator._next_data = WorkerBatches(iterator, loader, 1, facts)
    kept += iterator
    assert facts.given > 0
    for batch in kept:
        tensors = [batch["rows"], *batch["first"], batch["own"].rows]
        assert not any(tensor.is_shared() for tensor in tensors)
        assert torch.equal(batch["own"].rows, batch["rows"] + 1)
        batch["rows"].zero_()
        assert not batch["first"][0].any()


class Held:
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


class Curriculum(Samples):
    def __init__(self) -> None:
        super().__init__(plain)
        self.hardness = 0
        self.by_name = {"hardness": 0}
        self.tensor = torch.zeros(())
        self.inner = Holder()

    def __getitem__(self, index: int) -> torch.Tensor:
        hardness = self.hardness + self.by_name["hardness"] + self.inner.hardness
        return super().__getitem__(index) + hardness + self.tensor


class Holder:
    hardness = 0


def by_attribute(dataset: Any) -> None:
    dataset.hardness += 100


def by_item(dataset: Any) -> None:
    dataset.by_name["hardness"] += 100


def in_place(dataset: Any) -> None:
    dataset.tensor += 100


def inside(dataset: Any) -> None:
    dataset.inner.hardness += 100


@pytest.mark.parametrize("change", [by_attribute, by_item, in_place, inside])
def test_what_a_script_changes_in_its_dataset_counts_at_once(change: Callable[[Any], None]) -> None:
    seen: list[Any] = []
    facts = LoaderFacts()
    for workers in (0, 2):
        dataset: Any = Curriculum()
        loader: Any = DataLoader(dataset, batch_size=4)
        iterator = iter(loader)
        seen.append([next(iterator).tolist()])
        if workers:
            iterator._next_data = WorkerBatches(iterator, loader, workers, facts)
        for number, batch in enumerate(iterator):
            seen[-1].append(batch.tolist())
            if number == 8:
                change(dataset)
    assert seen[0] == seen[1]
    assert facts.given > 0
    assert "the script changes its dataset in the middle of a pass" in (facts.refusal or "")


class Deadlocked(Samples):
    """As a dataset whose library holds a lock that a thread of the parent had taken."""

    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        super().__init__(make)
        self.process = os.getpid()

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.getpid() != self.process:
            threading.Event().wait()
        return super().__getitem__(index)


def with_a_function(samples: list[torch.Tensor]) -> Any:
    return torch.stack(samples), lambda: 0


def unreadable_elsewhere() -> None:
    raise ValueError("made for another process")


class Unreadable:
    """It can be sent, and cannot be received."""

    def __reduce__(self) -> Any:
        return unreadable_elsewhere, ()


def with_an_unreadable(samples: list[torch.Tensor]) -> Any:
    return torch.stack(samples), Unreadable()


def taken_over(loader: Any) -> tuple[list[float], LoaderFacts]:
    """All samples that the script sees with one worker process, and what is known then."""
    iterator, facts = iter(loader), LoaderFacts()
    batches = [next(iterator)]
    iterator._next_data = WorkerBatches(iterator, loader, 1, facts)
    batches += iterator
    tensors = [batch[0] if isinstance(batch, (list, tuple)) else batch for batch in batches]
    return [number for tensor in tensors for number in tensor[:, 0].tolist()], facts


def test_batches_that_never_come_are_loaded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_batches, "WAIT_SECONDS_MAX", 0.5)
    seen, facts = taken_over(DataLoader(Deadlocked(plain), batch_size=4))
    assert seen == [*range(SAMPLES)]
    assert "worker processes failed: RuntimeError: timed out" in (facts.refusal or "")


@pytest.mark.parametrize(
    ("collate", "reason"),
    [
        (with_a_function, "its batches cannot be sent from a worker process"),
        (with_an_unreadable, "worker processes failed: ValueError: made for another process"),
    ],
)
def test_batches_that_cannot_be_sent_are_loaded_here(collate: Any, reason: str) -> None:
    seen, facts = taken_over(DataLoader(Samples(plain), batch_size=4, collate_fn=collate))
    assert seen == [*range(SAMPLES)]
    assert reason in (facts.refusal or "")


class OnlyHere(Samples):
    """As one that holds a connection of the process that opened it."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if get_worker_info() is not None:
            raise ConnectionError("opened in another process")
        return super().__getitem__(index)


def test_batches_that_fail_in_workers_are_counted_apart() -> None:
    seen, facts = taken_over(DataLoader(OnlyHere(plain), batch_size=4))
    assert seen == [*range(SAMPLES)]
    assert (facts.failed, facts.missed) == (8, 0)
    assert facts.refusal == "8 of 8 batches failed in worker processes and could be loaded here"
