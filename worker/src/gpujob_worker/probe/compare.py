"""Paired, interleaved timing with a confidence interval, and the closeness of two runs' numbers."""

import math
import statistics
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from gpujob_api.quantities import format_ratio

# This many elements take 16 MiB in float64.
PIECE_ELEMENTS = 2**21
# In units of the type's `eps`. Each of two steps rounds a parameter at most twice, for the decay
# and for the rest, by half a unit in the last place each time.
_STEP_ROUNDING = 2.0
PAIRS_MIN = 5
# A gain that does not show in the mean of this many pairs is not worth more of them.
PAIRS_FUTILE = 10
PAIRS_MAX = 40
# Every run of a clearly slower candidate took this many times the longest run of the other.
CLEARLY_SLOWER = 1.5
# The factor after one run of each. The candidate must also take `PAUSE_SECONDS` longer, because a
# busy machine may pause that long.
CLEARLY_SLOWER_AT_ONCE = 3.0
PAUSE_SECONDS = 0.2
# Minimum number of pairs for a rejection by the interval. An acceptance takes `PAIRS_MIN` if the
# noise of a run is not known.
PAIRS_TO_REJECT = 3
# Two-sided 95 % quantiles of Student's t for n - 1 degrees of freedom, n = 2 to `PAIRS_MAX`.
# fmt: off
_STUDENT_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042, 2.040, 2.037, 2.035, 2.032, 2.030, 2.028, 2.026, 2.024, 2.023,
)
# fmt: on
_IMAGE_DIMENSIONS = 4
# The quantile for a known deviation.
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster the candidate is, as the geometric mean and its 95 % interval."""

    ratio: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        ratio, low, high = map(format_ratio, (self.ratio, self.low, self.high))
        return f"{ratio}x (95 % {low} to {high}, {self.pairs} pairs)"


def speedup(
    plain_seconds: Sequence[float],
    candidate_seconds: Sequence[float],
    noise: float | None = None,
) -> Speedup:
    """Returns the speed-up from paired times. Ratios are compared as logarithms, in which gain and
    loss weigh the same.

    `noise` is the known deviation of a run. It replaces that of fewer than `PAIRS_MIN` pairs,
    unless these deviate more.
    """
    logs = _logs(plain_seconds, candidate_seconds)
    mean = statistics.fmean(logs)
    if noise is not None and len(logs) < PAIRS_MIN and _is_within(logs, noise):
        half = _NORMAL * noise * math.sqrt(2 / len(logs))
        return Speedup(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
    if len(logs) < 2:
        return Speedup(math.exp(mean), 0.0, math.inf, len(logs))
    t = _STUDENT_T[min(len(logs), PAIRS_MAX) - 2]
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Speedup(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))


def _logs(plain_seconds: Sequence[float], candidate_seconds: Sequence[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(plain_seconds, candidate_seconds, strict=True)]


def _is_within(logs: Sequence[float], noise: float) -> bool:
    """Returns whether pairs deviate no more than two runs with this noise do."""
    return len(logs) < 2 or statistics.stdev(logs) <= noise * math.sqrt(2)


def measure_speedup(
    plain: Callable[[], float],
    candidate: Callable[[], float],
    has_time: Callable[[], bool],
    *,
    needed: float,
    noise: float | None = None,
) -> Speedup:
    """Runs both in turns (AB, BA, ...) until the interval decides against `needed`, or time is up.

    Each function runs once and returns its seconds. A candidate that is clearly slower is given up
    after the first pairs. An early acceptance takes `PAIRS_MIN` pairs, or a gain that is clear
    beyond the known `noise` and a pause of the machine. One pair is always run.

    Looking after every pair is a sequential test, so the interval of the last look covers 95 % for
    that look alone. In simulations of normal noise a candidate that is exactly as fast as `needed`
    was accepted 12 times in 100 and not 2.5 times. One that is 2 % slower than that was accepted
    once in 100 with pairs that differ by 5 %, and 6 times with pairs that differ by 20 %. With a
    known noise of 10 % these were 12 times and once if runs differ by 3.5 %, 13 and 3 times if they
    differ by 7 %, and 16 and 7 times if they differ by all of the 10 %. Reported gains are measured
    by `measure_pairs`.
    """
    first: list[float] = []
    second: list[float] = []
    while len(first) < PAIRS_MAX:
        _take_turn(plain, candidate, first, second)
        if not has_time() or is_clearly_slower(first, second):
            break
        if _decided(first, second, needed) or _is_clearly_faster(first, second, needed, noise):
            break
    return speedup(first, second, noise)


def measure_pairs(
    plain: Callable[[], float], candidate: Callable[[], float], pairs: int
) -> Speedup:
    """Runs both in turns, this many times each, whatever the result.

    Its interval is a true 95 % interval, unlike that of a measurement that ends once it is clear.
    """
    first: list[float] = []
    second: list[float] = []
    for _ in range(pairs):
        _take_turn(plain, candidate, first, second)
    return speedup(first, second)


def _take_turn(
    plain: Callable[[], float],
    candidate: Callable[[], float],
    first: list[float],
    second: list[float],
) -> None:
    """Runs each once. The one that runs first alternates."""
    if len(first) % 2 == 0:
        first.append(plain())
        second.append(candidate())
    else:
        second.append(candidate())
        first.append(plain())


def is_clearly_slower(plain: Sequence[float], candidate: Sequence[float]) -> bool:
    """Returns whether the candidate is not worth another run: no overlap, and far apart."""
    if len(plain) == 1 and candidate[0] - plain[0] < PAUSE_SECONDS:
        return False
    apart = CLEARLY_SLOWER if len(plain) > 1 else CLEARLY_SLOWER_AT_ONCE
    return min(candidate) > apart * max(plain)


def _is_clearly_faster(
    plain: Sequence[float], candidate: Sequence[float], needed: float, noise: float | None
) -> bool:
    """Returns whether fewer than `PAIRS_MIN` pairs prove a gain.

    The pairs must not deviate more than a known noise. The gain must exceed that noise and a pause
    of the machine.
    """
    if noise is None or len(plain) >= PAIRS_MIN or sum(plain) - sum(candidate) < PAUSE_SECONDS:
        return False
    logs = _logs(plain, candidate)
    return _is_within(logs, noise) and speedup(plain, candidate, noise).low > needed


def _decided(plain: Sequence[float], candidate: Sequence[float], needed: float) -> bool:
    pairs = len(plain)
    if pairs < PAIRS_TO_REJECT:
        return False
    found = speedup(plain, candidate)
    if found.high < needed:
        return True
    futile = pairs >= PAIRS_FUTILE and found.ratio < needed
    return futile or (pairs >= PAIRS_MIN and found.low > needed)


@dataclass(frozen=True, slots=True)
class Closeness:
    """Relative difference (2-norm over everything) and cosine between two lists of tensors."""

    relative_error: float
    cosine: float
    # Of answers: in how many places out of a hundred the largest entry is the same. None without
    # places.
    agreement_percent: float | None = None
    # The numbers are answers of a model.
    answers: bool = False

    def within(self, relative_error: float, cosine: float) -> bool:
        return self.relative_error <= relative_error and self.cosine >= cosine


def _reals(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor in float64. Complex numbers become pairs, because a cast would drop one
    part.
    """
    plain = tensor.detach().resolve_conj()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).double()


