"""Which values of an output a look compares: all, or every n-th where they take too much memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

# What a value takes until backward.
VALUE_BYTES = 8


@dataclass(frozen=True, slots=True)
class OutputSample:
    """The values of one output that are compared, by rows.

    `shape` is that of the output of a call with `rows` of the batch's `total` rows. `total` is None
    where the batch was not divided, and `rows` where the output has no rows; it counts as one then.
    """

    shape: torch.Size
    rows: int | None
    total: int | None
    every: int = 1
    offset: int = 0

    def fits(self, output: torch.Tensor) -> bool:
        """True if this output of the whole batch has the rows of the sample at its beginning."""
        if self.total is None:
            return output.shape == self.shape
        if self.rows is None or output.dim() != len(self.shape):
            return False
        rest = output.shape[1:] == self.shape[1:]
        return rest and output.shape[0] * self.rows == self.shape[0] * self.total

    def of(self, values: torch.Tensor) -> torch.Tensor:
        """The sampled values in float64, shape (rows, kept): of the output of the whole batch, of
        its gradient, or of the output of the rows alone.
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
    """A sample of each output, so that all together keep about `kept_bytes_max`.

    `turn` counts the looks, and each begins at another value. The values of a sample lie evenly in
    the output, and not in the same places of each of its rows or columns.
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
    # A few values are kept as they are.
    if wanted <= 1 or in_a_row < wanted * wanted:
        return OutputSample(shape, rows, total)
    steps = range(wanted, 2 * wanted + 64)
    every = next((step for step in steps if _crosses(step, shape)), wanted)
    return OutputSample(shape, rows, total, every, turn % every)


def _crosses(step: int, shape: torch.Size) -> bool:
    """True if steps of this width do not meet the same place in each row, column or plane."""
    return all(size == 1 or math.gcd(step, size) == 1 for size in shape[1:])


def difference(sample: OutputSample, ours: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    """What the settings change: `ours` is sampled already, `written` is the output as written."""
    if not written.is_floating_point() or written.shape != sample.shape:
        return torch.zeros_like(ours)
    return ours - sample.of(written)
