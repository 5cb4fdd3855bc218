"""Which data loaders get worker processes."""

import io
import multiprocessing
import random
import sys
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    random_split,
)

from gpujob_worker.inject.loader_refusal import loader_refusal
from gpujob_worker.resume.resumable_loader import ResumableLoader
from tests.worker.inject.numbers_dataset import Long, Noisy, Numbers, OwnNoise


class Lines(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.log = sys.stderr
        self.file = io.FileIO(__file__)

    def __del__(self) -> None:
        self.file.close()


class Changing(Numbers):
    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return torch.tensor(index)


class Keeping(Numbers):
    """Keeps what it has read: in a worker process it would be kept for that pass alone."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[int, Any] = {}

    def __getitem__(self, index: int) -> Any:
        return self.kept.setdefault(index, torch.tensor(index))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(10))


class Named(Numbers):
    def __getitem__(self, index: Any) -> Any:
        raise KeyError(index)


class RarelyNamed(OwnNoise):
    """An error after numbers were drawn."""

    def __getitem__(self, index: int) -> Any:
        torch.rand(())
        random.random()
        if index > 4:
            raise KeyError(index)
        return super().__getitem__(index)


class Remembers:
    """A transform that keeps what it has computed."""

    def __init__(self) -> None:
        self.known: dict[float, float] = {}

    def __call__(self, value: float) -> float:
        return self.known.setdefault(value, value + 1.0)


def of_two(samples: list[Any]) -> Any:
    one, two = samples
    return torch.stack([one, two])


# Not in the memory that processes share; a GPU's is not either.
ELSEWHERE = torch.ones(8, 2, device="meta")


def moved(samples: list[Any]) -> Any:
    return {"x": [torch.stack(samples).to("meta")]}


class Transformed(Numbers):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(self.transform(index)))


class Opening(Lines):
    """Opens its file when it is first read."""

    def __init__(self) -> None:
        super().__init__()
        self.file.close()

    def __getitem__(self, index: int) -> Any:
        if self.file.closed:
            self.file = io.FileIO(__file__)
        return torch.tensor(index)


class Connecting(Numbers):
    """The same of what is no file."""

    connection: Any = None

    def __getitem__(self, index: int) -> Any:
        self.connection = self.connection or object()
        return torch.tensor(index)


class Table:
    """As a table of pandas, it makes an index when it is first read."""

    def __init__(self) -> None:
        self.indices: dict[str, Any] = {}

    def __call__(self, value: float) -> float:
        self.indices.setdefault("rows", [value])
        return value


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: Any) -> Any:
        for transform in self.transforms:
            value = transform(value)
        return value


def add(generator: random.Random, value: float) -> float:
    return value + generator.random()


def adds_from_a_closure() -> Any:
    generator = random.Random(1)

    def adds(value: float) -> float:
        return value + generator.random()

    return adds


def adds_from_a_default() -> Any:
    kept = random.Random(1)

    def adds(value: float, generator: random.Random = kept) -> float:
        return value + generator.random()

    return adds


def nested(transform: Any) -> Any:
    return Compose(Compose(Compose(Compose(transform))))


class CachedOwnNoise(OwnNoise):
    """A collate_fn that draws from a generator of its own."""

    def __call__(self, samples: list[Any]) -> Any:
        return torch.stack(samples) + self.generator.random()


class DrawsAsItGoes(Sampler[int]):
    def __len__(self) -> int:
        return 10

    def __iter__(self) -> Any:
        for _ in range(10):
            yield int(torch.randint(10, ()))


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Noisy(), num_workers=2), "2 workers draw random numbers"),
        (DataLoader(Numbers(), num_workers=2, worker_init_fn=print), "worker_init_fn"),
        (DataLoader(Stream()), "streamed dataset"),
        (DataLoader(OwnNoise()), "a random generator of its own"),
        (DataLoader(Numbers(), collate_fn=CachedOwnNoise()), "a random generator of its own"),
        (DataLoader(Transformed(adds_from_a_closure())), "a random generator of its own"),
        (DataLoader(Transformed(adds_from_a_default())), "a random generator of its own"),
        (DataLoader(Transformed(partial(add, random.Random(1)))), "a random generator of its own"),
        (DataLoader(Transformed(nested(partial(add, random.Random(1))))), "generator of its own"),
        (DataLoader(Numbers(), sampler=DrawsAsItGoes()), "its DrawsAsItGoes may draw random"),
        (DataLoader(Numbers(), 2, sampler=DrawsAsItGoes()), "its DrawsAsItGoes may draw random"),
        (DataLoader(Subset(Lines(), [1, 2])), "reads through an open FileIO"),
        (DataLoader(Changing()), "changes the dataset"),
        (DataLoader(Keeping()), "changes the dataset: kept"),
        (DataLoader(Subset(Keeping(), [1, 2])), "changes the dataset: kept"),
        (DataLoader(random_split(Keeping(), [4, 6])[0]), "changes the dataset: kept"),
        (DataLoader(ConcatDataset([Numbers(), Keeping()])), "changes the dataset: kept"),
        (
            DataLoader(Subset(Transformed(Compose(Remembers())), range(10))),
            "changes the dataset: known",
        ),
        (DataLoader(Subset(Opening(), [1, 2])), "reads through an open FileIO"),
        (DataLoader(Subset(Connecting(), [1, 2])), "changes the dataset"),
        (DataLoader(Named()), "samples cannot be read: KeyError"),
        (DataLoader(RarelyNamed()), "samples cannot be read: KeyError"),
        (DataLoader(Long(), num_workers=1, multiprocessing_context="spawn"), "start by spawn"),
        (DataLoader(TensorDataset(ELSEWHERE), 2), "samples lie on the device"),
        (DataLoader(TensorDataset(torch.ones(8, 2), ELSEWHERE), 2), "samples lie on the device"),
        (DataLoader(Numbers(), 2, collate_fn=moved), "samples lie on the device"),
    ],
)
def test_refusals(loader: Any, reason: str) -> None:
    state, of_python = torch.get_rng_state(), random.getstate()
    own = getattr(loader.dataset, "generator", None)
    before = own.bit_generator.state if own is not None else None
    assert reason in (loader_refusal(loader) or "")
    assert torch.equal(state, torch.get_rng_state())
    assert of_python == random.getstate()
    assert own is None or own.bit_generator.state == before


def prepared(loader: Any) -> Any:
    """As a script with `gpujob_worker.prepare` has it."""
    ResumableLoader(loader, lambda: None)
    return loader


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(Numbers()),
        prepared(DataLoader(Numbers(), 2, shuffle=True)),
        prepared(DataLoader(Numbers(), None, shuffle=True)),
        DataLoader(Numbers(), num_workers=2),
        DataLoader(Subset(Transformed(Compose(float)), [3, 1, 2])),
        DataLoader(TensorDataset(torch.arange(4)), shuffle=True),
        DataLoader(Noisy(), shuffle=True, generator=torch.Generator()),
        DataLoader(Transformed(Table()), 2),
        DataLoader(Numbers(), sampler=[3, 1, 2]),
        DataLoader(Numbers(), 2, collate_fn=of_two),
    ],
)
def test_accepted(loader: Any) -> None:
    state = torch.get_rng_state()
    assert loader_refusal(loader) is None
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("in_force", "chosen"), [(None, None), ("forkserver", None), ("fork", None), ("spawn", "spawn")]
)
def test_a_default_that_is_not_fork_is_no_choice_of_the_script(
    in_force: str | None, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14 starts processes by forkserver; workers of a loader are forked nevertheless."""

    def methods() -> list[str]:
        return ["forkserver", "spawn", "fork"]

    def method(allow_none: bool = False) -> str | None:
        assert allow_none, "asked otherwise, the script could no longer choose"
        return in_force

    monkeypatch.setattr(multiprocessing, "get_all_start_methods", methods)
    monkeypatch.setattr(multiprocessing, "get_start_method", method)
    reason = loader_refusal(DataLoader(Numbers()))
    assert reason is None if chosen is None else f"start by {chosen}" in (reason or "")


def test_samples_that_a_dataset_keeps_on_its_device_are_refused_on_a_gpu_alone(device: str) -> None:
    data = TensorDataset(torch.ones(8, 2).to(device))
    reason = loader_refusal(DataLoader(data, 2, shuffle=True))
    on_device = "samples lie on the device, which worker processes cannot share"
    assert reason == (on_device if device == "cuda" else None)