def _pieces(a: torch.Tensor, *others: torch.Tensor) -> Generator[tuple[torch.Tensor, ...]]:
    """Yields pieces of all tensors, cut alike across their longest dimension, so that none is too
    large.
    """
    if a.numel() <= PIECE_ELEMENTS or a.layout is not torch.strided:
        yield (a, *others)
        return
    longest = max(range(a.dim()), key=lambda dim: a.shape[dim])
    total = a.shape[longest]
    length = max(1, PIECE_ELEMENTS * total // a.numel())
    for start in range(0, total, length):
        here = min(length, total - start)
        yield from _pieces(*(tensor.narrow(longest, start, here) for tensor in (a, *others)))


def closeness(
    reference: Sequence[torch.Tensor | None], other: Sequence[torch.Tensor | None]
) -> Closeness:
    """Compares in float64, in pieces that take about 64 MiB together.

    A tensor that only one list has counts as infinitely different.
    """
    difference = norm = other_norm = product = 0.0
    for a, b in zip(reference, other, strict=True):
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return Closeness(math.inf, -1.0)
        for one, two in _pieces(a, b):
            x, y = _reals(one), _reals(two)
            difference += float((x - y).square().sum())
            norm += float(x.square().sum())
            other_norm += float(y.square().sum())
            product += float((x * y).sum())
    if not all(map(math.isfinite, (difference, norm, other_norm, product))):
        return Closeness(math.inf, -1.0)
    if norm == 0.0 or other_norm == 0.0:
        same = norm == other_norm
        return Closeness(0.0 if same else math.inf, 1.0 if same else -1.0)
    return Closeness(math.sqrt(difference / norm), product / math.sqrt(norm * other_norm))


def answer_closeness(reference: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> Closeness:
    """Compares the outputs of two calls: shapes and types, the numbers, and the largest entries.

    Types must be equal. Whole numbers, such as classes that the model chose, agree or not.
    """
    different = Closeness(math.inf, -1.0, 0.0, answers=True)
    alike = len(reference) == len(other) and all(
        a.shape == b.shape and a.dtype is b.dtype for a, b in zip(reference, other, strict=False)
    )
    if not alike:
        return different
    pairs = list(zip(reference, other, strict=True))
    real = [(a, b) for a, b in pairs if a.is_floating_point() or a.is_complex()]
    found = closeness([a for a, _ in real], [b for _, b in real])
    places = same = 0
    for a, b in pairs:
        chosen, others = _choices(a), _choices(b)
        if chosen is not None and others is not None:
            places += chosen.numel()
            same += int((chosen == others).sum())
    percent = 100.0 * same / places if places else None
    return Closeness(found.relative_error, found.cosine, percent, answers=True)


def _choices(answer: torch.Tensor) -> torch.Tensor | None:
    """Returns the class of each place, or None if the tensor has no dimension of classes.

    Classes are in the last dimension, or in the second one of images. Whole numbers are classes
    themselves.
    """
    if answer.is_complex() or answer.layout is not torch.strided or not answer.numel():
        return None
    if not answer.is_floating_point():
        return answer
    classes = 1 if answer.dim() >= _IMAGE_DIMENSIONS else answer.dim() - 1
    if answer.dim() < 2 or answer.shape[classes] < 2:
        return None
    return answer.argmax(dim=classes)


def update_error(
    start: Sequence[torch.Tensor],
    reference: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
) -> float:
    """Returns how far two updates of the same numbers differ, relative to the first (2-norm over
    all).

    Rounding a result to its type is no error of the update, and may exceed a small update. Compares
    in float64, in pieces that take about 80 MiB together.
    """
    difference = norm = 0.0
    for tensors in zip(start, reference, other, strict=True):
        rounding = _STEP_ROUNDING * torch.finfo(tensors[0].dtype).eps
        for pieces in _pieces(*tensors):
            before, x, y = map(_reals, pieces)
            beyond = (x - y).abs_().sub_(x.abs(), alpha=rounding).clamp_(min=0.0)
            difference += float(beyond.square_().sum())
            norm += float(x.sub_(before).square_().sum())
    if not math.isfinite(difference + norm):
        return math.inf
    if norm == 0.0:
        return 0.0 if difference == 0.0 else math.inf
    return math.sqrt(difference / norm)
