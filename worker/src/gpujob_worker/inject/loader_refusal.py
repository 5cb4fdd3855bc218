"""Finds reasons why a data loader must not get worker processes, or no more than it has."""

import inspect
import multiprocessing
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import (
    BatchSampler,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from gpujob_worker.inject.dataset_state import DatasetState
from gpujob_worker.inject.random_streams import changed_streams, put_streams, streams_now
from gpujob_worker.probe.reachable import OwnGenerators, open_file, reachable

# Samples that are read to check whether any of them draws random numbers.
_SAMPLES = 4
_SAMPLERS_DEEP_MAX = 8
_DATASETS_DEEP_MAX = 8
# These samplers draw all their random numbers for their first index.
_DRAWN_AT_ONCE = (
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)
_DEALS_OUT = ("BatchSampler", "BatchSamplerShard", "SkipBatchSampler", "_Positioned")


def loader_refusal(loader: Any) -> str | None:
    """Returns why worker processes must not load the loader's batches, or None.

    `worker_batches` handles draws from the process's own generators, unless the loader has workers
    that draw separately.
    """
    if isinstance(loader.dataset, IterableDataset):
        return "a streamed dataset would be read once by every worker"
    if loader.num_workers > 0 and loader.worker_init_fn is not None:
        return "its worker_init_fn may depend on the number of workers"
    method = _chosen_start_method(loader)
    if method not in (None, "fork"):
        return f"the script has its processes start by {method}, and others would be forked"
    batches = loader.batch_sampler
    name = _draws_as_it_goes(loader.sampler if batches is None else batches)
    if name is not None:
        return f"its {name} may draw random numbers from batch to batch"
    return reading_refusal(loader)


def own_draws_refusal(loader: Any) -> str:
    """Returns why only the user may give a loader more workers if each of its own draws separately.

    The training is then as good, but not the same.
    """
    return (
        f"its {loader.num_workers} workers draw random numbers,"
        " each of which would be another one with more workers"
    )


def _chosen_start_method(loader: Any) -> str | None:
    """Returns the start method that the script chose, or None. `worker_batches` forks in any case.

    The check leaves the script free to choose one later. Any use of `multiprocessing` sets the
    default, which is then no choice.
    """
    if loader.multiprocessing_context is not None:
        return loader.multiprocessing_context.get_start_method()
    default, *_ = multiprocessing.get_all_start_methods()
    method = multiprocessing.get_start_method(allow_none=True)
    return None if method == default else method


def draws_at_end(loader: Any) -> bool:
    """Returns whether its sampler draws from a generator of the script once more at the end of a
    pass.
    """
    sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    for _ in range(_SAMPLERS_DEEP_MAX):
        if isinstance(sampler, RandomSampler):
            return sampler.generator is not None
        if not _deals_out(sampler):
            return False
        sampler = _inner(sampler)
    return False


def skipped_batches(iterator: Any) -> int:
    """Returns how many batches of its pass a resumed run did not get again."""
    record = getattr(iterator, "_gpujob_pass", None)
    return int(getattr(record, "skipped", 0)) + int(getattr(iterator._index_sampler, "skipped", 0))


def _draws_as_it_goes(sampler: Any) -> str | None:
    for _ in range(_SAMPLERS_DEEP_MAX):
        kind = type(sampler)
        if isinstance(sampler, RandomSampler):
            once = not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
            return None if once or sampler.generator is None else kind.__name__
        if kind in _DRAWN_AT_ONCE or not inspect.isgeneratorfunction(kind.__iter__):
            return None
        if not _deals_out(sampler):
            return kind.__name__
        sampler = _inner(sampler)
    return type(sampler).__name__


def _deals_out(sampler: Any) -> bool:
    """Returns whether the sampler draws nothing itself."""
    return type(sampler) is BatchSampler or type(sampler).__name__ in _DEALS_OUT


def _inner(sampler: Any) -> Any:
    inner = [getattr(sampler, name, None) for name in ("_inner", "batch_sampler", "sampler")]
    return next((one for one in inner if one is not None), None)


def reading_refusal(loader: Any) -> str | None:
    """Returns why reading samples elsewhere differs, or None. It reads a few samples and restores
    the generators.
    """
    dataset = loader.dataset
    opened = open_file(dataset)
    if opened is not None:
        return _reads_through(opened)
    own = DatasetState(*_datasets(dataset), depth=0)
    generators = _Generators(loader)
    try:
        sample = _read(loader)
        # A table or a tokenizer creates what it needs in its first read. A cache holds more after
        # each read.
        held = DatasetState(dataset)
        _read(loader, further=1)
        change = own.change() or held.change()
        drew, apart = generators.drew, generators.drew_apart
    except Exception as error:
        return f"samples cannot be read: {type(error).__name__}"
    finally:
        generators.restore()
    if apart:
        return "the dataset draws from a random generator of its own, which no other process shares"
    if drew and loader.num_workers > 0:
        return own_draws_refusal(loader)
    opened = open_file(dataset)
    if change is not None or opened is not None:
        changes = f"reading a sample changes the dataset: {change}"
        return _reads_through(opened) if opened is not None else changes
    leaves = pytree.tree_leaves(sample)
    if any(isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in leaves):
        return "samples lie on the device, which worker processes cannot share"
    return None


def _reads_through(opened: str) -> str:
    return f"the dataset reads through an open {opened}, whose place processes would share"


def _datasets(dataset: Any) -> list[Any]:
    """Returns the dataset and those inside it."""
    inner = reachable([dataset], _DATASETS_DEEP_MAX)
    return [dataset, *(one for one in inner if one is not dataset and isinstance(one, Dataset))]


class _Generators:
    """All generators that reading samples may use, as they were before."""

    def __init__(self, loader: Any) -> None:
        self._own = [OwnGenerators.of_dataset(one) for one in (loader.dataset, loader.collate_fn)]
        self._streams = streams_now()
        self._cuda = _cuda_states()

    @property
    def drew(self) -> bool:
        return bool(changed_streams(self._streams, streams_now()))

    @property
    def drew_apart(self) -> bool:
        """Whether reading drew from generators that processes do not all start with."""
        return any(own.drew for own in self._own) or self._drew_on_the_device

    @property
    def _drew_on_the_device(self) -> bool:
        return not all(map(torch.equal, self._cuda, _cuda_states()))

    def restore(self) -> None:
        put_streams(self._streams)
        for own in self._own:
            own.restore()
        if self._cuda and self._drew_on_the_device:
            torch.cuda.set_rng_state_all(self._cuda)


def _read(loader: Any, further: int = 0) -> Any:
    """Returns a few samples from all over the dataset, as a batch if the loader makes batches."""
    dataset = loader.dataset
    length = len(dataset) if hasattr(dataset, "__len__") else 1
    if loader.batch_sampler is None:
        return loader.collate_fn(dataset[further % length])
    places = sorted(
        {(number * length // _SAMPLES + further) % length for number in range(_SAMPLES)}
    )
    samples = [dataset[place] for place in places]
    return loader.collate_fn(samples[: getattr(loader.batch_sampler, "batch_size", None) or 1])


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
