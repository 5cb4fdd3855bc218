"""Passes over a `DataLoader` that can be restarted in their middle, in unmodified scripts.

The batches of a pass follow from the random state when its iterator was made and when its order was
drawn, from the number of batches taken and, without worker processes, from the random state at each
fetch. A wrapper around a loader fetches ahead. For batches that were fetched and not trained on
yet, the state before their fetch is kept too. Between two batches no part of the loop is running,
so the state is taken and restored there.
"""

import collections
import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.persistent_workers import is_begun
from gpujob_worker.resume.random_numbers import Generators, random_state, restore_random
from gpujob_worker.resume.script_source import is_of_script
from gpujob_worker.run.installed_files import is_script_file

# Batches that a wrapper may have fetched ahead.
IN_FLIGHT_MAX = 8
# Maximum number of datasets that are read before the first step.
EARLY_MAX = 1000
_RECORD = "_gpujob_pass"
# Attribute of a loader that is read ahead of its loop: the number of batches.
AHEAD = "_gpujob_ahead"
# Attribute of an iterator that was brought back: the iterator that reads in its place.
_READS = "_gpujob_reads"
# Maximum number of library calls between a script's loop and the loader that it reads.
_CALLS_MAX = 30
# Libraries that pass on a loader's batches one for one, and read ahead by `AHEAD`.
_HANDING_ON = ("gpujob_worker", "torch", "tqdm", "rich", "fastprogress", "accelerate", "lightning",
               "pytorch_lightning", "lightning_fabric", "transformers", "ignite")  # fmt: skip


class Pass:
    """One pass over one loader: the origin of its batches, and its position."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._generators = Generators(loader)
        self.fetched = 0
        # Whether the end of the batches was reached.
        self.ended = False
        # Batches that are passed out as None, because the script had them before it was stopped.
        self.past = 0
        # Whether the dataset existed before the script trained, so that a resume makes an equal
        # one.
        self.is_of_early_data = True
        # The script's frame and line in which the pass began, and a library through which it began
        # that does not pass on batch for batch.
        self._site, self.through = _script_site()
        # Whether the worker processes existed before.
        self._is_again = is_begun(loader)
        # Number of batches by which a resumed pass began later.
        self.skipped = 0
        self._start = self.now()
        self._first: dict[str, Any] | None = None
        self._before: collections.deque[dict[str, Any]] = collections.deque(maxlen=IN_FLIGHT_MAX)
        self._replay: list[dict[str, Any]] = []
        self._then: dict[str, Any] | None = None

    @property
    def loader(self) -> Any:
        return self._loader()

    @property
    def consumed(self) -> int:
        """Batches that the loop around the loader has had."""
        return self.fetched - (0 if self.ended else int(getattr(self.loader, AHEAD, 0)))

    @property
    def own_sampler(self) -> str | None:
        """The class of a sampler of the script, which may keep state that a new iterator changes;
        None without one.
        """
        orders = (self.loader.sampler, self.loader.batch_sampler)
        return next((type(each).__name__ for each in orders if is_of_script(type(each))), None)

    def is_of(self, frame: FrameType, lines: range) -> bool:
        """Returns whether the pass began in one of the lines, in this call of the function."""
        identity, line = self._site
        return identity == id(frame) and line in lines

    def begins_in_place_of(self, other: "Pass") -> None:
        """Takes over the place in the script of the pass that it replaces."""
        self._site = other._site

    def state(self, consumed: int) -> dict[str, Any]:
        """Returns the state at a safe point, with `consumed` batches of the pass in the weights."""
        flying = self.fetched - consumed
        if not 0 <= flying <= len(self._before):
            raise ValueError(f"{self.fetched} batches were fetched and {consumed} trained on")
        before = list(self._before)
        return {
            "start": self._start,
            "first": self._first,
            "epochs": self._generators.epochs(),
            "orders": self._generators.orders(),
            "batches": _batches_of(self.loader),
            "consumed": consumed,
            "again": self._is_again,
            "in_flight": before[len(before) - flying :],
            "now": self.now(),
        }

    def resume(self, iterator: Any, saved: dict[str, Any], read: Callable[[Any], Any]) -> None:
        """Moves a fresh iterator, made under `saved["start"]`, to its position."""
        self._start, self._first = saved["start"], saved["first"]
        if saved["first"] is not None:
            self.put(saved["first"])
        plain = iterator._num_workers == 0 and not isinstance(iterator._dataset, IterableDataset)
        for _ in range(saved["consumed"]):
            if plain:
                next(iterator._sampler_iter)
            else:
                read(iterator)
        self.fetched = saved["consumed"]
        self.skipped = self.fetched - int(iterator._num_yielded)
        self._replay, self._then = list(saved["in_flight"]), saved["now"]

    def fetches(self) -> None:
        """Called right before a batch is read."""
        if self._replay:
            self.put(self._replay.pop(0))
        elif self._then is not None:
            self.put(self._then)
            self._then = None
        now = self.now()
        if self._first is None:
            self._first = now
        self._before.append(now)

    def leaves_random_numbers(self) -> None:
        """Leaves the random numbers to the caller, which restores all of them at once."""
        if self._then is not None and not self._replay:
            self._generators.restore(self._then["generators"])
            self._then = None

    def begins_with(self, saved: dict[str, Any]) -> None:
        """Makes the first fetch of a whole pass see the random numbers of `saved`."""
        self._then = saved

    def now(self) -> dict[str, Any]:
        """Returns the random state, with that of the loader's own generators."""
        return {"random": random_state(), "generators": self._generators.states()}

    def put(self, state: dict[str, Any]) -> None:
        """Restores a state from `now`."""
        restore_random(state["random"])
        self._generators.restore(state["generators"])


