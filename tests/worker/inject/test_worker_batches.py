"""Batches from worker processes: the same bits in the same order, whatever draws random numbers."""

import multiprocessing
import random
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, Sampler

from gpujob_api.settings import Settings
from gpujob_worker.inject import random_streams
from gpujob_worker.inject.random_streams import DrawCounts, put_streams, streams_now
from gpujob_worker.inject.worker_batches import LoaderFacts, WorkerBatches
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from tests.harness.waiting import wait_until
from tests.harness.worker_process import forkserver

SAMPLES = 66
PASSES = 3


def plain(index: int) -> torch.Tensor:
    return torch.full((3,), float(index))


def flips_and_crops(index: int) -> torch.Tensor:
    """As transforms of images do: the same number of draws for each sample."""
    place = torch.randint(0, 9, (2,)).sum()
    return plain(index) + torch.rand(1) + place + random.random() + float(np.random.rand())


def rejects(index: int) -> torch.Tensor:
    """As random crops of a size in bounds: drawn again until they fit."""
    while random.random() < 0.3:
        pass
    return plain(index) * np.random.randint(5)


def seldom(index: int) -> torch.Tensor:
    return plain(index) + (torch.rand(1) if index % 20 == 7 else 0)


class Samples(Dataset[Any]):
    def __init__(self, make: Callable[[int], torch.Tensor]) -> None:
        self.make = make

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.make(index)


def masked(samples: list[torch.Tensor]) -> torch.Tensor:
    """As the collate function of a masked language model."""
    rows = torch.stack(samples)
    return rows * (torch.rand(rows.shape) > 0.3)


class Script:
    """A loop that draws numbers of its own after every `noise` batches."""

    def __init__(
        self, *, noise: int = 0, breaks_off_at: int | None = None, own_generator: bool = False
    ) -> None:
        self.noise = noise
        self.breaks_off_at = breaks_off_at
        self.own_generator = own_generator

    def seen(
        self, new_loader: Callable[..., Any], attach: Callable[[Any, Any, int], None]
    ) -> list[Any]:
        """All batches, and what each generator draws after each pass."""
        torch.manual_seed(3)
        random.seed(1)
        np.random.seed(2)
        own = torch.Generator().manual_seed(5) if self.own_generator else None
        loader, seen = new_loader(shuffle=True, generator=own), list[Any]()
        for _ in range(PASSES):
            iterator = iter(loader)
            for number, batch in enumerate(iterator, 1):
                seen.append(batch.tolist())
                if self.noise and number % self.noise == 0:
                    torch.rand(2)
                attach(iterator, loader, number)
                if number == self.breaks_off_at:
                    break
            state = own.get_state().tolist() if own is not None else None
            seen.append((torch.rand(()).item(), random.random(), float(np.random.rand()), state))
        return seen


def nothing(iterator: Any, loader: Any, number: int) -> None:
    del iterator, loader, number


class Attach:
    """Worker processes from one batch of each pass on, and after another so many as `then`; None
    for none."""

    def __init__(
        self, workers: int, at: int = 2, until: int = 1000, then: int | None = None
    ) -> None:
        self.facts = LoaderFacts()
        self.workers, self.at, self.until, self.then = workers, at, until, then

    def __call__(self, iterator: Any, loader: Any, number: int) -> None:
        if number == self.at:
            iterator._next_data = WorkerBatches(iterator, loader, self.workers, self.facts)
        elif number == self.until and self.then is not None:
            iterator._next_data.resize(self.then)
        elif number == self.until:
            iterator._next_data.withdraw()


@pytest.mark.parametrize(
    "script",
    [
        Script(),
        Script(noise=1),
        Script(noise=7),
        Script(breaks_off_at=15, own_generator=True),
        Script(noise=5, own_generator=True),
    ],
    ids=["quiet", "draws always", "draws seldom", "breaks off", "own generator"],
)
@pytest.mark.parametrize("make", [plain, flips_and_crops, rejects, seldom])
def test_the_script_sees_the_same(make: Callable[[int], torch.Tensor], script: Script) -> None:
    def new_loader(**keywords: Any) -> Any:
        return DataLoader(Samples(make), batch_size=4, **keywords)

    attach = Attach(2)
    assert script.seen(new_loader, attach) == script.seen(new_loader, nothing)
    if script.noise != 1:
        # And it is the workers' doing, not that of the process itself.
        assert attach.facts.given > 3 * attach.facts.missed
        assert attach.facts.refusal is None


