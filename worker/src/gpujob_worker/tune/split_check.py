"""Checks on a few rows of a real batch that splitting this module's forward changes nothing."""

import torch

from gpujob_worker.inject.call_inputs import (
    INDIVISIBLE,
    differentiable_leaves,
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
from gpujob_worker.probe.side_effects import RandomStates, no_trace
from gpujob_worker.tune.probe import probe

CHECK_ROWS = 6
# Without TF32, whose rounding alone differs by more between a batch and its parts.
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5}
_TOLERANCE_OTHER = 3e-2


def split_refusal(root: Root, recorded: RecordedCall) -> str | None:
    """Why the root must not be split; None when the check found no difference.

    The check itself needs the memory of `CHECK_ROWS` samples only.
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
    try:
        with no_trace(module), without_tf32():
            return _difference(root, few)
    except NotSplittableError as error:
        return f"{error}: a value over the whole batch could be weighted wrongly"
    except Exception as error:
        return f"a probe failed: {type(error).__name__}: {error}"[:160]


def _difference(root: Root, few: RecordedCall) -> str | None:
    module = root.module
    parameters = trainable(module)
    call = module._call_impl  # pyright: ignore[reportPrivateUsage]
    before, states = observe(module), RandomStates()
    with without_dropout():
        whole = probe(lambda inputs: inputs.call(call), parameters, few)
        changed = state_refusal(before, observe(module))
        if changed is not None:
            return changed
        if states.drawn:
            return "forward draws random numbers other than dropout's"
        rows = few.inputs.rows
        assert rows is not None
        parts = probe(
            lambda inputs: chunked_call(call, module, inputs, max(1, rows // 3)), parameters, few
        )
    outputs, gradients = whole.compare(parts)
    tolerance = _TOLERANCE.get(few.autocast or parameters[0].dtype, _TOLERANCE_OTHER)
    worst = max(outputs.relative_error, gradients.relative_error)
    if worst > tolerance:
        return (
            f"samples influence each other: split differs by {worst:.1e}, allowed {tolerance:.0e}"
        )
    return _outside(root, few, parameters)


def _outside(root: Root, few: RecordedCall, parameters: list[torch.Tensor]) -> str | None:
    inputs = few.inputs.detached()
    with torch.enable_grad(), few.around():
        leaves = differentiable_leaves(inputs.call(root.module._call_impl))  # pyright: ignore[reportPrivateUsage]
    known = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
    if leaves_outside(leaves, parameters + known):
        return "forward uses learning tensors that are not its parameters"
    return None
