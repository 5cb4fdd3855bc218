"""Checks on a real batch that splitting this module's forward changes nothing.

A few samples first show what takes no more memory: layers, hooks, state, draws. Then the batch is
computed whole and in the very pieces that are to be used. Effects of the number of samples, such as
the capacity of an expert, do not show in a few of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import (
    INDIVISIBLE,
    CallInputs,
    differentiable_leaves,
    tensor_leaves,
    trainable,
)
from gpujob_worker.inject.ddp import one_call_refusal
from gpujob_worker.inject.guards import (
    leaves_outside,
    observe,
    parallel_wrapper,
    split_refusal_of_layers,
    state_refusal,
    without_dropout,
)
from gpujob_worker.inject.microbatch import NotSplittableError, chunked_call
from gpujob_worker.inject.process_flags import without_tf32
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.compare import closeness
from gpujob_worker.probe.side_effects import TORCH, Draws, no_trace
from gpujob_worker.run.failure import is_out_of_memory
from gpujob_worker.tune.probe import probe
from gpujob_worker.tune.row_difference import Reference
from gpujob_worker.tune.trial import few_rows

CHECK_ROWS = 6
# Number of pieces that are compared of a split finer than the requested one.
_FINER_PIECES = 4


@dataclass(frozen=True, slots=True)
class _Tolerance:
    """Relative differences (2-norms) that rounding explains.

    TF32 is off, because its rounding alone differs by more between a batch and its parts.
    """

    together: float
    # For the sample that differs most.
    sample: float
    # For gradients over a whole batch, whose terms may nearly cancel out.
    summed: float


_TOLERANCE = {
    torch.float64: _Tolerance(1e-9, 1e-7, 1e-7),
    torch.float32: _Tolerance(2e-5, 1e-3, 1e-3),
}
_TOLERANCE_OTHER = _Tolerance(3e-2, 0.3, 0.1)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Samples that may go through at once in a comparison, forward and backward or forward alone.

    With `finer`, the split may be made finer later without another comparison.
    """

    with_graph: int
    without_graph: int
    finer: bool = True


@dataclass(frozen=True, slots=True)
class Compared:
    """Why the split changes results, or None. `part` names the compared part if it is not the whole
    batch.
    """

    refusal: str | None = None
    part: str = ""


def split_refusal(root: Root, recorded: RecordedCall) -> str | None:
    """Returns why the root must not be split, or None if a few samples show no difference.

    The check needs the memory of `CHECK_ROWS` samples only.
    """
    module = root.module
    wrapper = parallel_wrapper(module)
    if wrapper is not None:
        return f"{wrapper} owns the gradients"
    reason = one_call_refusal(root.wrapper) or split_refusal_of_layers(module)
    if reason is not None:
        return reason
    rows = recorded.inputs.rows
    if rows is None or rows < 2:
        return "the call has no batch of at least 2 samples as first dimension"
    if not recorded.inputs.divisible:
        return INDIVISIBLE
    few = recorded.of(recorded.inputs.first(CHECK_ROWS).detached())
    return _checked(root, lambda: _difference(root, few))


class SplitCheck:
    """Compares the batch whole and in the pieces of a split, and remembers the results."""

    def __init__(self, *, limited: bool) -> None:
        self._limited = limited
        self._found: dict[tuple[int, int | None, int], Compared] = {}

    def compared(self, root: Root, recorded: RecordedCall, rows: int) -> Compared:
        """Compares each split once, because a limit may request the same split in each of the first
        steps.
        """
        key = (id(root.module), recorded.inputs.rows, rows)
        if key not in self._found:
            at_once = _within_limit(root, recorded, rows) if self._limited else None
            self._found[key] = compare(root, recorded, rows, at_once)
        return self._found[key]


