"""The data loader: measures the time spent waiting for it, and adds worker processes if they change
nothing.

Workers are added between two passes over the data, never to a loader that has some, and never to a
dataset that draws random numbers, changes itself, or streams: there, more processes would produce
other samples.
"""

import multiprocessing
import pickle
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory as pinned
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
    _DatasetKind,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.probe.reachable import OwnGenerators, open_file
from gpujob_worker.probe.side_effects import RandomStates

PREFETCH_FACTOR = 2


def watch_loaders(
    before_pass: Callable[[Any], None],
    begun: Callable[[Any, Any], None],
    waits: Callable[[], None],
    received: Callable[[Any], Any],
    waited: Callable[[float], None],
) -> Callable[[], None]:
    """Calls `before_pass(loader)` and `begun(loader, iterator)`; around batches, `waits()` and
    `waited(seconds)`; the script has what `received(batch)` returns.

    Returns a function that puts the class back.
    """
    plain_iter = DataLoader.__iter__
    plain_next = _BaseDataLoaderIter.__next__

    def __iter__(self: Any) -> Any:  # noqa: N807
        before_pass(self)
        iterator = plain_iter(self)
        begun(self, iterator)
        return iterator

    def __next__(self: Any) -> Any:  # noqa: N807
        waits()
        start = time.perf_counter()
        try:
            return received(plain_next(self))
        finally:
            waited(time.perf_counter() - start)

    DataLoader.__iter__ = __iter__
    _BaseDataLoaderIter.__next__ = __next__

    def undo() -> None:
        DataLoader.__iter__ = plain_iter
        _BaseDataLoaderIter.__next__ = plain_next

    return undo


def loader_refusal(loader: Any) -> str | None:
    """Why this loader must not get worker processes; None when it may."""
    if loader.num_workers > 0:
        return f"the script uses {loader.num_workers} workers of its own"
    if isinstance(loader.dataset, IterableDataset):
        return "a streamed dataset would be read once by every worker"
    if multiprocessing.get_start_method(allow_none=True) not in (None, "fork"):
        try:
            pickle.dumps((loader.dataset, loader.collate_fn))
        except Exception as error:
            return f"the dataset cannot be sent to workers: {error}"
    return _sample_refusal(loader.dataset)


def _sample_refusal(dataset: Any) -> str | None:
    opened = open_file(dataset)
    if opened is not None:
        return f"the dataset reads through an open {opened}, whose place processes would share"
    states, own = RandomStates(), OwnGenerators.of_dataset(dataset)
    before = _attributes(dataset)
    try:
        sample = dataset[0]
    except Exception as error:
        return f"dataset[0] cannot be read: {type(error).__name__}"
    drew = not torch.equal(states.torch, torch.get_rng_state()) or _drew(states) or own.drew
    states.restore()
    own.restore()
    if drew:
        return "the dataset draws random numbers, which differ from process to process"
    if _attributes(dataset) != before:
        return "reading a sample changes the dataset"
    leaves = pytree.tree_leaves(sample)
    if any(isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in leaves):
        return "samples lie on the device, which worker processes cannot share"
    return None


def _drew(states: RandomStates) -> bool:
    now = RandomStates()
    if states.python != now.python:
        return True
    if states.numpy is None or now.numpy is None:
        return False
    return bool(states.numpy[2] != now.numpy[2] or (states.numpy[1] != now.numpy[1]).any())


def _attributes(dataset: Any) -> dict[str, Any]:
    values: dict[str, Any] = getattr(dataset, "__dict__", {})
    return {key: _identity(value) for key, value in values.items()}


def _identity(value: Any) -> Any:
    """Of plain values what they are; of containers how much they hold: samples may be kept."""
    if isinstance(value, (int, float, str, bool)):
        return repr(value)
    return (id(value), len(value)) if isinstance(value, (dict, list, set)) else id(value)


def add_workers(loader: Any, workers: int) -> None:
    """Gives the loader worker processes from its next pass on.

    They are new for each pass: persistent workers would not see what the script changes in its
    dataset between passes, and a second iterator would take them from the first.
    """
    loader.num_workers = workers
    loader.prefetch_factor = loader.prefetch_factor or PREFETCH_FACTOR


def remove_workers(loader: Any) -> None:
    """Undoes `add_workers` from the loader's next pass on."""
    loader.num_workers = 0
    loader.prefetch_factor = None


def go_on_here(iterator: Any) -> None:
    """Continues a pass in this process after the batches that its workers have started.

    This process drew the order in any case, so that no sample is repeated or skipped.
    """
    if not isinstance(iterator._next_data, _HereFromNow):
        iterator._next_data = _HereFromNow(iterator)


class _HereFromNow:
    """Replaces how an iterator over worker processes gets its next batch."""

    def __init__(self, iterator: Any) -> None:
        self._workers: Any = iterator
        self._from_workers = iterator._next_data
        self._rest = iterator._sampler_iter
        # No more indices are sent; the workers return what they have started.
        iterator._sampler_iter = iter(())
        self._fetcher: Any = _DatasetKind.create_fetcher(
            iterator._dataset_kind,
            iterator._dataset,
            iterator._auto_collation,
            iterator._collate_fn,
            iterator._drop_last,
        )
        self._pin = bool(iterator._pin_memory)

    def __call__(self) -> Any:
        if self._workers is not None:
            try:
                return self._from_workers()
            except StopIteration:
                self._workers._shutdown_workers()
                self._workers = None
        data = self._fetcher.fetch(next(self._rest))
        return pinned(data) if self._pin else data


def pin_refusal(batch: Any) -> str | None:
    """Why a batch must not be copied into pinned memory; None if each of its tensors can be."""
    leaves = pytree.tree_leaves(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return "a batch has no tensors"
    for leaf in leaves:
        reason = _pin_refusal_of(leaf)
        if reason is not None:
            return reason
    return None


def _pin_refusal_of(leaf: Any) -> str | None:
    if isinstance(leaf, (str, bytes, int, float)) or leaf is None:
        return None
    if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
        return f"batches lie on {leaf.device.type} already"
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return f"a batch has a {type(leaf).__name__} that is no dense tensor"
    return "the script does it itself" if leaf.is_pinned() else None