def test_they_are_forked_where_the_default_is_forkserver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of Python 3.14. What a forkserver starts could not unpickle this dataset."""
    default: Any = multiprocessing.context._default_context  # pyright: ignore
    monkeypatch.setattr(default, "_actual_context", multiprocessing.get_context("forkserver"))
    new_loader = partial(DataLoader[Any], Samples(lambda index: plain(index)), 4)
    attach = Attach(2)
    expected = Script().seen(new_loader, nothing)
    assert Script().seen(new_loader, attach) == expected
    assert attach.facts.given > 0, attach.facts.refusal
    assert multiprocessing.get_start_method() == "forkserver"


def test_random_numbers_of_a_collate_function_count_too() -> None:
    def new_loader(**keywords: Any) -> Any:
        return DataLoader(Samples(plain), batch_size=4, collate_fn=masked, **keywords)

    attach = Attach(2)
    assert Script().seen(new_loader, attach) == Script().seen(new_loader, nothing)
    assert attach.facts.given > 20


@pytest.mark.parametrize("until", [3, 5, 12, 17])
@pytest.mark.parametrize("workers", [0, 1])
def test_they_can_be_taken_back_at_any_batch(until: int, workers: int) -> None:
    def new_loader(**keywords: Any) -> Any:
        return DataLoader(Samples(plain), batch_size=4, num_workers=workers, **keywords)

    taken = Script().seen(new_loader, Attach(2, until=until))
    assert taken == Script().seen(new_loader, nothing)


@pytest.mark.parametrize("until", [3, 5, 12, 17])
@pytest.mark.parametrize("then", [1, 2])
@pytest.mark.parametrize("make", [plain, flips_and_crops])
def test_they_can_be_more_or_fewer_from_any_batch_on(
    until: int, then: int, make: Callable[[int], torch.Tensor]
) -> None:
    def new_loader(**keywords: Any) -> Any:
        return DataLoader(Samples(make), batch_size=4, **keywords)

    attach = Attach(3 - then, until=until, then=then)
    script = Script(own_generator=True)
    assert script.seen(new_loader, attach) == script.seen(new_loader, nothing)
    assert attach.facts.refusal is None
    assert attach.facts.given > 20


def test_a_script_that_draws_between_its_batches_is_left_alone_with_the_reason() -> None:
    def new_loader(**keywords: Any) -> Any:
        return DataLoader(Samples(flips_and_crops), batch_size=4, **keywords)

    attach = Attach(2)
    Script(noise=1).seen(new_loader, attach)
    assert attach.facts.refusal == (
        "8 of 8 batches would draw other random numbers: the script draws some between its batches"
    )


class Failing(Samples):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 30:
            raise KeyError(index)
        return super().__getitem__(index)


class DrawsOnDemand(Sampler[int]):
    """It is no generator function, which a look at its kind would show."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Any:
        return (int(torch.randint(SAMPLES, ())) for _ in range(SAMPLES))


def test_a_sampler_that_draws_from_batch_to_batch_is_left_alone() -> None:
    def new_loader(**keywords: Any) -> Any:
        del keywords
        return DataLoader(Samples(flips_and_crops), batch_size=4, sampler=DrawsOnDemand())

    attach = Attach(2)
    assert Script().seen(new_loader, attach) == Script().seen(new_loader, nothing)
    assert attach.facts.refusal == "its sampler draws random numbers from batch to batch"
    assert attach.facts.given == 0


def test_a_batch_sampler_that_draws_at_the_end_of_a_pass_is_not_asked_ahead() -> None:
    def new_loader(*, generator: Any, **keywords: Any) -> Any:
        del keywords
        dataset = Samples(plain)
        order = BatchSampler(RandomSampler(dataset, generator=generator), 4, drop_last=False)
        return DataLoader(dataset, batch_sampler=order)

    script, attach = Script(breaks_off_at=15, own_generator=True), Attach(2)
    assert script.seen(new_loader, attach) == script.seen(new_loader, nothing)
    assert attach.facts.given > 0


