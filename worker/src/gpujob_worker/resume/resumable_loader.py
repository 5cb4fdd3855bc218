"""A data loader that can return to its position: same order, same random numbers, no batch twice.

An epoch's order is drawn from the random state at its start. That state is kept with the position.
On resume the order is drawn again, the finished batches are skipped in the sampler without loading
them, and the random state of the checkpoint is restored just before the next batch is read.
"""

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from gpujob_worker.resume.random_numbers import Generators, random_state, restore_random


class _Positioned:
    """A sampler that reports when an epoch's order is drawn, and skips finished items.

    The first index is requested after the iterator drew its own seed. A loader with persistent
    workers draws that only once. A state taken here fits both kinds.
    """

    def __init__(self, inner: Any, on_start: Callable[[], None]) -> None:
        self._inner = inner
        self._on_start = on_start
        self.skip = self.skipped = 0
        self.on_position: Callable[[], None] | None = None

    def __iter__(self) -> Iterator[Any]:
        self._on_start()
        iterator = iter(self._inner)
        skip, self.skip = self.skip, 0
        self.skipped = skip
        for _ in range(skip):
            next(iterator, None)
        callback, self.on_position = self.on_position, None
        if callback is not None:
            callback()
        yield from iterator

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class ResumableLoader:
    """Wraps a DataLoader. Iterating it is one epoch. Everything else is the loader's own.

    `between_batches` is called when the loop requests the next batch, after each batch.
    """

    def __init__(self, loader: Any, between_batches: Callable[[], None]) -> None:
        self._loader = loader
        self._between_batches = between_batches
        self.epoch = 0
        self.position = 0
        self._start: dict[str, Any] | None = None
        self._starting: dict[str, Any] | None = None
        self._resume: dict[str, Any] | None = None
        self._generators = Generators(loader)
        self._streams = isinstance(loader.dataset, IterableDataset)
        self._positioned = None if self._streams else self._place_sampler(loader)

    def state(self) -> dict[str, Any]:
        """Returns the position of the loop. Call it at a safe point, when no batch is being
        processed.
        """
        return {
            "epoch": self.epoch,
            "position": self.position,
            "start": self._start,
            "generators": self._generators.states(),
        }

    def resume_from(self, state: dict[str, Any], restore: Callable[[], None]) -> None:
        """Makes the next iterations skip finished epochs. `restore` restores everything else."""
        self._resume = {**state, "restore": restore}

    def __iter__(self) -> Iterator[Any]:
        resume = self._resume
        if resume is not None and self.epoch < resume["epoch"]:
            self.epoch += 1
            return iter(())
        return self._epoch(resume)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _epoch(self, resume: dict[str, Any] | None) -> Iterator[Any]:
        self.position = 0
        iterator = self._plain_iterator() if resume is None else self._resumed_iterator(resume)
        try:
            yield from self._batches(iterator)
        finally:
            # The same applies if the script leaves the loop early. Its next pass is another epoch.
            self.epoch += 1
            self.position = 0

    def _batches(self, iterator: Iterator[Any]) -> Iterator[Any]:
        first = self.position
        while True:
            if self.position > first:
                self._between_batches()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self.position += 1
            yield batch

    def _plain_iterator(self) -> Iterator[Any]:
        if self._positioned is None:
            self._on_start()
        return iter(self._loader)

    def _on_start(self) -> None:
        """Called when an epoch's order is about to be drawn, from a resumed epoch's state or from
        the present one.
        """
        if self._starting is not None:
            self._start, self._starting = self._starting, None
            restore_random(self._start["random"])
            self._generators.restore(self._start["generators"])
        else:
            self._start = {"random": random_state(), "generators": self._generators.states()}

    def _resumed_iterator(self, resume: dict[str, Any]) -> Iterator[Any]:
        self._resume = None
        self._starting = resume["start"]
        self.position = resume["position"]

        def in_force() -> None:
            resume["restore"]()
            self._generators.restore(resume["generators"])

        if self._positioned is not None:
            self._positioned.skip = self.position
            self._positioned.on_position = in_force
            return iter(self._loader)
        self._on_start()
        iterator = iter(self._loader)
        for _ in range(self.position):
            next(iterator, None)
        in_force()
        return iterator

    def _place_sampler(self, loader: Any) -> _Positioned:
        """Replaces the sampler. The class forbids the change after __init__, but no iterator exists
        yet.
        """
        name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        positioned = _Positioned(getattr(loader, name), self._on_start)
        vars(loader)[name] = positioned
        return positioned
