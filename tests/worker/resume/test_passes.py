"""A pass that is begun again reads what it would have read, and is known by where it began."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils.data.distributed import DistributedSampler

from gpujob_worker.resume.passes import AHEAD, Pass, Passes, pass_of


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


def numbers(count: int = 8, **more: Any) -> DataLoader[Any]:
    data: Any = torch.arange(count)
    return DataLoader(data, batch_size=2, **more)


HERE = range(1, 10_000)


def test_a_pass_is_known_by_the_call_in_which_it_began(passes: Passes) -> None:
    frame = sys._getframe()
    first = iter(numbers())
    line = frame.f_lineno - 1
    second = iter(numbers())

    def elsewhere() -> Any:
        return iter(numbers())

    third = elsewhere()
    assert passes.of_loop(frame, range(line, line + 1)) == [pass_of(first)]
    assert passes.of_loop(frame, HERE) == [pass_of(first), pass_of(second)]
    del first, third
    assert passes.of_loop(frame, HERE) == [pass_of(second)]


def test_a_library_that_reads_for_the_loop_is_known(
    passes: Passes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "readsahead.py").write_text("def begins(loader):\n    return iter(loader)\n")
    monkeypatch.syspath_prepend(str(library))
    import readsahead  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]

    batches: Any = readsahead.begins(numbers())  # pyright: ignore
    record = pass_of(batches)
    assert record is not None
    assert record.through == "readsahead"
    plain = pass_of(iter(numbers()))
    assert plain is not None
    assert plain.through is None


def test_batches_that_a_wrapper_holds_are_not_the_loops(passes: Passes) -> None:
    """Accelerate is one batch ahead of the loop, until there are no more."""
    loader = numbers()
    vars(loader)[AHEAD] = 1
    batches = iter(loader)
    record = pass_of(batches)
    assert record is not None
    had: list[int] = []
    for _ in range(4):
        next(batches)
        had.append(record.consumed)
    assert had == [0, 1, 2, 3]
    # The wrapper asks for one more, finds none, and gives the loop the last one.
    assert next(batches, None) is None
    assert record.consumed == 4


@pytest.mark.parametrize("done", [0, 1, 3, 4])
def test_passes_of_a_loop_hand_out_what_is_left(passes: Passes, done: int) -> None:
    loader = numbers(shuffle=True)
    frame = sys._getframe()
    batches = iter(loader)
    for _ in range(done):
        next(batches)
    states = [record.state(record.consumed) for record in passes.of_loop(frame, HERE)]
    rest = [batch.tolist() for batch in batches]
    del batches
    torch.manual_seed(99)
    passes.bring_back(frame, HERE, states)
    again = iter(loader)
    assert passes.awaits_none()
    assert [next(again) for _ in range(done)] == [None] * done
    assert [batch.tolist() for batch in again] == rest


def test_a_pass_that_does_not_begin_is_still_awaited(passes: Passes) -> None:
    batches = iter(numbers())
    next(batches)
    record = pass_of(batches)
    assert record is not None
    passes.bring_back(sys._getframe(), range(0), [record.state(1)])
    assert not passes.awaits_none()
    assert passes.awaits_none(), "it was forgotten"


def test_a_place_beyond_what_was_fetched_is_an_error(passes: Passes) -> None:
    batches = iter(numbers())
    next(batches)
    record = pass_of(batches)
    assert record is not None
    with pytest.raises(ValueError, match="1 batches were fetched and 2 trained on"):
        record.state(2)


def test_an_iterator_that_is_brought_back_stays_the_same_object(passes: Passes) -> None:
    loader = numbers(shuffle=True)
    batches = iter(loader)
    next(batches)
    record = pass_of(batches)
    assert record is not None
    saved = record.state(1)
    rest = [batch.tolist() for batch in batches]
    other = iter(loader)
    next(other)
    next(other)
    passes.bring_one_back(other, saved)
    assert [batch.tolist() for batch in other] == rest


def test_a_forked_child_reads_as_under_python(passes: Passes) -> None:
    records: list[Pass] = []
    passes.fetching = records.append
    passes.stop()
    batches = iter(numbers())
    assert len(list(batches)) == 4
    assert pass_of(batches) is None
    assert records == []


def test_data_that_were_made_while_a_script_trained_are_no_early_data() -> None:
    passes, early, late = Passes(), torch.zeros(4), torch.zeros(4)
    assert passes._is_early(early)
    passes.training_began()
    assert passes._is_early(early)
    assert not passes._is_early(late)
