"""Measures how far two computations of the same samples differ, sample by sample.

A norm over a large batch hardly shows a sample that is dropped because of the others.
"""

import math
from collections.abc import Iterator

import torch

# This many elements take 16 MiB in float64.
_ELEMENTS_AT_ONCE = 2**21
# Maximum part of integers and truth values that may differ. Rounding changes these in near ties,
# such as a predicted class.
INTEGERS_DIFFERENT_MAX = 0.02


class Reference:
    """One output of the whole batch, samples first, to which parts of it are compared."""

    def __init__(self, whole: torch.Tensor) -> None:
        self._whole = whole
        norms = torch.cat([_norms(_finite(part)) for part in _parts(whole)])
        # The scale of a sample that is small next to the others, because its sum may cancel out.
        self._usual = float(norms.median()) if len(norms) else 0.0
        self._norm = float(norms.square().sum().sqrt())
        self._squares, self._different = 0.0, 0

    def compare(self, part: torch.Tensor, start: int) -> float:
        """Returns the worst relative difference of a sample in the part, which begins at row
        `start`.
        """
        rows = self._whole.narrow(0, start, len(part))
        if rows.shape != part.shape or rows.dtype != part.dtype:
            return math.inf
        if not (rows.is_floating_point() or rows.is_complex()):
            self._different += int((rows != part).sum())
            return 0.0
        worst = 0.0
        for ours, theirs in zip(_parts(part), _parts(rows), strict=True):
            apart = _norms(_apart(theirs, ours))
            if not bool(apart.isfinite().all()):
                return math.inf
            self._squares += float(apart.square().sum())
            scale = _norms(_finite(theirs)).clamp_(min=self._usual)
            relative = torch.where(apart == 0, 0.0, apart / scale)
            worst = max(worst, float(relative.max()))
        return worst

    @property
    def overall(self) -> float:
        """The relative difference over all parts that were compared."""
        if self._different > INTEGERS_DIFFERENT_MAX * self._whole.numel():
            return math.inf
        if self._squares == 0.0:
            return 0.0
        return math.sqrt(self._squares) / self._norm if self._norm else math.inf


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields groups of samples that may be read in float64 together; all samples if they
    are few.
    """
    each = max(1, tensor[0].numel()) if len(tensor) else 1
    yield from tensor.split(max(1, _ELEMENTS_AT_ONCE // each))


def _norms(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the 2-norm of each sample in float64."""
    plain = tensor.detach().resolve_conj()
    reals = torch.view_as_real(plain) if plain.is_complex() else plain
    if reals.dim() == 1:
        return reals.double().abs()
    return torch.linalg.vector_norm(reals.double().flatten(1), dim=1)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with zeros in place of values that are not finite, such as the logits of
    masked words.
    """
    plain = tensor.detach().resolve_conj()
    return torch.where(plain.isfinite(), plain, 0)


def _apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Returns the difference. Infinities and NaN that both have in the same place count as no
    difference.
    """
    wide = torch.complex128 if one.is_complex() else torch.float64
    same = (one == other) | ((one != one) & (other != other))
    return torch.where(same, 0.0, one.to(wide) - other.to(wide))
