"""The difference between two outputs, in figures that do not depend on their scale."""

from dataclasses import dataclass

import torch

# Differences that are no larger are rounding, whatever the reference is.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of one output over all samples: root mean square of a row's 2-norm, and the largest
    entry.

    A single row may be close to zero, so its own size is no measure of its error.
    """

    row: float
    largest: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Of some rows of one output. Errors are in percent.

    `relative`: 2-norm of the difference by that of as many rows of the usual size. `row`: the same
    of the worst row. `largest`: the largest difference, by the largest entry of all samples. `rows`
    counts places with a largest entry, and `other` those in which it is another one.
    """

    relative: float = 0.0
    row: float = 0.0
    largest: float = 0.0
    rows: int = 0
    other: int = 0


def scale_of(written: torch.Tensor) -> Scale:
    """Returns the scale of an output. Places that are not finite are left out."""
    if not written.is_floating_point() or not written.numel():
        return Scale(0.0, 0.0)
    flat = torch.where(torch.isfinite(written), written, 0).double().reshape(len(written), -1)
    return Scale(float(flat.norm()) / len(written) ** 0.5, _largest(flat))


def difference(
    ours: torch.Tensor, written: torch.Tensor, *, scale: Scale | None = None, tie: float = 0.0
) -> Difference:
    """Returns the difference of two tensors of equal shape and type.

    Places that are not finite in the reference are left out. A largest entry that the reference
    has within `tie` of its own does not count as another one. Values that are no real floats
    differ in the share of unequal ones. The scale is that of `written` by default.
    """
    if not written.is_floating_point():
        unequal = (ours != written).double().mean().item() if written.numel() else 0.0
        return Difference(relative=100 * unequal)
    scale = scale or scale_of(written)
    finite = torch.isfinite(written)
    expected = torch.where(finite, written, 0).double()
    found = torch.where(finite, ours, 0).double()
    apart = (found - expected).reshape(len(written), -1)
    rows, other = _largest_entries(found, expected, tie)
    return Difference(
        relative=_percent(float(apart.norm()), scale.row * len(written) ** 0.5),
        row=_percent(float(apart.norm(dim=1).max()) if apart.numel() else 0.0, scale.row),
        largest=_percent(_largest(apart), scale.largest),
        rows=rows,
        other=other,
    )


def _largest(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _percent(apart: float, whole: float) -> float:
    if apart <= _ROUNDING:
        return 0.0
    return 100 * apart / whole if whole > 0 else float("inf")


def _largest_entries(found: torch.Tensor, expected: torch.Tensor, tie: float) -> tuple[int, int]:
    """Returns the number of places with a largest entry, and how many have another one."""
    if expected.dim() < 2 or expected.shape[-1] < 2:
        return 0, 0
    entries = expected.reshape(-1, expected.shape[-1])
    ours = found.reshape(-1, expected.shape[-1]).argmax(dim=1, keepdim=True)
    behind = entries.max(dim=1).values - entries.gather(1, ours).squeeze(1)
    return len(entries), int((behind > tie).sum())
