"""Batches that worker processes load ahead of the loop. They are exactly those that the loop would
load by itself, and workers can start and stop anywhere in a pass.

A batch follows from its indices and from the random numbers that it draws. In the training process,
the model and the script draw from the same generators. A worker gets the generator states that it
is expected to find. The script gets its batch only if the generators of the training process are in
just that state when the batch is requested. They are then left as the batch leaves them. Otherwise
the batch is loaded here.

The state is predicted from the number of draws of earlier batches. If these vary, a single worker
goes from batch to batch. If a worker fails to deliver for any reason, the script loses no batch and
gets no error, because that batch and all later ones are loaded here.
"""

import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import pin_memory as pinned
from torch.utils.data.dataloader import (
    _DatasetKind,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.inject.dataset_state import DatasetState
from gpujob_worker.inject.loader_processes import WAIT_SECONDS_MAX, Loaded, Loading, Processes
from gpujob_worker.inject.loader_refusal import draws_at_end, skipped_batches
from gpujob_worker.inject.random_streams import (
    DrawCounts,
    Streams,
    changed_streams,
    put_streams,
    streams_now,
)

PREFETCH_FACTOR = 2
# Batches that are loaded here to count their draws.
COUNTED_BATCHES = 2
# Batches that workers loaded in vain for one reason: this many, and this part of all.
MISSES_MAX = 8
MISSES_PART = 0.25
WAIT_BATCHES_MAX = 20
_DEPTH_MAX = 6


@dataclass(slots=True)
class LoaderFacts:
    """The findings of passes over one loader so far."""

    counted: int = 0
    # None if they are not counted yet, or not the same in each batch.
    draws: DrawCounts | None = None
    varies: bool = False
    # A worker's batch and the same one loaded here were the same bits.
    compared: bool = False
    given: int = 0
    # Batches that were loaded here after all, because they were loaded with other random numbers or
    # failed in a worker.
    missed: int = 0
    failed: int = 0
    # The longest time that loading one batch here has taken.
    batch_seconds: float = 0.0
    # Why the batches must come from the training process, or None.
    refusal: str | None = None

    @property
    def is_known(self) -> bool:
        return self.varies or self.counted >= COUNTED_BATCHES

    def count(self, before: Streams, after: Streams) -> None:
        """Counts the draws of a whole batch that was loaded here."""
        draws = DrawCounts.between(before, after)
        self.varies = self.varies or draws is None or (self.counted > 0 and draws != self.draws)
        self.draws = draws
        self.counted += 1

    def missed_one(self) -> None:
        self.missed += 1
        why = "would draw other random numbers: the script draws some between its batches"
        self._loaded_in_vain(self.missed, why)

    def failed_one(self) -> None:
        self.failed += 1
        self._loaded_in_vain(self.failed, "failed in worker processes and could be loaded here")

    def _loaded_in_vain(self, number: int, why: str) -> None:
        total = self.given + self.missed + self.failed
        if number >= MISSES_MAX and number > MISSES_PART * total:
            self.refusal = f"{number} of {total} batches {why}"


class _Tasks:
    """The tasks for workers, in the order of the pass."""

    def __init__(self, rest: Iterator[Any], facts: LoaderFacts, ahead: int | None) -> None:
        self._rest = rest
        self._facts = facts
        # How far the sampler may run ahead of the script, in batches. None for all.
        self._ahead = ahead
        self._again: deque[Any] = deque()
        # Tasks given to workers whose results were not requested yet.
        self._given: deque[Any] = deque()
        self._start: Streams | None = None

    def expect(self, states: Streams) -> None:
        """Sets the states that the next task starts from."""
        draws = self._facts.draws if not self._facts.varies else None
        names = states if draws is None else draws.counts
        self._start = {name: states[name] for name in names}

    def give_again(self) -> int:
        """Gives outstanding tasks once more. Returns how many."""
        number = len(self._given)
        self._again.extendleft(reversed(self._given))
        self._given.clear()
        return number

    def due(self) -> Any:
        """Returns the indices of the batch that the script requests, and drops it from the
        outstanding ones.
        """
        return self._given.popleft() if self._given else self._next()

    def _next(self) -> Any:
        if self._again:
            return self._again.popleft()
        if self._ahead is not None:
            self._ahead -= 1
        return next(self._rest)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> tuple[Streams | None, Any]:
        if not self._again and self._ahead is not None and self._ahead <= 0:
            raise StopIteration
        indices = self._next()
        self._given.append(indices)
        start, draws = self._start, self._facts.draws
        if self._facts.varies or draws is None or start is None:
            self._start = None  # the single worker continues from its own state
        else:
            self._start = draws.after(start)
        return start, indices


def _as_it_is(item: Any) -> Any:
    return item


class WorkerBatches:
    """Replaces how an iterator gets its next batch, from its second batch on."""

    def __init__(
        self,
        iterator: Any,
        loader: Any,
        workers: int,
        facts: LoaderFacts,
        paused: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Time inside `paused` does not count as the script's."""
        self._facts = facts
        self._paused = paused
        self._workers = workers
        self._starts = (iterator._dataset, iterator._collate_fn)
        # What dataset and collate function have held since the workers were forked with copies of
        # them.
        self._dataset_state: DatasetState | None = None
        self._fetcher: Any = _DatasetKind.create_fetcher(
            iterator._dataset_kind,
            iterator._dataset,
            iterator._auto_collation,
            iterator._collate_fn,
            iterator._drop_last,
        )
        self._pin = bool(iterator._pin_memory)
        asked = getattr(iterator, "_send_idx", iterator._num_yielded) + skipped_batches(iterator)
        ahead = len(iterator._index_sampler) - 1 - asked if draws_at_end(loader) else None
        self._tasks = _Tasks(iterator._sampler_iter, facts, ahead)
        self._processes: Any = None
        # Outstanding results that were loaded with other random numbers than those here.
        self._void = 0
        # The iterator's own workers return the batches that they have started. The iterator holds
        # this object, so this one holds it weakly. Otherwise, it would outlive a pass that the
        # script breaks off.
        self._asked_for: int = iterator._num_workers
        self._own: weakref.ref[Any] | None = None
        if self._asked_for > 0:
            self._own = weakref.ref(iterator)
            iterator._sampler_iter = iter(())

    def __call__(self) -> Any:
        own = self._own() if self._own is not None else None
        if own is not None:
            try:
                return type(own)._next_data(own)
            except StopIteration:
                own._shutdown_workers()
                self._own = None
        if self._facts.refusal is not None:
            self.withdraw()
        if self._workers < 1:
            return self._load(self._tasks.due())
        if not self._facts.is_known:
            return self._counted()
        change = self._change()
        if self._processes is None:
            self._start()
        elif change is not None:
            self._facts.refusal = (
                f"the script changes its dataset in the middle of a pass: {change}"
            )
            return self()
        return self._from_workers() if self._processes is not None else self()

    def _change(self) -> str | None:
        """Returns what the script changed in its dataset, or None. Its own workers would not have
        seen it.
        """
        state = self._dataset_state if not self._asked_for else None
        return state.change() if state is not None else None

    def withdraw(self) -> None:
        """Returns to the script's own number of workers from the next batch on."""
        self.resize(self._asked_for)

    def resize(self, workers: int) -> None:
        """Changes the number of workers from the next batch on, and drops the batches loaded ahead.

        Workers that are gone for a reason stay away.
        """
        if self._workers not in (workers, self._asked_for):
            self._workers = workers
            self._end_processes()

    def _end_processes(self) -> None:
        self._tasks.give_again()
        self._void = 0
        processes, self._processes = self._processes, None
        if processes is not None:
            processes._shutdown_workers()

    def _load(self, indices: Any) -> Any:
        before = streams_now() if self._asked_for else {}
        data = self._fetcher.fetch(indices)
        if self._processes is not None:
            # Reading changes the dataset here as it does in workers.
            self._dataset_state = DatasetState(*self._starts)
        put_streams(before)  # where workers load, it does not draw from the script's generators
        return pinned(data) if self._pin else data

    def _counted(self) -> Any:
        asked = streams_now()
        indices = self._tasks.due()
        before = streams_now()
        if changed_streams(asked, before):
            # A sampler that runs ahead of the script would draw other numbers.
            self._facts.refusal = "its sampler draws random numbers from batch to batch"
            return self._load(indices)
        began = time.monotonic()
        batch = self._load(indices)
        seconds = time.monotonic() - began
        self._facts.batch_seconds = max(self._facts.batch_seconds, seconds)
        after = streams_now()
        with self._paused():
            self._facts.count(before, after)
        return batch

    def _start(self) -> None:
        loading: DataLoader[Any] = DataLoader(
            Loading(self._fetcher),
            batch_size=None,
            sampler=self._tasks,  # pyright: ignore[reportArgumentType]
            num_workers=1 if self._facts.varies else self._workers,
            prefetch_factor=PREFETCH_FACTOR,
            collate_fn=_as_it_is,
            pin_memory=self._pin,
            multiprocessing_context="fork",  # no other comes here; the script may still choose one
        )
        now = streams_now()
        self._tasks.expect(now)
        try:
            self._dataset_state = DatasetState(*self._starts)
            self._processes = Processes(loading)
            self._processes.keep_deaths_silent()
            seconds = WAIT_BATCHES_MAX * self._facts.batch_seconds
            self._processes.wait_seconds = max(WAIT_SECONDS_MAX, seconds)
        except Exception as error:
            self._lost(error)
        finally:
            put_streams(now)  # its seed came out of the script's generator

    def _lost(self, error: Exception) -> None:
        self._facts.refusal = f"worker processes failed: {type(error).__name__}: {error}"[:160]
        self._end_here()

    def _end_here(self) -> None:
        self._workers = self._asked_for = 0
        self._end_processes()

    def _from_workers(self) -> Any:
        found = self._next_result()
        if found is None:
            return self._load(self._tasks.due())
        loaded, batch = found
        indices = self._tasks.due()
        if loaded.unsendable is not None:
            why = f"its batches cannot be sent from a worker process: {loaded.unsendable}"
            self._facts.refusal = why[:160]
            self._end_here()
            return self._load(indices)
        if self._asked_for and loaded.changes:
            self._facts.refusal = "some of its samples draw random numbers in the script's workers"
            return batch
        if not loaded.fits(streams_now() if loaded.changes else {}):
            return self._instead(indices, failed=loaded.failed)
        if not self._facts.compared:
            return self._compared(indices, batch, loaded.after)
        put_streams(loaded.after)
        self._facts.given += 1
        return batch

    def _next_result(self) -> tuple[Loaded, Any] | None:
        """Returns the next result, or None if the workers are gone."""
        try:
            while self._void:
                self._void -= 1
                self._processes._next_data()
            loaded, batch = self._processes._next_data()
            return loaded, make_private(batch)
        except StopIteration:
            # They have loaded everything that could be requested ahead.
            self._end_here()
        except Exception as error:
            # An error of the dataset arrives as a result, so this is an error of the workers.
            self._lost(error)
        return None

    def _instead(self, indices: Any, *, failed: bool) -> Any:
        """Loads a batch here that was loaded with other random numbers, or failed in a worker."""
        facts = self._facts
        before = streams_now()
        batch = self._load(indices)
        now = streams_now()
        (facts.failed_one if failed else facts.missed_one)()
        with self._paused():
            varies = not facts.varies and DrawCounts.between(before, now) != facts.draws
        if varies:
            # A single worker is left, so that the draws of a batch are known once it is loaded.
            facts.varies = True
            self._end_processes()
            return batch
        self._void += self._tasks.give_again()
        self._tasks.expect(now)
        return batch

    def _compared(self, indices: Any, batch: Any, after: Streams) -> Any:
        """Loads the same batch here and compares it. The script gets this one in any case."""
        here = self._load(indices)
        now = streams_now()
        same = equal_batches(here, batch) and all(now[name] == after[name] for name in after)
        self._facts.compared = True
        if not same:
            self._facts.refusal = "worker processes load other samples or digits than the script"
            self.withdraw()
        return here


def equal_batches(one: Any, other: Any, depth: int = 0) -> bool:
    """Returns False only if a difference was found. Objects of unknown types are not compared."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _equal_tensors(one, other)
    if isinstance(one, (str, bytes, int, bool, type(None))):
        return bool(one == other)
    if isinstance(one, float):
        return one.hex() == other.hex()
    if depth >= _DEPTH_MAX:
        return True
    if isinstance(one, Mapping):
        same_keys = list(one) == list(other)
        return same_keys and all(equal_batches(one[key], other[key], depth + 1) for key in one)
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(equal_batches(a, b, depth + 1) for a, b in pairs)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return one.dtype == other.dtype and one.shape == other.shape and _bits(one) == _bits(other)
    inside, of_other = getattr(one, "__dict__", None), getattr(other, "__dict__", None)
    return inside is None or of_other is None or equal_batches(inside, of_other, depth + 1)


def _bits(array: Any) -> Any:
    return array.tolist() if array.dtype.hasobject else array.tobytes()


def _equal_tensors(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return True
    flat, of_other = one.contiguous().reshape(-1), other.contiguous().reshape(-1)
    if not flat.numel():
        return True
    return torch.equal(flat.view(torch.uint8), of_other.view(torch.uint8))


def make_private(batch: Any) -> Any:
    """Copies shared memory in place. Tensors that overlap still do.

    A script may keep every batch, and each batch in shared memory would hold a descriptor and a
    part of /dev/shm.
    """
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors(batch, 0, set()):
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            continue
        storage = tensor.untyped_storage()
        if not storage.is_shared():
            continue
        copy = copies.get(storage.data_ptr())
        if copy is None:
            copy = copies[storage.data_ptr()] = storage.clone()
        with torch.no_grad():
            tensor.set_(copy, tensor.storage_offset(), tensor.size(), tensor.stride())
    return batch


def _tensors(value: Any, depth: int, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, (str, bytes, int, float, type)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEPTH_MAX:
        inside: Any = ()
        if isinstance(value, Mapping):
            inside = value.values()
        elif isinstance(value, (list, tuple, set)):
            inside = value
        own: Any = getattr(value, "__dict__", None)
        for one in (*inside, *(own.values() if isinstance(own, dict) else ())):
            yield from _tensors(one, depth + 1, seen)
