"""Worker processes for data loaders: only where they change neither samples nor order."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from gpujob_worker.inject.loaders import add_workers, loader_refusal, redraw_seed


class Numbers(Dataset[Any]):
    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index)


class Noisy(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index) + torch.rand(())


class Changing(Numbers):
    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor(index)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Named(Numbers):
    def __getitem__(self, index: Any) -> Any:
        raise KeyError(index)


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Numbers(), num_workers=2), "2 workers of its own"),
        (DataLoader(Stream()), "streamed dataset"),
        (DataLoader(Noisy()), "draws random numbers"),
        (DataLoader(Changing()), "changes the dataset"),
        (DataLoader(Named()), "cannot be read: KeyError"),
    ],
)
def test_refusals(loader: Any, reason: str) -> None:
    state = torch.get_rng_state()
    assert reason in (loader_refusal(loader) or "")
    assert torch.equal(state, torch.get_rng_state())


def test_accepted() -> None:
    assert loader_refusal(DataLoader(Numbers())) is None
    assert loader_refusal(DataLoader(TensorDataset(torch.arange(4)))) is None


def test_order_and_random_state_stay_those_of_the_plain_loader() -> None:
    orders: list[Any] = []
    for injected in (False, True):
        torch.manual_seed(9)
        loader = DataLoader(Numbers(), batch_size=3, shuffle=True)
        if injected:
            add_workers(loader, 1)
        passes: list[Any] = []
        for _ in range(3):
            redraw_seed(loader)
            passes.append([batch.tolist() for batch in loader])
        orders.append((passes, torch.rand(3).tolist()))
        iterator: Any = vars(loader).get("_iterator")
        if iterator is not None:
            iterator._shutdown_workers()
    assert orders[0] == orders[1]
