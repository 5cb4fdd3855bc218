"""Worker processes for data loaders: only where they change neither samples nor order."""

import gc
import io
import random
import sys
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from gpujob_api.settings import OptimizeMode, Settings, TunedSettings
from gpujob_worker.inject.data_loader import (
    add_workers,
    go_on_here,
    loader_refusal,
    remove_workers,
)
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.meter import Timed
from gpujob_worker.run.session import Session
from gpujob_worker.tune import data_loader_policy
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.registry import tuned


class Numbers(Dataset[Any]):
    def __init__(self) -> None:
        self.reads = self.start = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.start + index)


class Noisy(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index) + torch.rand(())


class OwnNoise(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)
        self.transforms = [random.Random(2)]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index + self.generator.random() + self.transforms[0].random())


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


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Numbers(), num_workers=2), "2 workers of its own"),
        (DataLoader(Stream()), "streamed dataset"),
        (DataLoader(Noisy()), "draws random numbers"),
        (DataLoader(OwnNoise()), "draws random numbers"),
        (DataLoader(Subset(Lines(), [1, 2])), "reads through an open FileIO"),
        (DataLoader(Changing()), "changes the dataset"),
        (DataLoader(Keeping()), "changes the dataset"),
        (DataLoader(Named()), "cannot be read: KeyError"),
    ],
)
def test_refusals(loader: Any, reason: str) -> None:
    state = torch.get_rng_state()
    own = getattr(loader.dataset, "generator", None)
    before = own.bit_generator.state if own is not None else None
    assert reason in (loader_refusal(loader) or "")
    assert torch.equal(state, torch.get_rng_state())
    assert own is None or own.bit_generator.state == before


def test_accepted() -> None:
    assert loader_refusal(DataLoader(Numbers())) is None
    assert loader_refusal(DataLoader(TensorDataset(torch.arange(4)))) is None


def test_order_and_random_state_stay_those_of_the_plain_loader() -> None:
    orders: list[Any] = []
    for injected in (False, True):
        torch.manual_seed(9)
        numbers = Numbers()
        loader = DataLoader(numbers, batch_size=3, shuffle=True)
        if injected:
            add_workers(loader, 1)
        passes: list[Any] = []
        for _ in range(3):
            passes.append([batch.tolist() for batch in loader])
            # A look at one batch in the middle of a pass is a pass of its own.
            whole = iter(loader)
            passes.append([next(whole).tolist(), next(iter(loader)).tolist()])
            passes.append([batch.tolist() for batch in whole])
            # What the script changes between passes is seen by the next.
            numbers.start += 100
        orders.append((passes, torch.rand(3).tolist()))
    assert orders[0] == orders[1]


@pytest.mark.parametrize("taken", [1, 4, 10])
def test_a_pass_goes_on_without_its_workers(taken: int) -> None:
    """Every sample comes once and in the order of the plain loader, now and in later passes."""
    orders: list[Any] = []
    workers: list[Any] = []
    for injected in (False, True):
        torch.manual_seed(9)
        loader = DataLoader(Numbers(), batch_size=1, shuffle=True)
        if injected:
            add_workers(loader, 2)
        first: list[Any] = []
        iterator: Any = iter(loader)
        for batch in iterator:
            first.append(batch.tolist())
            if injected and len(first) == taken:
                workers = iterator._workers
                remove_workers(loader)
                go_on_here(iterator)
        orders.append((first, [batch.tolist() for batch in loader], torch.rand(3).tolist()))
    assert orders[0] == orders[1]
    assert len(workers) == 2
    assert not any(worker.is_alive() for worker in workers)


