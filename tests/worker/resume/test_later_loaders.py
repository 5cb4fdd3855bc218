"""Which loaders can be made from another one, and what they are then."""

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from gpujob_worker.resume.values.loaders import (
    LATER,
    arguments_of,
    early_loaders,
    is_put_back,
    made_like,
    origin_of,
)

DATA = TensorDataset(torch.arange(24))


def loader(**more: Any) -> Any:
    return DataLoader(DATA, **more)


def order(made: Any) -> list[list[int]]:
    torch.manual_seed(4)
    return [batch[0].tolist() for batch in made]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 8, "shuffle": True},
        {"batch_size": 5, "drop_last": True},
        {"batch_size": None},
        {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3},
    ],
)
def test_it_gives_the_same_batches(arguments: dict[str, Any]) -> None:
    # Without batches torch takes another function for the samples.
    size = 2 if arguments.get("batch_size", 1) is not None else None
    later, before = loader(**arguments), loader(batch_size=size)
    known = arguments_of(later)
    assert known is not None
    made = made_like(known, before)
    assert is_put_back(made)
    assert not is_put_back(later)
    assert origin_of(made) == origin_of(later)
    assert arguments_of(made) == known
    if arguments.get("batch_size") is not None:
        assert order(made) == order(later)
    assert made_like(known, made) is made, "on the way, and again once all is put back"
    assert made_like({**known, "batch_size": 3}, made) is not made


@pytest.mark.parametrize(
    "arguments",
    [
        {"sampler": RandomSampler(DATA, replacement=True)},
        {"sampler": RandomSampler(DATA, num_samples=4)},
        {"sampler": RandomSampler(TensorDataset(torch.arange(24)))},
        {"sampler": [1, 2]},
        {"batch_sampler": [[1, 2]]},
        {"shuffle": True, "generator": torch.Generator()},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "fork"},
    ],
)
def test_an_order_or_processes_of_its_own_have_no_arguments(arguments: dict[str, Any]) -> None:
    assert arguments_of(loader(**arguments)) is None


def test_neither_has_a_class_of_the_scripts_own() -> None:
    class Own(DataLoader[Any]):
        pass

    assert arguments_of(Own(DATA)) is None
    sampler = BatchSampler(RandomSampler(DATA), 4, False)
    assert arguments_of(DataLoader(DATA, batch_sampler=sampler)) is not None


def test_other_data_or_functions_are_another_origin() -> None:
    assert origin_of(loader()) == origin_of(loader(batch_size=4))
    assert origin_of(loader()) != origin_of(loader(collate_fn=list))
    assert origin_of(loader()) != origin_of(DataLoader(TensorDataset(torch.arange(24))))


class Trainer:
    def __init__(self, held: Any) -> None:
        self.loader = held


def test_names_and_attributes_on_the_way_get_theirs() -> None:
    later = {"k": LATER, "arguments": arguments_of(loader(batch_size=8))}
    nodes = [later, {"k": "object", "attributes": {"loader": ("r", 0), "step": 3}}]
    names = {"train": ("r", 0), "trainer": ("r", 1), "step": 3}
    trainer = Trainer(loader())
    now = {"train": loader(), "trainer": trainer}
    found = list(early_loaders(names, nodes, now))
    assert [(owner, name, made.batch_size) for owner, name, made in found] == [
        (None, "train", 8),
        (trainer, "loader", 8),
    ]
    assert list(early_loaders(names, nodes, {"train": 3})) == []
