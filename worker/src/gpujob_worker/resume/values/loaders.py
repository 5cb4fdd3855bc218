"""Data loaders, and the passes over them that a variable holds.

A script may have made a loader in an earlier turn of its loops, such as one of larger batches. A
resume does not pass the line that made this later loader. It is made from the loader that has its
name before the first step, over the same data and with the same functions. The rest of a loader
with one of torch's own orders is plain.
"""

import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.passes import pass_of
from gpujob_worker.resume.persistent_workers import is_begun, memory_refusal
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.script_source import is_of_script
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.kinds import AROUND_DATA, ATOMS, learns_nothing
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

LATER = "later loader"
# Marks a loader that was made here, because its script made it elsewhere.
_MARK = "_gpujob_put_back"
_PLAIN = ("drop_last", "pin_memory", "pin_memory_device", "timeout", "num_workers", "in_order")


def read_loader(reader: Reader, value: Any, path: str) -> Node:
    of = Generators(value)
    why = memory_refusal(value)
    if why is not None:
        raise UnsavableError(f"{path}: {why}")
    if reader.first:
        reader.baseline.loaders[path] = origin_of(value)
    if reader.made.is_lost(value) or is_put_back(value):
        return _read_later_loader(reader, value, path)
    described: Node = {
        KIND: "loader",
        "generators": of.states(),
        "epochs": of.epochs(),
        "orders": of.orders(),
        "begun": is_begun(value),
    }
    if reader.first and isinstance(value.dataset, TensorDataset):
        return described
    described["own"] = [
        reader.encode_kept(each, each, f"{path}.{type(each).__name__}") for each in _held_by(value)
    ]
    return described


