"""The number of calls follows from the loader's length, if there is one call for each batch."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from gpujob_worker.control.inference import ExpectedCalls

DATA = TensorDataset(torch.zeros(77, 1))
# 77 samples in batches of 4.
LOADER = DataLoader(DATA, batch_size=4)


class Unsized(Sampler[int]):
    def __iter__(self) -> Any:
        return iter(range(77))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(77))

    def __len__(self) -> int:
        return 1000


def total(
    batches: int, calls: int, *, loader: Any = LOADER, before: int = 0, resumed: bool = False
) -> int | None:
    """Returns what is expected after these batches and calls of a first pass."""
    expected = ExpectedCalls()
    expected.pass_begins(loader, before)
    for _ in range(batches):
        expected.batch_received()
    return expected.total(before + calls, resumed=resumed)


@pytest.mark.parametrize(
    ("batches", "calls", "found"),
    [
        (2, 2, None),  # too few
        (3, 3, 20),
        (20, 20, 20),
        (7, 5, 20),  # the loop requests two batches ahead
        (8, 5, None),
        (4, 8, None),  # two calls for each batch
    ],
)
def test_a_call_for_each_batch(batches: int, calls: int, found: int | None) -> None:
    assert total(batches, calls) == found


def test_calls_before_the_pass_count() -> None:
    assert total(5, 5, before=7) == 27


def test_a_resumed_pass_has_no_whole_length() -> None:
    assert total(5, 5, before=7, resumed=True) is None
    expected = ExpectedCalls()
    for before in (0, 40):
        expected.pass_begins(LOADER, before)
    for _ in range(5):
        expected.batch_received()
    assert expected.total(45, resumed=True) == 60, "the second pass is whole"


@pytest.mark.parametrize(
    "loader",
    [DataLoader(Stream(), batch_size=4), DataLoader(DATA, batch_size=4, sampler=Unsized())],
    ids=["stream", "unsized"],
)
def test_a_loader_without_a_certain_length(loader: Any) -> None:
    assert total(5, 5, loader=loader) is None


def test_nothing_is_expected_without_a_pass() -> None:
    assert ExpectedCalls().total(100, resumed=False) is None
