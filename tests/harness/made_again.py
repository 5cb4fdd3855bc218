"""A script's variables, read in one run and put back into another run of the same script."""

import copy
import linecache
import sys
import textwrap
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)

from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.modules_and_optimizers import (
    check_structures,
    read_kept,
    read_stepped,
    restore_kept,
    restore_stepped,
)
from gpujob_worker.resume.values.restorer import deep_calls
from gpujob_worker.resume.values.table import reader_of, restorer_of, see_kept
from gpujob_worker.resume.values.tensors_and_arrays import check_overlaps

NAME = "train_of_test"
# At the beginning of each script.
IMPORTS = """
import argparse, array, collections, copy, datetime, decimal, enum, fractions, functools
import itertools, math, pathlib, random, re, types, typing, uuid, weakref
from dataclasses import dataclass, field
import numpy as np
import torch
"""
_KINDS = (
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
    torch.amp.GradScaler,
)


@dataclass
class Saved:
    """What a checkpoint has of a script's variables."""

    body: dict[str, Any]
    states: list[Any]


class MadeAgain:
    """One script: `before` is what it does before its first step."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, before: str) -> None:
        self._path, self._patch = folder / "train.py", patch
        self._before = IMPORTS + textwrap.dedent(before)
        patch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
        patch.setattr(_BaseDataLoaderIter, "__next__", _BaseDataLoaderIter.__next__)
        self._passes = Passes()
        self._passes.install()
        self.baseline = Baseline()

    def begin(self) -> dict[str, Any]:
        """A new run, up to its first step: its variables."""
        module = types.ModuleType(NAME)
        module.__file__ = str(self._path)
        self._patch.setitem(sys.modules, NAME, module)
        lines = self._before.splitlines(keepends=True)
        linecache.cache[module.__file__] = (len(self._before), None, lines, module.__file__)
        self.run(self._before, vars(module))
        return vars(module)

    def run(self, text: str, variables: dict[str, Any]) -> None:
        exec(compile(textwrap.dedent(text), self._path, "exec"), variables)

    def see(self, variables: dict[str, Any]) -> None:
        """Before the first step."""
        made = made_in(variables)
        for each in made:
            self.baseline.sees_structure(each)
        see_kept(made, self.baseline)
        reader = reader_of(made, self.baseline, first=True)
        for name, value in own(variables).items():
            try:
                reader.names("script", {name: value})
            except UnsavableError:
                continue

    def read(self, variables: dict[str, Any]) -> Saved:
        """Raises `UnsavableError`."""
        made = made_in(variables)
        reader = reader_of(made, self.baseline, passes=self._passes)
        check_structures(reader, made)
        body = {
            "names": reader.names("script", own(variables)),
            "modules": read_kept(reader, made),
            "stepped": read_stepped(reader, made),
            "overlaps": reader.memories.overlaps(),
            "nodes": reader.nodes,
        }
        text, tensors = encode_tree(body)
        written = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        states = [copy.deepcopy(each.state_dict()) for each in made]
        return Saved(decode_tree(text, written), states)

    def put_back(self, saved: Saved, variables: dict[str, Any]) -> None:
        """Raises `MismatchError`."""
        made, body = made_in(variables), saved.body
        for each, state in zip(made, saved.states, strict=True):
            each.load_state_dict(state)
        restorer = restorer_of(body["nodes"], made, self._passes)
        with deep_calls(body["nodes"]):
            restore_stepped(restorer, body["stepped"])
            found = {
                name: restorer.value(each, variables.get(name), name)
                for name, each in body["names"].items()
            }
            variables.update(found)
            restore_kept(restorer, body["modules"])
            check_overlaps(restorer, body["overlaps"])

    def come_back(self, trains: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The variables of a run that trained, and those of one that came back to it."""
        trained = self.begin()
        self.see(trained)
        self.run(trains, trained)
        saved = self.read(trained)
        again = self.begin()
        self.put_back(saved, again)
        return trained, again


def own(variables: dict[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in variables.items() if not name.startswith("__")}


def made_in(variables: dict[str, Any]) -> list[Any]:
    """Models, optimizers and the like, as `ScriptObjects` has them."""
    found = list(
        {id(each): each for each in variables.values() if isinstance(each, _KINDS)}.values()
    )
    modules = [each for each in found if isinstance(each, torch.nn.Module)]
    inner = {id(part) for each in modules for part in each.modules() if part is not each}
    return [
        each
        for each in found
        if not isinstance(each, torch.nn.Module)
        or (id(each) not in inner and len(each.state_dict()))
    ]
