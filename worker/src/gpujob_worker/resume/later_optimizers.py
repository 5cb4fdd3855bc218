"""An optimizer that a script made in an earlier turn of its loops, such as one for all layers.

A resume does not pass the line that made it. Torch's optimizers consist of their groups, their
defaults and their state per parameter, as a copy of them does.
"""

import collections
from collections.abc import Iterable
from typing import Any

import torch

LATER = "later optimizer"
# LBFGS keeps a list of its parameters in addition to its groups.
KINDS: dict[str, type[torch.optim.Optimizer]] = {
    kind.__name__: kind
    for kind in vars(torch.optim).values()
    if isinstance(kind, type)
    and issubclass(kind, torch.optim.Optimizer)
    and kind not in (torch.optim.Optimizer, torch.optim.LBFGS)
}


def is_of_torch(optimizer: Any) -> bool:
    return KINDS.get(type(optimizer).__name__) is type(optimizer)


def empty(name: str) -> torch.optim.Optimizer:
    """Returns an empty optimizer. Raises `LookupError` for a class that this torch does
    not have.
    """
    kind = KINDS[name]
    return kind.__new__(kind)


def fill(made: Any, defaults: Any, groups: Any, state: Iterable[tuple[Any, Any]]) -> None:
    kept: Any = collections.defaultdict(dict)
    kept.update(state)
    made.__setstate__({"defaults": defaults, "param_groups": groups, "state": kept})
