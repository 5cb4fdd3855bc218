"""A training script that is being put together: its pieces, and how they name what they keep.

Lines write `$name` for a variable that lives longer than one turn of the loop. A style of script
decides what that becomes: a global, a local of `main`, an attribute of a trainer. Names without `$`
are locals of the turn: the batch `x, y, i` (inputs, targets, row numbers), `pred`, `loss`, `epoch`.
"""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_NAME = re.compile(r"\$(\w+)")
_BOUND = re.compile(r"^\s*((?:\$\w+, )*\$\w+) [-+*/|]?= ")

ROWS, FEATURES, OUTPUTS = 48, 6, 3

Lines = list[str]


def lines() -> Lines:
    return []


@dataclass
class Script:
    """Pieces by the place at which they stand; a part of a script adds to several of them."""

    random: random.Random
    epochs: int = 5
    batch: int = 8
    accumulation: int = 1
    labels: dict[str, str] = field(default_factory=dict[str, str])

    top: Lines = field(default_factory=lines)
    data: Lines = field(default_factory=lines)
    setup: Lines = field(default_factory=lines)
    epoch_start: Lines = field(default_factory=lines)
    inputs: Lines = field(default_factory=lines)
    forward: Lines = field(default_factory=lines)
    losses: Lines = field(default_factory=lines)
    gradients: Lines = field(default_factory=lines)
    stepped: Lines = field(default_factory=lines)
    batch_end: Lines = field(default_factory=lines)
    evaluation: Lines = field(default_factory=lines)
    epoch_end: Lines = field(default_factory=lines)
    # Before the results are printed, and what is printed.
    finish: Lines = field(default_factory=lines)
    results: Lines = field(default_factory=lines)
    # The head of a `with` around all of the training.
    around: str = ""

    # Expressions: what the model learns, and all of its tensors by a key.
    parameters: str = "$model.parameters()"
    tensors: str = "$model.state_dict().items()"
    is_module: bool = True
    is_classifier: bool = True
    ends_early: bool = False
    # Files that a second run from the beginning appends to, and whether it begins elsewhere.
    appends: set[str] = field(default_factory=set[str])
    resumes_itself: bool = False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def one_of(self, label: str, choices: dict[str, float]) -> str:
        """A choice by weight, which is noted under the label."""
        found = self.random.choices(list(choices), list(choices.values()))[0]
        self.labels[label] = found
        return found

    @property
    def batches(self) -> int:
        """Batches of an epoch, at least."""
        return ROWS // self.batch

    @property
    def steps_of_epoch(self) -> int:
        return max(1, self.batches // self.accumulation)


Part = Callable[[Script], None]


def used(text: Lines) -> list[str]:
    return sorted({name for line in text for name in _NAME.findall(line)})


def bound(text: Lines) -> list[str]:
    """Names that the lines give another value, rather than change what they hold."""
    found: set[str] = set()
    for line in text:
        match = _BOUND.match(line)
        if match is not None:
            found.update(_NAME.findall(match[1]))
    return sorted(found)


def named(text: Lines, prefix: str) -> Lines:
    """With `$name` as `prefix` and the name."""
    return [_NAME.sub(lambda match: prefix + match[1], line) for line in text]


def indented(text: Sequence[str], levels: int = 1) -> Lines:
    return ["    " * levels + line if line else line for line in text]