def test_an_error_of_the_dataset_comes_at_its_batch_and_as_it_is() -> None:
    caught: list[Any] = []
    facts = LoaderFacts()
    for workers in (0, 2):
        loader: Any = DataLoader(Failing(plain), batch_size=4)
        iterator = iter(loader)
        seen: list[Any] = [next(iterator).tolist()]
        if workers:
            iterator._next_data = WorkerBatches(iterator, loader, workers, facts)
        # The sample that fails is in the eighth batch.
        seen += [next(iterator).tolist() for _ in range(6)]
        with pytest.raises(KeyError, match=r"^30$"):
            next(iterator)
        seen += [batch.tolist() for batch in iterator]
        caught.append(seen)
    assert caught[0] == caught[1]
    assert facts.given > 0


def test_persistent_workers_that_are_replaced_cost_the_script_no_random_number() -> None:
    """It draws a seed for them once, before the first pass."""
    drawn: list[Any] = []
    worked: list[bool] = []
    for more in (False, True):
        torch.manual_seed(3)
        policy = LoaderPolicy(Session(Environment(Settings())))
        policy._workers = 2 if more else None
        loader = DataLoader(
            Samples(plain), batch_size=4, shuffle=True, num_workers=1, persistent_workers=True
        )
        for _ in range(3):
            policy.before_pass(loader)
            iterator: Any = iter(loader)
            policy.begun(loader, iterator)
            while True:
                policy.before_batch(iterator)
                batch = next(iterator, None)
                worked.append(isinstance(iterator._next_data, WorkerBatches))
                if batch is None:
                    break
                drawn.append(batch.tolist())
            drawn.append(torch.rand(()).item())
        assert loader.generator is None
        facts = policy._facts.get(loader)
        assert any(worked) == more == (facts is not None and facts.given > 0)
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]


def test_they_end_with_their_pass() -> None:
    """In a process whose threads and locks are those of one script, not of the tests before."""
    process = forkserver.Process(target=_break_off_a_pass)
    process.start()
    process.join(100)
    assert process.exitcode == 0


def _break_off_a_pass() -> None:
    loader: Any = DataLoader(Samples(plain), batch_size=4)
    iterator = iter(loader)
    next(iterator)
    iterator._next_data = batches = WorkerBatches(iterator, loader, 2, LoaderFacts())
    for _ in range(4):
        next(iterator)
    workers = batches._processes._workers
    assert len(workers) == 2
    del iterator, batches
    # torch kills one that takes longer than 5 s, and does not wait for it.
    wait_until(
        lambda: not any(worker.is_alive() for worker in workers), 60, "the workers have ended"
    )


def test_a_count_of_draws_leads_to_the_place_in_the_stream() -> None:
    before = streams_now()
    flips_and_crops(0)
    one = streams_now()
    draws = DrawCounts.between(before, one)
    assert draws is not None
    assert draws.counts == {"torch": 3, "python": 2, "numpy": 2}
    assert draws.after(before) == {name: one[name] for name in draws.counts}
    put_streams(before)
    assert streams_now() == before
    assert DrawCounts.between(one, before) is None  # nothing is drawn backwards


def test_counting_what_a_batch_draws_is_no_time_of_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, count = [0.0], random_streams._count

    def slow_count(name: str, first: Any, last: Any) -> int | None:
        now[0] += 1.0
        return count(name, first, last)

    monkeypatch.setattr(random_streams, "_count", slow_count)
    session = Session(Environment(Settings()))
    session.meter.clock = lambda: now[0]
    policy = LoaderPolicy(session)
    policy._workers = 1
    loader = DataLoader(Samples(flips_and_crops), batch_size=4)
    policy.before_pass(loader)
    iterator: Any = iter(loader)
    policy.begun(loader, iterator)
    for number in range(len(loader)):
        policy.before_batch(iterator)
        began = now[0]
        next(iterator)
        policy.waited(iterator, now[0] - began)
        if number == 9:
            torch.rand(2)  # the next batch was loaded with other numbers
        now[0] += 0.01
        session.meter.step_done()
    assert now[0] > 3.0
    assert policy._facts[loader].missed > 0
    assert max(session.meter.window.seconds) == pytest.approx(0.01)
    assert session.meter.window.wait_seconds == pytest.approx(0.0)


def test_a_pass_that_is_broken_off_keeps_nothing() -> None:
    """Neither the iterator nor the workers that the script asked for."""
    loader: Any = DataLoader(Samples(plain), batch_size=4, num_workers=1)
    iterator = iter(loader)
    next(iterator)
    iterator._next_data = WorkerBatches(iterator, loader, 2, LoaderFacts())
    next(iterator)
    seen, own = weakref.ref(iterator), iterator._workers
    del iterator
    assert seen() is None
    assert not any(worker.is_alive() for worker in own)