def _batches_of(loader: Any) -> list[Any]:
    """Returns the facts that distinguish the batches of a script's loaders."""
    batches = loader.batch_sampler
    size, drop = (getattr(batches, name, None) for name in ("batch_size", "drop_last"))
    return [type(loader.sampler).__name__, size, drop]


def at_boundary(loader: Any) -> dict[str, Any]:
    """Returns the state between two passes over the loader, before the next one begins."""
    now = {"random": random_state(), "generators": Generators(loader).states()}
    return {"consumed": 0, "now": now, "again": is_begun(loader)}


class Passes:
    """Watches every loader of the process. One listener decides about a pass.

    `begins(loader)` returns a state to resume from, or None. `fetching(pass)` is called between two
    batches, and before the fetch that finds no more.
    """

    def __init__(self) -> None:
        self.begins: Callable[[Any], dict[str, Any] | None] = lambda loader: None
        self.fetching: Callable[[Pass], None] = lambda record: None
        # By identity, in the order in which they were made.
        self._live: dict[int, weakref.ref[Any]] = {}
        self._awaited: list[dict[str, Any]] = []
        # Datasets that were read before the first step. They are kept alive, so that no other gets
        # their identity.
        self._early: list[Any] = []
        self._trains = False
        self._plain_iter = DataLoader.__iter__
        self._plain_next = _BaseDataLoaderIter.__next__
        self._off = False

    def install(self) -> None:
        passes = self

        @functools.wraps(self._plain_iter)
        def __iter__(self: Any) -> Any:  # noqa: N807
            return passes._begin(self)

        @functools.wraps(self._plain_next)
        def __next__(self: Any) -> Any:  # noqa: N807
            return passes._next(self)

        DataLoader.__iter__ = __iter__
        _BaseDataLoaderIter.__next__ = __next__

    def stop(self) -> None:
        """Stops in a forked child, which trains as under plain python."""
        self._off = True

    def _begin(self, loader: Any) -> Any:
        if self._off:
            return self._plain_iter(loader)
        saved = self.begins(loader)
        if saved is None and self._awaited:
            iterator, record = self._at_place(loader, self._awaited.pop(0))
            record.past = record.fetched
            record.leaves_random_numbers()
        else:
            iterator, record = self._at_place(loader, saved)
        record.is_of_early_data = self._is_early(loader.dataset)
        self._watch(iterator, record)
        return iterator

    def _at_place(self, loader: Any, saved: dict[str, Any] | None) -> tuple[Any, Pass]:
        """Returns a new iterator and its pass, at its beginning or at a saved position."""
        whole = saved is not None and not saved["consumed"]
        if saved is not None and saved.get("again") and not is_begun(loader):
            # A first pass draws a number that later ones do not.
            self._plain_iter(loader)
        if saved is not None:
            # `start` has the state in which the order of a pass that has begun was drawn.
            place = saved["now"] if whole and "start" not in saved else saved["start"]
            restore_random(place["random"])
            generators = Generators(loader)
            generators.restore(place["generators"])
            if "epochs" in saved:
                generators.tell_epochs(saved["epochs"])
            if "batches" in saved and saved["batches"] != _batches_of(loader):
                raise MismatchError("a loader gives other batches than the one that was read")
            if generators.orders() != saved.get("orders", generators.orders()):
                raise MismatchError("a sampler has other weights or indices than it had")
        record = Pass(loader)
        iterator: Any = self._plain_iter(loader)
        if saved is not None and "start" in saved:
            record.resume(iterator, saved, self._plain_next)
        elif saved is not None:
            record.begins_with(record.now())
        return iterator, record

    def _watch(self, iterator: Any, record: Pass) -> None:
        setattr(iterator, _RECORD, record)
        identity = id(iterator)
        self._live.pop(identity, None)
        self._live[identity] = weakref.ref(iterator, lambda gone: self._gone(identity, gone))

    def _gone(self, identity: int, reference: Any) -> None:
        if self._live.get(identity) is reference:
            del self._live[identity]

    def training_began(self) -> None:
        """Called when training begins. Datasets first read from now on may have been made while the
        script trained.
        """
        self._trains = True

    def _is_early(self, data: Any) -> bool:
        known = any(each is data for each in self._early)
        if known or self._trains or len(self._early) >= EARLY_MAX:
            return known
        self._early.append(data)
        return True

    def of_loop(self, frame: FrameType, lines: range) -> list[Pass]:
        """Returns the passes that began in these lines and whose iterators still exist,
        in order.
        """
        iterators = [reference() for reference in list(self._live.values())]
        records = [pass_of(each) for each in iterators if each is not None]
        return [each for each in records if each is not None and each.is_of(frame, lines)]

    def bring_back(self, frame: FrameType, lines: range, saved: list[dict[str, Any]]) -> None:
        """Moves the passes of a loop to their positions: those that have begun, and those to come.

        They yield None for each batch that was trained on.
        """
        references = list(self._live.values())
        begun = [each for each in (reference() for reference in references) if each is not None]
        here = [each for each in begun if (of := pass_of(each)) and of.is_of(frame, lines)]
        for iterator, state in zip(here, saved, strict=False):
            self.bring_one_back(iterator, state).past = state["consumed"]
        self._awaited = list(saved[len(here) :])

    def begin_workers(self, loader: Any) -> None:
        """Starts the worker processes that a loader had, outside of any pass."""
        self._plain_iter(loader)

    def awaits_none(self) -> bool:
        """Forgets the passes that have not begun. Returns whether all had."""
        awaited, self._awaited = self._awaited, []
        return not awaited

    def bring_one_back(self, iterator: Any, saved: dict[str, Any]) -> Pass:
        """Makes an iterator continue from a saved position. It keeps its identity."""
        before = pass_of(iterator)
        assert before is not None
        reads, record = self._at_place(before.loader, saved)
        record.begins_in_place_of(before)
        record.leaves_random_numbers()
        if reads is not iterator:
            setattr(iterator, _READS, reads)
        setattr(iterator, _RECORD, record)
        return record

    def _next(self, iterator: Any) -> Any:
        record: Pass | None = getattr(iterator, _RECORD, None)
        if record is None or self._off:
            return self._plain_next(iterator)
        if record.past:
            record.past -= 1
            return None
        self.fetching(record)
        record.fetches()
        try:
            batch = self._plain_next(getattr(iterator, _READS, iterator))
        except StopIteration:
            record.ended = True
            raise
        record.fetched += 1
        return batch


def pass_of(iterator: Any) -> Pass | None:
    """Returns the pass that a loader's iterator reads, or None."""
    return getattr(iterator, _RECORD, None)


def _script_site() -> tuple[tuple[int, int], str | None]:
    """Returns the nearest frame of the script, by identity, and its line, and an unknown library on
    the way to it.
    """
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    through: str | None = None
    for _ in range(_CALLS_MAX):
        if frame is None:
            break
        if is_script_file(frame.f_code.co_filename):
            return (id(frame), frame.f_lineno), through
        name = str(frame.f_globals.get("__name__")).partition(".")[0]
        if name not in _HANDING_ON:
            through = name
        frame = frame.f_back
    return (0, 0), through
