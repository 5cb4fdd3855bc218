"""Passes over a `DataLoader` that can be begun again in their middle, in scripts that know nothing.

The batches of a pass follow from the random state when its iterator was made and when its order was
drawn, from the number of batches taken and, without worker processes, from the random state at each
fetch. Whoever wraps a loader fetches ahead: for batches that were fetched and not yet trained on,
the state before their fetch is kept too. Between two batches nothing of the loop is under way:
there the state now is taken, and put back.
"""

import collections
import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.resume.random_numbers import Generators, random_state, restore_random

# Batches that a wrapper may have fetched ahead.
IN_FLIGHT_MAX = 8
_RECORD = "_gpujob_pass"


class Pass:
    """One pass over one loader: what makes its batches, and how far it is."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
        self._generators = Generators(loader)
        self.ahead = 0
        self.fetched = 0
        # By which a resumed pass began later.
        self.skipped = 0
        self._start = self.now()
        self._first: dict[str, Any] | None = None
        self._before: collections.deque[dict[str, Any]] = collections.deque(maxlen=IN_FLIGHT_MAX)
        self._replay: list[dict[str, Any]] = []
        self._then: dict[str, Any] | None = None

    @property
    def loader(self) -> Any:
        return self._loader()

    def state(self, consumed: int) -> dict[str, Any]:
        """At a safe point; `consumed` batches of the pass are in the weights."""
        flying = self.fetched - consumed
        if not 0 <= flying <= len(self._before):
            raise ValueError(f"{self.fetched} batches were fetched and {consumed} trained on")
        before = list(self._before)
        return {
            "start": self._start,
            "first": self._first,
            "epochs": self._generators.epochs(),
            "consumed": consumed,
            "in_flight": before[len(before) - flying :],
            "now": self.now(),
        }

    def resume(self, iterator: Any, saved: dict[str, Any], read: Callable[[Any], Any]) -> None:
        """Brings a fresh iterator, made under `saved["start"]`, to its place."""
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
        """Right before a batch is read."""
        if self._replay:
            self.put(self._replay.pop(0))
        elif self._then is not None:
            self.put(self._then)
            self._then = None
        now = self.now()
        if self._first is None:
            self._first = now
        self._before.append(now)

    def begins_with(self, saved: dict[str, Any]) -> None:
        """A whole pass whose first fetch is to see the random numbers of `saved`."""
        self._then = saved

    def now(self) -> dict[str, Any]:
        """The random state, with that of the loader's own generators."""
        return {"random": random_state(), "generators": self._generators.states()}

    def put(self, state: dict[str, Any]) -> None:
        """Puts a state from `now` in force."""
        restore_random(state["random"])
        self._generators.restore(state["generators"])


def at_boundary(loader: Any) -> dict[str, Any]:
    """The state between two passes over the loader: the next one has not begun."""
    now = {"random": random_state(), "generators": Generators(loader).states()}
    return {"consumed": 0, "now": now}


class Passes:
    """Watches every loader of the process. One listener decides what a pass is about.

    `begins(loader)` returns a state to resume with, or None; `fetching(pass)` is called between two
    batches, also before the fetch that finds no more; `shortened(pass)` returns the most batches
    that the script is to get of a pass, or None.
    """

    def __init__(self) -> None:
        self.begins: Callable[[Any], dict[str, Any] | None] = lambda loader: None
        self.fetching: Callable[[Pass], None] = lambda record: None
        self.shortened: Callable[[Pass], int | None] = lambda record: None
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
        """In a forked child, which trains as under python."""
        self._off = True

    def _begin(self, loader: Any) -> Any:
        if self._off:
            return self._plain_iter(loader)
        saved = self.begins(loader)
        whole = saved is not None and not saved["consumed"]
        if saved is not None:
            place = saved["now"] if whole else saved["start"]
            restore_random(place["random"])
            generators = Generators(loader)
            generators.restore(place["generators"])
            if "epochs" in saved:
                generators.tell_epochs(saved["epochs"])
        record = Pass(loader)
        iterator: Any = self._plain_iter(loader)
        setattr(iterator, _RECORD, record)
        if saved is None:
            return iterator
        if whole:
            record.begins_with(record.now())
        else:
            record.resume(iterator, saved, self._plain_next)
        return iterator

    def _next(self, iterator: Any) -> Any:
        record: Pass | None = getattr(iterator, _RECORD, None)
        if record is None or self._off:
            return self._plain_next(iterator)
        self.fetching(record)
        most = self.shortened(record)
        if most is not None and record.fetched >= most:
            raise StopIteration
        record.fetches()
        batch = self._plain_next(iterator)
        record.fetched += 1
        return batch
