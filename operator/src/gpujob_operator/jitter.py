"""Keeps clients out of step that would otherwise repeat a request at the same time."""

import random
from collections.abc import Callable

Uniform = Callable[[float, float], float]


def jittered(seconds: float, uniform: Uniform = random.uniform) -> float:
    """Returns a random wait between half of this one and all of it."""
    return uniform(seconds / 2, seconds)
