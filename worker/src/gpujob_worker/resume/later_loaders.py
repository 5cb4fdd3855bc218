"""A loader that a script made in an earlier turn of its loops, such as one of larger batches.

A resume does not pass the line that made it. It is made from the loader that has its name before
the first step, over the same data and with the same functions. The rest of a loader with one of
torch's own orders is plain.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from gpujob_worker.resume.value_kinds import KIND

LATER = "later loader"
# Marks a loader that was made here, because its script made it elsewhere.
_MARK = "_gpujob_put_back"
_PLAIN = ("drop_last", "pin_memory", "pin_memory_device", "timeout", "num_workers", "in_order")


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


def early(
    names: Mapping[str, Any], nodes: Sequence[Any], now: Mapping[str, Any]
) -> Iterator[tuple[Any, str, Any]]:
    """Yields loaders on which the way depends: the object that has it (None for the function
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


def _node(encoded: Any, nodes: Sequence[Any]) -> dict[str, Any]:
    found = nodes[int(encoded[1])] if isinstance(encoded, tuple) else None
    return found if isinstance(found, dict) else {}
