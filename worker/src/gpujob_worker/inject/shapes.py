"""The shapes of the batches with which a module is called, and whether they vary."""

from collections import Counter
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import CallInputs

# Reading a call's shapes takes some microseconds, and the first calls are enough.
CALLS_WATCHED = 256
# Calls with further shapes are only counted.
SHAPES_KEPT = 64

Signature = tuple[Any, ...]


def of_any_size(signature: Signature) -> Signature:
    """Returns the part of the signature that matters to code compiled for any size.

    Torch compiles separate code for dimensions of 0 and 1.
    """
    return tuple(
        (tuple(min(size, 2) for size in leaf[0]), leaf[1]) if isinstance(leaf, tuple) else leaf
        for leaf in signature
    )


class SeenShapes:
    """Counts the shapes of a module's calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._calls_of: Counter[Signature] = Counter()

    @property
    def watches(self) -> bool:
        return self.calls < CALLS_WATCHED

    def saw(self, inputs: CallInputs) -> None:
        signature = inputs.signature
        self.calls += 1
        if signature in self._calls_of or len(self._calls_of) < SHAPES_KEPT:
            self._calls_of[signature] += 1

    def vary(self, inputs: CallInputs) -> bool:
        """Returns whether calls like this one vary.

        They do if they differ in more than their number of samples, or if most of them have another
        number. A smaller last batch of each pass does not count.
        """
        own, alike = inputs.signature, self._alike(inputs)
        if any(_of_a_sample(other) != _of_a_sample(own) for other in alike):
            return True
        return 2 * alike[own] < sum(alike.values())

    def smaller(self, inputs: CallInputs) -> CallInputs | None:
        """Returns a part of the call as small as those seen, or None if none was smaller."""
        alike = self._alike(inputs)
        leaves = tuple(
            _cut(leaf, [other[index][0] for other in alike])
            if isinstance(leaf, torch.Tensor)
            else leaf
            for index, leaf in enumerate(inputs.leaves)
        )
        found = inputs.with_leaves(leaves)
        return None if found.signature == inputs.signature else found

    def _alike(self, inputs: CallInputs) -> Counter[Signature]:
        own = of_any_size(inputs.signature)
        known = ((one, calls) for one, calls in self._calls_of.items() if of_any_size(one) == own)
        return Counter(dict(known))


def _of_a_sample(signature: Signature) -> Signature:
    return tuple((leaf[0][1:], leaf[1]) if isinstance(leaf, tuple) else leaf for leaf in signature)


def _cut(tensor: torch.Tensor, shapes: list[tuple[int, ...]]) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return tensor
    for dimension, size in enumerate(tensor.shape):
        least = min([size, *(shape[dimension] for shape in shapes)])
        if least < size:
            tensor = tensor.narrow(dimension, 0, least).contiguous()
    return tensor
