"""What two runs of a script have to have in common: their results, and the files they leave."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

END = "== end"
_TEXT_MAX = 160


def results_of(output: str) -> list[str]:
    """The lines from the mark of the end on; none where the script did not come to it."""
    lines = output.splitlines()
    return lines[len(lines) - lines[::-1].index(END) :] if END in lines else []


def differing_results(plain: str, other: str) -> list[str]:
    ours, theirs = results_of(plain), results_of(other)
    if not theirs:
        return ["no results were printed"]
    found = [
        f"- {one[:_TEXT_MAX]}\n+ {two[:_TEXT_MAX]}"
        for one, two in zip(ours, theirs, strict=False)
        if one != two
    ]
    if len(ours) != len(theirs):
        found.append(f"{len(theirs)} lines of results instead of {len(ours)}")
    return found


def other_lines(plain: str, other: str) -> list[str]:
    """Lines before the results that the undisturbed run did not print."""
    known = set(plain.splitlines())
    return [line for line in other.splitlines() if line not in known]


def differing_files(plain: Path, other: Path, leave_out: frozenset[str] = frozenset()) -> list[str]:
    ours, theirs = _files(plain), _files(other)
    found = [f"{name} is missing" for name in sorted(ours.keys() - theirs.keys())]
    found += [f"{name} is there, too" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys() - leave_out):
        found += _differences(name, ours[name], theirs[name])
    return found


def _files(folder: Path) -> dict[str, Path]:
    return {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}


def _differences(name: str, plain: Path, other: Path) -> list[str]:
    if plain.read_bytes() == other.read_bytes():
        return []
    try:
        ours, theirs = _content(plain), _content(other)
    except (EOFError, OSError, RuntimeError, ValueError, pickle.UnpicklingError) as error:
        return [f"{name} cannot be read: {error}"]
    return list(_unequal(name, ours, theirs))[:3]


def _content(path: Path) -> Any:
    """The same content may be written with other bytes: two equal texts are pickled once if they
    are one object.
    """
    if path.suffix == ".pt":
        return torch.load(path, map_location="cpu", weights_only=False)
    if path.suffix == ".npy":
        return np.load(path)
    return path.read_text(errors="replace").splitlines()


def _unequal(name: str, ours: Any, theirs: Any) -> Iterator[str]:
    """Compares without tolerance; NaN equals NaN."""
    if type(ours) is not type(theirs):
        yield f"{name} is a {type(theirs).__name__} instead of a {type(ours).__name__}"
    elif isinstance(ours, Mapping):
        yield from _unequal_mappings(name, cast("Any", ours), theirs)
    elif isinstance(ours, list | tuple):
        yield from _unequal_lists(name, cast("Any", ours), theirs)
    elif isinstance(ours, torch.Tensor):
        if ours.dtype != theirs.dtype or not torch.equal(ours.nan_to_num(), theirs.nan_to_num()):
            yield f"{name} has other numbers"
    elif isinstance(ours, np.ndarray):
        if not np.array_equal(ours, theirs, equal_nan=True):
            yield f"{name} has other numbers"
    elif repr(ours) != repr(theirs):
        yield f"{name}: - {str(ours)[:_TEXT_MAX]} + {str(theirs)[:_TEXT_MAX]}"


def _unequal_mappings(
    name: str, ours: Mapping[Any, Any], theirs: Mapping[Any, Any]
) -> Iterator[str]:
    if list(ours) != list(theirs):
        yield f"{name} has the keys {list(theirs)} instead of {list(ours)}"
        return
    for key in ours:
        yield from _unequal(f"{name}[{key!r}]", ours[key], theirs[key])


def _unequal_lists(name: str, ours: Sequence[Any], theirs: Sequence[Any]) -> Iterator[str]:
    if len(ours) != len(theirs):
        yield f"{name} has {len(theirs)} entries instead of {len(ours)}"
    for at, (one, two) in enumerate(zip(ours, theirs, strict=False)):
        yield from _unequal(f"{name}[{at}]", one, two)
