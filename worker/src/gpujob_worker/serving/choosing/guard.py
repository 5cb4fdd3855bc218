"""Compares the answers of a backend with those of the model as written, before it is timed.

Finite numbers, names, shapes and types; then errors and largest entries, on every kind of batch
(`cases`). An answer must not depend on its neighbours, so a batch mixing its rows, a BatchNorm in
training mode and padding that leaks all show. Answers are compared after the last call, so a buffer
that the next call overwrites shows too.

A bound is never tighter than the noise floor: the difference between the reference in batches and
sample by sample.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from gpujob_api.serving import Accuracy
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.choosing.difference import Difference, Scale, difference, scale_of
from gpujob_worker.serving.rows import count, padded, rows_of

# Fewer places show no share of disagreement, so none may disagree.
AGREEMENT_ROWS_MIN = 200
# A single row or entry may differ by this much more than all together.
ROW_FACTOR, LARGEST_FACTOR = 5.0, 10.0
NOISE_FACTOR = 2.0
# Above this, or above the bound if that is higher, the model itself depends on its neighbours.
NOISE_PERCENT_MAX = 0.1

Metric = Callable[[Tensors], float]
SINGLE_MAX = 16
BATCHES_A_SIZE = 2


@dataclass(frozen=True, slots=True)
class Case:
    """A batch of calibration rows, padded to `size` by repeating the last one.

    `name` completes the sentence "relative error 7.1 % <name>".
    """

    name: str
    rows: tuple[int, ...]
    size: int
    # The whole calibration set is made of these, in order, without the repeated rows.
    whole: bool = False


def cases(samples: int, sizes: tuple[int, ...]) -> Iterator[Case]:
    """Yields the batches for this number of calibration samples.

    They are single samples, and batches of every size, ragged, shuffled and of the whole set. Two
    batches of one size in a row have different rows, so that answers of the previous one show.
    `sizes` are ascending.
    """
    smallest, largest = sizes[0], sizes[-1]
    step = max(1, samples // SINGLE_MAX)
    for row in list(range(0, samples, step))[:SINGLE_MAX]:
        yield Case("at batch 1", (row,), smallest)
    shuffled = list(range(samples))
    random.Random(0).shuffle(shuffled)  # noqa: S311 - the same order in every run
    start = 0
    for size in sizes:
        if size == 1:
            continue
        for _ in range(BATCHES_A_SIZE):
            rows = tuple((start + number) % samples for number in range(size))
            start += size
            yield Case(f"at batch {size}", rows, size)
        ragged = tuple((start + number) % samples for number in range(size - 1))
        yield Case(f"at batch {size - 1} padded to {size}", ragged, size)
        mixed = tuple(shuffled[(start + number) % samples] for number in range(size))
        yield Case(f"on a shuffled batch of {size}", mixed, size)
    for first in range(0, samples, largest):
        rows = tuple(range(first, min(first + largest, samples)))
        yield Case("on the calibration set", rows, largest, whole=True)


@dataclass(frozen=True, slots=True)
class Noise:
    """The reference's own noise in one output: errors in percent, and the largest difference."""

    relative_percent: float = 0.0
    row_percent: float = 0.0
    largest_percent: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True, slots=True)