def restore_loader(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    _check_is_loader(existing, path)
    restorer.bind(index, existing)
    loader: Any = existing
    of = Generators(loader)
    if node["begun"] and not is_begun(loader):
        restorer.passes.begin_workers(loader)
    of.restore(node["generators"])
    of.tell_epochs(node["epochs"])
    if of.orders() != node["orders"]:
        raise MismatchError(f"{path} has a sampler of other weights or indices than it had")
    for encoded, each in zip(node.get("own", ()), _held_by(loader), strict=False):
        restorer.value(encoded, each, path)


def _check_is_loader(existing: Any, path: str) -> None:
    if not isinstance(existing, DataLoader):
        raise MismatchError(f"{path} was a loader and is a {type(existing).__name__}")


def _held_by(loader: Any) -> list[Any]:
    """Returns the objects of the script or of a library that a loader calls, and may change."""
    held = (loader.dataset, loader.sampler, loader.batch_sampler, loader.collate_fn)
    of_script = [each for each in held if each is not None and is_of_script(type(each))]
    called = [loader.dataset, loader.collate_fn]
    return [*of_script, *(each for each in called if _may_keep(each))]


def _may_keep(called: Any) -> bool:
    kind = type(called)
    if isinstance(called, types.FunctionType):
        return is_of_script(called)
    if isinstance(called, (types.MethodType, functools.partial, *AROUND_DATA)):
        return True
    of_torch = kind.__module__.startswith("torch.")
    return not (of_torch or is_of_script(kind) or learns_nothing(kind) or kind in ATOMS)


def _read_later_loader(reader: Reader, value: Any, path: str) -> Node:
    arguments = arguments_of(value)
    if arguments is None or reader.baseline.loaders.get(path) != origin_of(value):
        raise UnsavableError(f"{path} is a {type(value).__name__} of another turn of the loop")
    return {KIND: LATER, "arguments": arguments}


def restore_later_loader(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    _check_is_loader(existing, path)
    restorer.bind(index, made_like(node["arguments"], existing))


def is_put_back(loader: Any) -> bool:
    return _MARK in vars(loader)


def arguments_of(loader: Any) -> dict[str, Any] | None:
    """Returns all arguments except data and functions. None for a custom order, or processes that
    live on.
    """
    shuffle = _shuffles(loader)
    batches = loader.batch_sampler
    own = type(batches) is not BatchSampler and batches is not None
    of_processes = loader.persistent_workers or loader.multiprocessing_context is not None
    if type(loader) is not DataLoader or shuffle is None or own or of_processes:
        return None
    found = {name: getattr(loader, name) for name in _PLAIN if hasattr(loader, name)}
    if loader.num_workers > 0:
        found["prefetch_factor"] = loader.prefetch_factor
    return {**found, "batch_size": loader.batch_size, "shuffle": shuffle}


def _shuffles(loader: Any) -> bool | None:
    """Returns whether the loader shuffles, or None for an order that no argument sets."""
    sampler = loader.sampler
    if type(sampler) is SequentialSampler:
        return False
    drawn = type(sampler) is RandomSampler and not sampler.replacement
    is_plain = drawn and sampler.generator is None and loader.generator is None
    whole = is_plain and sampler.num_samples == len(loader.dataset)
    return True if whole and sampler.data_source is loader.dataset else None


def origin_of(loader: Any) -> tuple[int, ...]:
    """Returns the identities of the objects that another loader must share with it."""
    return id(loader.dataset), id(loader.collate_fn), id(loader.worker_init_fn)


def made_like(arguments: Mapping[str, Any], before: Any) -> Any:
    """Returns the loader over the data of the one that has its name, or that one if it was made
    here.
    """
    if is_put_back(before) and arguments_of(before) == arguments:
        return before
    made: Any = DataLoader(
        before.dataset,
        collate_fn=before.collate_fn,
        worker_init_fn=before.worker_init_fn,
        **arguments,
    )
    vars(made)[_MARK] = True
    return made


def early_loaders(
    names: Mapping[str, Any], nodes: Sequence[Any], now: Mapping[str, Any]
) -> Iterator[tuple[Any, str, Any]]:
    """Yields later loaders on which the way depends: the object that has it (None for the function
    itself), its name there, and the loader.
    """
    for name, encoded in names.items():
        node, value = _node(encoded, nodes), now.get(name)
        if node.get(KIND) == LATER and isinstance(value, DataLoader):
            yield None, name, made_like(node["arguments"], value)
        if node.get(KIND) != "object":
            continue
        for attribute, inner in node["attributes"].items():
            of = _node(inner, nodes)
            held = getattr(value, attribute, None) if of.get(KIND) == LATER else None
            if isinstance(held, DataLoader):
                yield value, attribute, made_like(of["arguments"], held)


def _node(encoded: Any, nodes: Sequence[Any]) -> Node:
    found = nodes[int(encoded[1])] if isinstance(encoded, tuple) else None
    return found if isinstance(found, dict) else {}


def read_pass(reader: Reader, value: Any, path: str) -> Node:
    record = pass_of(value)
    if record is None or record.loader is None:
        raise UnsavableError(f"{path} is an iterator of a loader that is gone")
    own = record.own_sampler
    if own is not None:
        raise UnsavableError(f"{path}: {own} of the script may draw the order of a pass anew")
    loader = reader.encode(record.loader, f"{path}'s loader")
    return {KIND: "iterator", "pass": record.state(record.fetched), "loader": loader}


def restore_pass(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    record = pass_of(existing)
    before = record.loader if record is not None else None
    loader = restorer.value(node["loader"], before, f"{path}'s loader")
    fits = before is loader and isinstance(existing, _BaseDataLoaderIter)
    iterator = existing if fits else iter(loader)
    restorer.passes.bring_one_back(iterator, node["pass"])
    restorer.bind(index, iterator)


FAMILY = Family(
    restores={
        "loader": restore_loader,
        LATER: restore_later_loader,
        "iterator": restore_pass,
    },
    reads_of_bases=((_BaseDataLoaderIter, read_pass), (DataLoader, read_loader)),
)