def _within_limit(root: Root, recorded: RecordedCall, rows: int) -> AtOnce:
    """Returns how many samples fit into a memory limit at once.

    With a graph, as many fit as the split is to have, and twice as many without one. A batch that
    has gone through whole fits whole.
    """
    total = recorded.inputs.rows or rows
    if root.plan.rows_per_step is None and recorded.output_gradients:
        # Half of the batch, because gradients are held twice.
        return AtOnce(max(rows, total // 2), total)
    return AtOnce(rows, 2 * rows)


def compare(
    root: Root, recorded: RecordedCall, rows: int, at_once: AtOnce | None = None
) -> Compared:
    """Compares the batch whole and in pieces of `rows`: outputs without a graph, and gradients.

    `at_once` bounds both under a memory limit. Under a limit, or if memory runs out, the largest
    part that fits is compared, in pieces of at most half the part.
    """
    total = recorded.inputs.rows
    assert total is not None
    most = at_once or AtOnce(total, total, finer=False)
    counts: list[int] = []

    def outputs(part: int) -> str | None:
        sizes = [_piece(part, rows), *(_finer(rows) if most.finer else ())]
        return _outputs_differ(root, few_rows(recorded, part), sizes)

    def gradients(part: int) -> str | None:
        return _gradients_differ(root, few_rows(recorded, part), _piece(part, rows))

    for differ, bound in ((outputs, most.without_graph), (gradients, most.with_graph)):
        count, refusal = _on_largest(root, differ, min(total, max(CHECK_ROWS, bound)))
        if refusal is not None:
            return Compared(refusal)
        counts.append(count)
    if min(counts) >= total:
        return Compared()
    part = f"outputs of {counts[0]} and gradients of {counts[1]} samples"
    return Compared(part=f"{part} compared, as many as memory allows")


def _on_largest(
    root: Root, differ: Callable[[int], str | None], rows: int
) -> tuple[int, str | None]:
    """Compares `rows` samples, and half as many again and again while memory runs out."""
    while True:
        full: list[bool] = []

        def attempt(count: int, full: list[bool]) -> str | None:
            try:
                return differ(count)
            except Exception as error:
                if count < 2 * CHECK_ROWS or not is_out_of_memory(error):
                    raise
            full.append(True)
            return None

        refusal = _checked(root, lambda rows=rows, full=full: attempt(rows, full))
        if not full:
            return rows, refusal
        # The failed run is freed only here, with the error that held it.
        rows //= 2


def _checked(root: Root, check: Callable[[], str | None]) -> str | None:
    try:
        with no_trace(root.module), without_tf32():
            return check()
    except NotSplittableError as error:
        return f"{error}: a value over the whole batch could be weighted wrongly"
    except Exception as error:
        return f"a probe failed: {type(error).__name__}: {error}"[:160]


def _difference(root: Root, few: RecordedCall) -> str | None:
    module = root.module
    parameters = trainable(module)
    call = module._call_impl  # pyright: ignore[reportPrivateUsage]
    before, draws = observe(module), Draws(module)
    with without_dropout():
        whole = probe(lambda inputs: inputs.call(call), parameters, few)
        changed = state_refusal(before, observe(module))
        if changed is not None:
            return changed
        drawn = _drawn(draws)
        if drawn is not None:
            return drawn
        rows = few.inputs.rows
        assert rows is not None
        parts = probe(
            lambda inputs: chunked_call(call, module, inputs, max(1, rows // 3)), parameters, few
        )
    tolerance = _tolerance(root, few).together
    gradients = closeness(whole.gradients, parts.gradients).relative_error
    worst = max(gradients, _largest_difference(whole.outputs, parts.outputs))
    if worst > tolerance:
        return (
            f"samples influence each other: split differs by {worst:.1e}, allowed {tolerance:.0e}"
        )
    return _outside(root, few, parameters)


def _drawn(draws: Draws) -> str | None:
    """Returns the reason if the forward draws random numbers. A comparison runs without dropout."""
    source = draws.source
    if source is None:
        return None
    whose = "" if source == TORCH else f", of {source}"
    return f"forward draws random numbers other than dropout's{whose}"


def _largest_difference(whole: list[torch.Tensor], parts: list[torch.Tensor]) -> float:
    worst = 0.0
    for one, other in zip(whole, parts, strict=True):
        reference = Reference(one)
        found = reference.compare(other, 0)
        worst = max(worst, reference.overall if math.isfinite(found) else found)
    return worst


def _tolerance(root: Root, call: RecordedCall) -> _Tolerance:
    return _TOLERANCE.get(call.autocast or trainable(root.module)[0].dtype, _TOLERANCE_OTHER)


def _outside(root: Root, few: RecordedCall, parameters: list[torch.Tensor]) -> str | None:
    inputs = few.inputs.detached()
    with torch.enable_grad(), few.around():
        leaves = differentiable_leaves(inputs.call(root.module._call_impl))  # pyright: ignore[reportPrivateUsage]
    known = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
    if leaves_outside(leaves, parameters + known):
        return "forward uses learning tensors that are not its parameters"
    return None


def _piece(part: int, rows: int) -> int:
    """Returns the samples in a piece: `rows`, or half the part if the part is not larger than
    that.
    """
    return rows if rows < part else max(1, -(-part // 2))


def _finer(rows: int) -> Iterator[int]:
    """Yields the splits that may follow if this one turns out to be too coarse."""
    while rows > 1:
        rows = next(n for n in range(rows // 2, 0, -1) if rows % n == 0)
        yield rows


def _outputs_differ(root: Root, call: RecordedCall, sizes: list[int]) -> str | None:
    """Compares the real samples, and then a batch that repeats one of them.

    A layer that shares something out among samples, as experts with a capacity do, may have enough
    for each sample of this batch.
    """
    draws = Draws(root.module)
    found = _pieces_differ(root, call, call.inputs.detached(), sizes) or _drawn(draws)
    if found is not None:
        return found
    try:
        return _pieces_differ(root, call, _of_one_sample(call.inputs), sizes, "like ")
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # The script makes no such batch, so its module need not accept one.
        return None


def _of_one_sample(inputs: CallInputs) -> CallInputs:
    batched = inputs.batched()
    return inputs.with_leaves(
        tuple(
            leaf.detach()[:1].expand(leaf.shape).clone() if is_batched else leaf
            for leaf, is_batched in zip(inputs.leaves, batched, strict=True)
        )
    )


def _pieces_differ(
    root: Root, call: RecordedCall, inputs: CallInputs, sizes: list[int], kind: str = ""
) -> str | None:
    """Compares in pieces of `sizes`: the first size over the whole batch, finer ones over some
    pieces.
    """
    total = inputs.rows
    assert total is not None
    whole = _outputs(root, call, inputs, total)
    tolerance, batched = _tolerance(root, call), inputs.batched()
    for turn, size in enumerate(sizes):
        references = [Reference(leaf) for leaf in whole]
        worst, end = 0.0, total if turn == 0 else min(total, _FINER_PIECES * size)
        for start in range(0, end, size):
            piece = inputs.narrow(start, min(size, total - start), batched)
            leaves = _outputs(root, call, piece, piece.rows)
            for reference, leaf in zip(references, leaves, strict=True):
                worst = max(worst, reference.compare(leaf, start))
        together = max((each.overall for each in references), default=0.0)
        if worst > tolerance.sample or together > tolerance.together:
            text = f"of {total} {kind}samples whole and in pieces of {size} the outputs differ by"
            return f"samples influence each other: {text} {_amount(together, worst, tolerance)}"
    return None


def _amount(together: float, worst: float, tolerance: _Tolerance) -> str:
    overall = f"{100 * together:.3g} %, allowed {100 * tolerance.together:.1g} %"
    return f"{overall} (one sample by {100 * worst:.3g} %, allowed {100 * tolerance.sample:.2g} %)"


def _outputs(
    root: Root, call: RecordedCall, inputs: CallInputs, rows: int | None
) -> list[torch.Tensor]:
    """Returns all tensors that a call without a graph returns."""
    with torch.no_grad(), call.around(), without_dropout():
        output: Any = inputs.call(root.module._call_impl)  # pyright: ignore[reportPrivateUsage]
    leaves = tensor_leaves(output)
    if any(leaf.dim() == 0 or leaf.shape[0] != rows for leaf in leaves):
        raise NotSplittableError("an output does not have the samples first")
    return leaves


def _gradients_differ(root: Root, call: RecordedCall, size: int) -> str | None:
    module, parameters = root.module, trainable(root.module)
    function = module._call_impl  # pyright: ignore[reportPrivateUsage]
    with without_dropout():
        whole = probe(lambda inputs: inputs.call(function), parameters, call)
        parts = probe(lambda inputs: chunked_call(function, module, inputs, size), parameters, call)
    differ = closeness(whole.gradients, parts.gradients).relative_error
    allowed = _tolerance(root, call).summed
    if differ <= allowed:
        return None
    text = f"{call.inputs.rows} samples whole and in pieces of {size}"
    amount = f"{100 * differ:.3g} %, allowed {100 * allowed:.1g} %"
    return f"samples influence each other: of {text} the gradients differ by {amount}"
