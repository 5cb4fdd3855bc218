"""One script for each seed, put together as ordinary people write them."""

import random
from dataclasses import dataclass

from tests.worker.resume.shapes import (
    file_parts,
    loops,
    models,
    state_parts,
    styles,
    training_parts,
)
from tests.worker.resume.shapes.script import Part, Script

_IMPORTS = """
import collections, copy, csv, dataclasses, functools, hashlib, itertools, json, logging, os
import random, types
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler, DataLoader, Dataset, RandomSampler, Sampler, TensorDataset, WeightedRandomSampler)
from tqdm import tqdm

torch.manual_seed(SEED)
random.seed(SEED)
np.random.seed(SEED)

def digest(tensors):
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().float().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
"""
LIBRARY_SHARE = 0.1
# In this order: later ones read what earlier ones have decided.
PARTS: dict[str, tuple[float, Part]] = {
    **training_parts.PARTS,
    **state_parts.PARTS,
    **file_parts.PARTS,
}


@dataclass(frozen=True)
class Shape:
    """A script, what it is made of, and what a second run from its beginning does otherwise."""

    seed: int
    source: str
    labels: dict[str, str]
    parts: tuple[str, ...]
    appends: frozenset[str]
    resumes_itself: bool


def generate(seed: int) -> Shape:
    draw = random.Random(seed)
    script = Script(draw)
    script.epochs, script.batch = draw.choice((3, 4, 5, 6)), draw.choice((4, 6, 8, 12))
    script.accumulation = draw.choices((1, 2, 3), (8, 1.5, 1))[0]
    if script.accumulation > 1:
        script.labels["accumulation"] = str(script.accumulation)
    script.one_of("zero_grad", {"first": 2, "after": 1})
    script.one_of("folds", {"no": 9, "yes": 1})
    models.add_data(script)
    models.add_model(script)
    script.setup.append(f"$loader = {models.loader(script)}")
    script.setup += ["$micro = 0"] if script.accumulation > 1 else []
    # Drawn apart, so that all other scripts stay what they were.
    if random.Random(f"library {seed}").random() < LIBRARY_SHARE:
        script.labels["library"] = "standin"
        state_parts.library(script)
    is_over_epochs = script.one_of("over", {"epochs": 7, "steps": 3}) == "epochs"
    parts = _add_parts(script, is_over_epochs)
    if script.resumes_itself:
        script.setup.insert(0, "$start = 0")
    loop = loops.epoch_loop(script) if is_over_epochs else loops.step_loop(script)
    style = script.one_of(
        "style",
        {"module": 6, "main": 4, "functions": 2, "closure": 2, "arguments": 3, "namespace": 1.5,
         "trainer": 3},
    )  # fmt: skip
    text = styles.STYLES[style](script, loop)
    source = _IMPORTS.replace("SEED", str(seed % 1000)) + "\n".join(text) + "\n"
    return Shape(
        seed, source.lstrip("\n"), script.labels, parts, frozenset(script.appends),
        script.resumes_itself,
    )  # fmt: skip


def _add_parts(script: Script, is_over_epochs: bool) -> tuple[str, ...]:
    # Scripts of all lengths: some are nearly bare, some have everything.
    density = script.random.choice((0.4, 0.8, 1.2))
    found = [name for name, (share, _) in PARTS.items() if script.chance(share * density)]
    if "patience" in found and "evaluation" not in found:
        found.insert(0, "evaluation")
    if "replay" in found:
        # It adds rows to a batch, and a bank has one entry for each of them.
        found = [name for name in found if name not in ("memory bank", "confusion")]
    if not is_over_epochs or script.labels["folds"] == "yes":
        found = [name for name in found if name != "last checkpoint"]
    for name in found:
        PARTS[name][1](script)
    return tuple(found)
