"""Random number generators of Python, NumPy and torch, with their states."""

import random
from typing import Any

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.objects import read_same
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer


def read_random(reader: Reader, value: random.Random, path: str) -> Node:
    del reader, path
    return {KIND: "random", "state": value.getstate()}


def restore_random(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del path
    fits = restorer.fits(existing, random.Random)
    found: Any = existing if fits else random.Random()  # noqa: S311
    found.setstate(node["state"])
    restorer.bind(index, found)


def read_torch_generator(reader: Reader, value: torch.Generator, path: str) -> Node:
    del reader, path
    return {KIND: "torch generator", "state": value.get_state(), "device": str(value.device)}


def restore_torch_generator(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del path
    device = node["device"]
    fits = restorer.fits(existing, torch.Generator) and str(existing.device) == device
    found: Any = existing if fits else torch.Generator(device)
    found.set_state(node["state"])
    restorer.bind(index, found)


def read_numpy_generator(reader: Reader, value: Any, path: str) -> Node:
    return {KIND: "numpy generator", "bits": reader.encode(value.bit_generator, path)}


def restore_numpy_generator(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    fits = restorer.fits(existing, np.random.Generator)
    bits: Any = restorer.value(node["bits"], existing.bit_generator if fits else None, path)
    same = fits and existing.bit_generator is bits
    restorer.bind(index, existing if same else np.random.Generator(bits))


def read_bits(reader: Reader, value: Any, path: str) -> Node:
    del reader, path
    return {KIND: "bit generator", "type": type(value).__name__, "state": value.state}


def restore_bits(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind: Any = getattr(np.random, node["type"], None)
    if kind is None:
        raise MismatchError(f"{path}: there is no {node['type']}")
    found = existing if restorer.fits(existing, kind) else kind()
    found.state = node["state"]
    restorer.bind(index, found)


def read_legacy_generator(reader: Reader, value: Any, path: str) -> Node:
    del reader, path
    return {KIND: "legacy generator", "state": value.get_state(legacy=False)}


def restore_legacy_generator(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    del path
    fits = restorer.fits(existing, np.random.RandomState)
    found: Any = existing if fits else np.random.RandomState()
    found.set_state(node["state"])
    restorer.bind(index, found)


FAMILY = Family(
    restores={
        "random": restore_random,
        "torch generator": restore_torch_generator,
        "numpy generator": restore_numpy_generator,
        "bit generator": restore_bits,
        "legacy generator": restore_legacy_generator,
    },
    reads={
        random.Random: read_random,
        torch.Generator: read_torch_generator,
        np.random.Generator: read_numpy_generator,
        np.random.RandomState: read_legacy_generator,
    },
    # The system's random numbers have no state.
    reads_of_bases=((np.random.BitGenerator, read_bits), (random.SystemRandom, read_same)),
)
