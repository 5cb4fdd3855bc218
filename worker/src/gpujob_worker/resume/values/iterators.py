"""Iterators that a variable holds: generators of the script, those of containers, and counters."""

import inspect
import itertools
import re
import types
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.frame_variables import set_variables
from gpujob_worker.resume.halted import HaltedAgain, described
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.functions_and_classes import code_key
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

# Iterators of Python's own containers.
_ITERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (type(iter([])), type(iter(())), type(iter(range(0))), enumerate, zip)
}


def read_generator(reader: Reader, value: Any, path: str) -> Node:
    state = inspect.getgeneratorstate(value)
    if state == inspect.GEN_CLOSED:
        return {KIND: "generator that is over"}
    key = code_key(value)
    reader.check_made_before(path, key)
    if reader.passes is None:
        return {}
    halted = None
    if state != inspect.GEN_CREATED:
        halted = described(value, reader.passes, path)
    if halted is not None:
        reader.lines += [(halted["file"], loop["line"]) for loop in halted["loops"]]
    names = {
        name: reader.encode(each, f"{path}'s {name}")
        for name, each in value.gi_frame.f_locals.items()
    }
    return {KIND: "generator", "code": key, "halted": halted, "names": names}


def restore_generator(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    known = isinstance(existing, types.GeneratorType) and not restorer.is_taken(existing)
    if not known or code_key(existing) != node["code"]:
        raise MismatchError(f"{path} is not the generator {node['code']}")
    if node["halted"] is not None:
        HaltedAgain(node["halted"], restorer.passes, path).run(existing)
    elif inspect.getgeneratorstate(existing) != inspect.GEN_CREATED:
        raise MismatchError(f"{path} is a generator that has begun")
    restorer.bind(index, existing)
    frame: Any = existing.gi_frame
    before = frame.f_locals
    set_variables(
        frame,
        {
            name: restorer.value(encoded, before.get(name), f"{path}'s {name}")
            for name, encoded in node["names"].items()
        },
    )


def restore_generator_over(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del node, path
    fits = restorer.fits(existing, types.GeneratorType)
    found = existing if fits else (one for one in ())
    found.close()
    restorer.bind(index, found)


def read_builtin_iterator(reader: Reader, value: Any, path: str) -> Node:
    """Returns an iterator of Python's own containers, as it describes itself to `copy`."""
    _, inner, *state = value.__reduce__()
    return {
        KIND: "builtin iterator",
        "type": type(value).__name__,
        "inner": [reader.encode(each, f"what {path} goes over") for each in inner],
        "state": state[0] if state else None,
    }


def restore_builtin_iterator(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del existing
    inner = [restorer.value(each, None, path) for each in node["inner"]]
    kind = _ITERATORS[node["type"]]
    made: Any = kind(*inner) if kind in (enumerate, zip) else iter(inner[0])
    if node["state"] is not None:
        made.__setstate__(node["state"])
    restorer.bind(index, made)


def read_count(reader: Reader, value: Any, path: str) -> Node:
    """Returns a counter, whose next number is only in its text."""
    del reader
    numbers = re.fullmatch(r"count\((-?\d+)(?:, (-?\d+))?\)", repr(value))
    if numbers is None:
        raise UnsavableError(f"{path} is a counter of other than whole numbers")
    return {KIND: "count", "next": int(numbers[1]), "step": int(numbers[2] or 1)}


def restore_count(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del existing, path
    restorer.bind(index, itertools.count(node["next"], node["step"]))


FAMILY = Family(
    restores={
        "generator": restore_generator,
        "generator that is over": restore_generator_over,
        "builtin iterator": restore_builtin_iterator,
        "count": restore_count,
    },
    reads={
        types.GeneratorType: read_generator,
        **dict.fromkeys(_ITERATORS.values(), read_builtin_iterator),
        itertools.count: read_count,
    },
)
