"""A pass that is begun again reads what it would have read."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils.data.distributed import DistributedSampler

from gpujob_worker.resume.passes import Pass, Passes


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Passes:
    # What `install` puts there is taken off again.
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
    found = Passes()
    found.install()
    return found


def new_loader() -> tuple[Any, Any]:
    order: Any = DistributedSampler(range(24), 2, 1, shuffle=True, seed=5)  # pyright: ignore
    data: Any = torch.arange(24)
    return DataLoader(data, batch_size=2, sampler=order), order


def test_a_sampler_is_told_the_epoch_that_it_had(passes: Passes) -> None:
    """Lightning begins the pass before it tells the samplers of a resumed run their epoch."""
    records: list[Pass] = []
    passes.fetching = records.append
    loader, order = new_loader()
    order.set_epoch(3)
    batches: Iterator[Any] = iter(loader)
    for _ in range(2):
        next(batches)
    saved = records[-1].state(2)
    rest = [batch.tolist() for batch in batches]
    assert len(rest) == 4
    again, order = new_loader()
    passes.begins = lambda found: saved if found is again else None
    resumed = iter(again)
    order.set_epoch(3)
    assert [batch.tolist() for batch in resumed] == rest


class Dealt:
    """Every second batch of another sampler's, as Accelerate deals them out to two processes."""

    def __init__(self, batches: BatchSampler) -> None:
        self.batch_sampler = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (batch for at, batch in enumerate(self.batch_sampler) if at % 2)

    def __len__(self) -> int:
        return len(self.batch_sampler) // 2


def test_an_order_that_is_drawn_in_a_sampler_inside_another_one_comes_back(passes: Passes) -> None:
    records: list[Pass] = []
    passes.fetching = records.append

    def dealt() -> Any:
        order = RandomSampler(range(24), generator=torch.Generator().manual_seed(3))
        return DataLoader(
            torch.arange(24),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            batch_sampler=Dealt(BatchSampler(order, 2, drop_last=False)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        )

    loader = dealt()
    list(loader)  # one pass: the second one's order is another
    batches: Iterator[Any] = iter(loader)
    for _ in range(2):
        next(batches)
    saved = records[-1].state(2)
    rest = [batch.tolist() for batch in batches]
    again = dealt()
    passes.begins = lambda found: saved if found is again else None
    assert [batch.tolist() for batch in again] == rest
