"""Selects the values of an output that a look compares: all, or every n-th if they take too much
memory.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Bytes that a value takes until backward.
VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class OutputSample:
    """The values of one output that are compared, by rows.

    `shape` is that of the output of a call with `rows` of the batch's `total` rows. `total` is None
    if the batch was not divided. `rows` is None if the output has no rows, and counts as one then.
    """

    shape: torch.Size
    rows: int | None
    total: int | None
    every: int = 1
    offset: int = 0

    def fits(self, output: torch.Tensor) -> bool:
        """Returns whether this output of the whole batch begins with the rows of the sample."""
        if self.total is None:
            return output.shape == self.shape
        if self.rows is None or output.dim() != len(self.shape):
            return False
        rest = output.shape[1:] == self.shape[1:]
        return rest and output.shape[0] * self.rows == self.shape[0] * self.total

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """Returns the sampled values in float64, with shape (rows, kept).

        `values` are the output of the whole batch, its gradient, or the output of the rows alone.
        """
        first = values.narrow(0, 0, self.shape[0]) if self.rows is not None else values
        by_row = first.reshape(self.rows or 1, -1)
        return by_row[:, self.offset :: self.every].double()


def samples_within(
    outputs: Sequence[torch.Tensor],
    kept_bytes_max: int,
    *,
    rows: int | None,
    total: int | None,
    turn: int,
) -> list[OutputSample]:
    """Returns a sample of each output, which together keep about `kept_bytes_max`.

    `turn` counts the looks, each of which begins at another value. A sample's values are spread
    evenly over the output, and not in the same places of each of its rows or columns.
    """
    values = sum(output.numel() for output in outputs)
    wanted = -(-values * VALUE_BYTES // kept_bytes_max)
    return [_sample(output.shape, wanted, rows, total, turn) for output in outputs]


def _sample(
    shape: torch.Size, wanted: int, rows: int | None, total: int | None, turn: int
) -> OutputSample:
    if rows is not None and (not shape or shape[0] % rows):
        rows = None
    in_a_row = shape.numel() // (rows or 1)
    # Small outputs are kept whole.
    if wanted <= 1 or in_a_row < wanted * wanted:
        return OutputSample(shape, rows, total)
    steps = range(wanted, 2 * wanted + 64)
    every = next((step for step in steps if _crosses(step, shape)), wanted)
    return OutputSample(shape, rows, total, every, turn % every)


def _crosses(step: int, shape: torch.Size) -> bool:
    """Returns whether steps of this width meet different places in each row, column or plane."""
    return all(size == 1 or math.gcd(step, size) == 1 for size in shape[1:])


def difference(sample: OutputSample, ours: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """Returns what the settings change. `ours` is sampled already, `written` is the output as
    written.
    """
    if not written.is_floating_point() or written.shape != sample.shape:
        return torch.zeros_like(ours)
    return ours - sample.of(written)