class Training:
    """A loop whose steps take what a test says, by a clock of its own."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, mode: OptimizeMode = OptimizeMode.AUTO
    ) -> None:
        monkeypatch.setattr(data_loader_policy, "workers_wanted", lambda: 2)
        monkeypatch.setattr(data_loader_policy, "loaded", lambda: None)
        self.now = 0.0
        self.session = Session(Environment(Settings(mode=mode)))
        self.session.meter.clock = lambda: self.now
        self.session.state.baseline_wait_percent = 40.0
        self.policy = LoaderPolicy(self.session)
        self.loader = self.new_loader()
        self.applied = Applied()
        # Another program is given the machine for a while in every fourth step.
        self.turns = False

    def new_loader(self) -> DataLoader[Any]:
        return DataLoader(Numbers(), batch_size=1, shuffle=True)

    def passes(self, number: int, seconds: float, waiting: float) -> list[Any]:
        """Each pass has ten steps."""
        seen: list[Any] = []
        for _ in range(number):
            seen += self._steps(self._begin(self.loader), seconds, waiting)
        return seen

    def passes_of_their_own(
        self, number: int, seconds: float, waiting: float
    ) -> list[weakref.ref[Any]]:
        """As `passes`, each over a loader that is gone when its pass has begun."""
        loaders: list[weakref.ref[Any]] = []
        for _ in range(number):
            loader = self.new_loader()
            loaders.append(weakref.ref(loader))
            iterator = self._begin(loader)
            del loader
            assert sorted(self._steps(iterator, seconds, waiting)) == [*range(10)]
        return loaders

    def _begin(self, loader: Any) -> Any:
        self.policy.before_pass(loader)
        iterator = iter(loader)
        self.policy.begun(loader, iterator)
        return iterator

    def _steps(self, iterator: Any, seconds: float, waiting: float) -> list[Any]:
        seen: list[Any] = []
        for batch in iterator:
            self.policy.waited(waiting)
            seen.append(batch.item())
            self.now += seconds
            if self.turns and self.session.meter.steps % 4 == 0:
                self.now += 0.6
            self.session.meter.step_done()
        return seen

    def tuned(self) -> None:
        self.policy.decide(self.applied)
        self.session.state.tuned = tuned(self.applied)

    @property
    def said(self) -> str:
        return "\n".join(self.session.explanation.lines)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    return Training(monkeypatch)


def test_workers_that_shorten_the_wait_and_the_steps_stay(training: Training) -> None:
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    assert training.loader.num_workers == 0
    training.passes(4, 0.012, 0.0)
    assert training.loader.num_workers == 2
    assert training.session.state.tuned == TunedSettings(data_loader_workers=2)
    assert "steps take 0.0120 s with workers, 0.0000 s of it waiting" in training.said


def test_a_machine_that_is_taken_in_turns_does_not_speak_against_workers(
    training: Training,
) -> None:
    """Steps were four times as long with workers as without, and none of it was their doing."""
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    training.turns = True
    training.passes(4, 0.013, 0.001)
    assert training.loader.num_workers == 2
    assert "steps take 0.0130 s with workers, 0.0010 s of it waiting" in training.said


def test_steps_that_wait_are_never_left_out(training: Training) -> None:
    """A few workers that are too slow give several batches at once, and then nothing for long."""
    meter = training.session.meter
    for number in range(21):
        meter.waited(0.08 if number % 4 == 0 else 0.0)
        training.now += 0.09 if number % 4 == 0 else 0.01
        meter.step_done()
    assert meter.undisturbed(Timed()) == (pytest.approx(0.03), pytest.approx(0.02))
    assert meter.undisturbed(meter.timed) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("seconds", "waiting"),
    [
        (0.031, 0.001),  # less waiting, but the workers take the cores that the steps need
        (0.019, 0.009),
        (0.020, 0.008),
    ],
)
def test_workers_that_give_nothing_go_in_the_middle_of_the_pass(
    training: Training, seconds: float, waiting: float
) -> None:
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(1, 0.02, 0.008)
    seen = training.passes(2, seconds, waiting)
    seen += training.passes(1, seconds, waiting)
    assert training.loader.num_workers == 0
    assert sorted(seen) == sorted([*range(10)] * 3)
    assert training.applied.loader_workers is None
    assert training.session.state.tuned == TunedSettings()
    assert "data loading skipped: no gain: steps take" in training.said
    training.passes(1, seconds, waiting)
    assert training.loader.num_workers == 0


@pytest.mark.parametrize(
    ("seconds", "waiting", "verdict"),
    [(0.012, 0.0, "data loading steps take"), (0.019, 0.009, "data loading skipped: no gain")],
)
def test_loaders_that_are_made_for_one_pass_are_judged_and_let_go(
    training: Training, seconds: float, waiting: float, verdict: str
) -> None:
    training.passes_of_their_own(1, 0.02, 0.008)
    training.tuned()
    training.passes_of_their_own(1, 0.02, 0.008)
    loaders = training.passes_of_their_own(4, seconds, waiting)
    assert verdict in training.said
    gc.collect()
    assert not any(loader() for loader in loaders)


def test_too_few_steps_before_a_pass_start_no_trial(training: Training) -> None:
    training.tuned()
    training.passes(1, 0.02, 0.008)
    assert training.loader.num_workers == 0
    training.passes(1, 0.02, 0.008)
    assert training.loader.num_workers == 0  # nine steps were timed: the first has no start
    training.passes(1, 0.02, 0.008)
    assert training.loader.num_workers == 2


def test_a_recommendation_starts_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch, OptimizeMode.RECOMMEND)
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(3, 0.02, 0.008)
    assert training.loader.num_workers == 0
    assert training.session.state.tuned == TunedSettings()
    expected = "data loading recommended: 2 worker processes: waiting takes 40 % of a step"
    assert training.said == expected


def test_loaded_cores_get_no_workers(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_loader_policy, "loaded", lambda: "something waits for a core")
    training.passes(1, 0.02, 0.008)
    training.tuned()
    training.passes(3, 0.02, 0.008)
    assert training.loader.num_workers == 0
    assert training.said == "data loading skipped: something waits for a core"