class Reference:
    """Calibration samples, and the answers of the model as written."""

    inputs: Tensors
    outputs: Tensors
    noise: Mapping[str, Noise]
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problem` is None if the backend is accepted. Figures are None if it gave no answers."""

    problem: str | None
    relative_error_percent: float | None = None
    agreement_percent: float | None = None


@dataclass(slots=True)
class _Worst:
    """What was found so far, over all cases of one output."""

    rows: int = 0
    other: int = 0
    relative: float = 0.0


def noise_of(batched: Tensors, single: Tensors) -> dict[str, Noise]:
    """Returns the noise floor: answers of the reference in batches, and sample by sample."""
    found: dict[str, Noise] = {}
    for name, written in batched.items():
        apart = difference(single[name], written)
        largest = 0.0
        if written.is_floating_point() and written.numel():
            gap = (single[name].double() - written.double()).abs()
            largest = float(torch.nan_to_num(gap, nan=0.0, posinf=0.0).max())
        found[name] = Noise(apart.relative, apart.row, apart.largest, largest)
    return found


def neighbour_problem(noise: Mapping[str, Noise], accuracy: Accuracy) -> str | None:
    """Returns why nothing can be compared: the model as written depends on its neighbours."""
    bound = max(NOISE_PERCENT_MAX, accuracy.max_relative_error_percent)
    for name, one in noise.items():
        if not one.relative_percent <= bound:
            return (
                f"{name}: the model as written answers differently alone and in a batch:"
                f" {_percent(one.relative_percent)} apart, at most {_percent(bound)}"
            )
    return None


def judge(
    run: Callable[[Tensors], Tensors],
    reference: Reference,
    sizes: tuple[int, ...],
    accuracy: Accuracy,
    metric: Metric | None = None,
) -> Verdict:
    """Runs a backend on all cases and compares. `sizes` are those that it will be given."""
    answers: list[tuple[Case, Tensors]] = []
    for case in cases(count(reference.inputs), sizes):
        batch = padded(rows_of(reference.inputs, case.rows), case.size)
        given = {name: tensor.clone() for name, tensor in batch.items()}
        try:
            outputs = run(given)
        except Exception as error:
            return Verdict(f"{type(error).__name__} {case.name}: {_line(error)}")
        for name, tensor in given.items():
            if not _same(tensor, batch[name]):
                return Verdict(f"changes its input {name} {case.name}")
        # A copy would hide a buffer that the next call overwrites.
        answers.append((case, outputs))
    worst = {name: _Worst() for name in reference.outputs}
    problem: str | None = None
    scales = {name: scale_of(written) for name, written in reference.outputs.items()}
    groups: dict[str, list[tuple[Case, Tensors]]] = {}
    for case, outputs in answers:
        problem = problem or _form_problem(outputs, reference, case)
        groups.setdefault(case.name, []).append((case, outputs))
    for group in groups.values():
        if problem is not None:
            break
        problem = _values_problem(group, reference, scales, accuracy, worst)
    return _verdict(problem, answers, reference, accuracy, worst, metric)


def _verdict(
    problem: str | None,
    answers: list[tuple[Case, Tensors]],
    reference: Reference,
    accuracy: Accuracy,
    worst: Mapping[str, _Worst],
    metric: Metric | None,
) -> Verdict:
    agreement = min(
        (100 * (1 - one.other / one.rows) for one in worst.values() if one.rows), default=None
    )
    error = max((one.relative for one in worst.values()), default=0.0)
    problem = problem or _agreement_problem(worst, accuracy)
    if problem is None and metric is not None and reference.metric is not None:
        problem = _metric_problem(metric, answers, reference, accuracy)
    return Verdict(problem, error if math.isfinite(error) else None, agreement)


def _form_problem(outputs: Tensors, reference: Reference, case: Case) -> str | None:
    missing = set(reference.outputs) - set(outputs)
    unknown = set(outputs) - set(reference.outputs)
    if missing or unknown:
        names = ", ".join(sorted(outputs)) or "none"
        return f"outputs {names} instead of {', '.join(sorted(reference.outputs))} {case.name}"
    for name, written in reference.outputs.items():
        ours = outputs[name]
        if ours.dtype != written.dtype:
            return f"{name}: type {ours.dtype} instead of {written.dtype} {case.name}"
        shape = (case.size, *written.shape[1:])
        if tuple(ours.shape) != shape:
            return f"{name}: shape {list(ours.shape)} instead of {list(shape)} {case.name}"
    return None


def _values_problem(
    group: list[tuple[Case, Tensors]],
    reference: Reference,
    scales: Mapping[str, Scale],
    accuracy: Accuracy,
    worst: Mapping[str, _Worst],
) -> str | None:
    """Compares the batches of one kind together, because few rows have a chance error."""
    case = group[0][0]
    rows = [row for one, _ in group for row in one.rows]
    expected = rows_of(reference.outputs, rows)
    for name, written in expected.items():
        ours = torch.cat([outputs[name][: len(one.rows)] for one, outputs in group])
        if written.is_floating_point() and not _finite_alike(ours, written):
            return f"{name}: a number that is not finite {case.name}"
        noise = reference.noise.get(name, Noise())
        tie = NOISE_FACTOR * noise.absolute
        apart = difference(ours, written, scale=scales[name], tie=tie)
        one = worst[name]
        one.relative = max(one.relative, apart.relative)
        if case.whole:
            one.rows += apart.rows
            one.other += apart.other
        problem = _error_problem(apart, noise, accuracy)
        if problem is not None:
            return f"{problem} {case.name}" + (f" in {name}" if len(expected) > 1 else "")
    return None


def _error_problem(apart: Difference, noise: Noise, accuracy: Accuracy) -> str | None:
    bound = accuracy.max_relative_error_percent
    figures = (
        ("relative error", apart.relative, bound, noise.relative_percent),
        ("relative error of a row", apart.row, ROW_FACTOR * bound, noise.row_percent),
        ("largest error", apart.largest, LARGEST_FACTOR * bound, noise.largest_percent),
    )
    for name, value, most, floor in figures:
        most = max(most, NOISE_FACTOR * floor)
        if not value <= most:
            return f"{name} {_percent(value)}, at most {_percent(most)}"
    return None


def _agreement_problem(worst: Mapping[str, _Worst], accuracy: Accuracy) -> str | None:
    for name, one in worst.items():
        if not one.other:
            continue
        agreement = 100 * (1 - one.other / one.rows)
        if one.rows < AGREEMENT_ROWS_MIN:
            return (
                f"{name}: another largest entry in {one.other} of {one.rows} rows; fewer than"
                f" {AGREEMENT_ROWS_MIN} rows permit none"
            )
        if agreement < accuracy.min_agreement_percent:
            least = _percent(accuracy.min_agreement_percent)
            return f"{name}: agreement {_percent(agreement)}, at least {least}"
    return None


def _metric_problem(
    metric: Metric,
    answers: list[tuple[Case, Tensors]],
    reference: Reference,
    accuracy: Accuracy,
) -> str | None:
    try:
        value = float(metric(whole_set(answers)))
    except Exception as error:
        return f"the metric raised {type(error).__name__}: {_line(error)}"
    written = reference.metric
    assert written is not None
    drop = 100 * (written - value) / abs(written) if written else 100 * (written - value)
    if not drop <= accuracy.max_drop_percent:
        most = _percent(accuracy.max_drop_percent)
        return f"the metric falls by {_percent(drop)}, at most {most}"
    return None


def whole_set(answers: list[tuple[Case, Tensors]]) -> dict[str, torch.Tensor]:
    """Returns the answers to the whole calibration set, in its order and without padding."""
    parts = [(len(case.rows), outputs) for case, outputs in answers if case.whole]
    names = parts[0][1]
    return {name: torch.cat([outputs[name][:rows] for rows, outputs in parts]) for name in names}


def _finite_alike(ours: torch.Tensor, written: torch.Tensor) -> bool:
    """Returns whether numbers that are not finite are the same ones in the same places."""
    finite = torch.isfinite(written)
    if not torch.equal(torch.isfinite(ours), finite):
        return False
    return bool(finite.all()) or _same(ours[~finite], written[~finite])


def _same(ours: torch.Tensor, written: torch.Tensor) -> bool:
    same = ours == written
    if written.is_floating_point():
        same |= torch.isnan(ours) & torch.isnan(written)
    return bool(same.all())


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return f"{value}"
    return f"{value:.1f} %" if value >= 1 or value == 0 else f"{value:.2g} %"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else "no message"
