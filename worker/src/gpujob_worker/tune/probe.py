"""One probe: a forward and backward of the root on a recorded batch, with real output gradients.

A call that only answers is probed forward only.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch

from gpujob_worker.inject.call_inputs import (
    CallInputs,
    differentiable_leaves,
    tensor_leaves,
    trainable,
)
from gpujob_worker.inject.call_settings import switched
from gpujob_worker.inject.guards import without_dropout
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.compare import Closeness, answer_closeness, closeness
from gpujob_worker.probe.reachable import OwnGenerators
from gpujob_worker.probe.side_effects import RandomStates


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The gradients of a call, and those of its outputs that the loss uses."""

    outputs: list[torch.Tensor]
    gradients: list[torch.Tensor | None]
    # The outputs are answers, which are compared as such.
    answers: bool = False

    def kept(self) -> "ProbeResult":
        """Returns the result with answers that the next run cannot overwrite. A model may return
        one of its buffers, which it fills in each call.
        """
        if not self.answers:
            return self
        return replace(self, outputs=[output.clone() for output in self.outputs])

    def compare(self, other: "ProbeResult") -> tuple[Closeness, Closeness]:
        """Returns the closeness of outputs and of gradients. This result is the reference."""
        if self.answers:
            return answer_closeness(self.outputs, other.outputs), closeness([], [])
        outputs = [out for out in self.outputs if _counts(out)]
        others = [out for out in other.outputs if _counts(out)]
        if len(outputs) != len(others):
            return closeness([None], [torch.ones(1)]), closeness([None], [torch.ones(1)])
        return closeness(outputs, others), closeness(self.gradients, other.gradients)


def _counts(output: torch.Tensor) -> bool:
    return output.is_floating_point() or output.is_complex()


def probe(
    call: Callable[[CallInputs], Any],
    parameters: list[torch.Tensor],
    recorded: RecordedCall,
    after_forward: Callable[[], None] | None = None,
) -> ProbeResult:
    """Runs the call once and never changes `.grad`. `after_forward` is called while the graph
    exists. A call that only answers has no backward pass.
    """
    with recorded.gradients():
        with recorded.around():
            output = call(recorded.inputs.detached())
        if after_forward is not None:
            after_forward()
        if recorded.answers:
            return ProbeResult([leaf.detach() for leaf in tensor_leaves(output)], [], answers=True)
        leaves = differentiable_leaves(output)
        used = recorded.used(leaves)
        gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            list(compress(leaves, used)),
            parameters,
            list(compress(recorded.gradients_for(leaves), used)),
            allow_unused=True,
        )
    unused = {id(leaf) for leaf, of_use in zip(leaves, used, strict=True) if not of_use}
    outputs = [leaf.detach() for leaf in tensor_leaves(output) if id(leaf) not in unused]
    return ProbeResult(outputs, list(gradients))


class RootProbe:
    """Probes of one root under different plans, each from the same random state."""

    def __init__(self, root: Root, recorded: RecordedCall) -> None:
        self._root = root
        self._recorded = recorded
        self._parameters = trainable(root.module)
        self._states, self._own = RandomStates(), OwnGenerators.of_module(root.module)

    def run(self, plan: RootPlan, after_forward: Callable[[], None] | None = None) -> ProbeResult:
        self._states.restore()
        self._own.restore()
        scaling = plan.loss_scale.state() if plan.loss_scale is not None else None
        try:
            with switched(self._root.plan.settings, plan.settings):
                return probe(
                    lambda inputs: self._root.run(plan, inputs),
                    self._parameters,
                    self._recorded,
                    after_forward,
                )
        finally:
            if plan.loss_scale is not None and scaling is not None:
                plan.loss_scale.restore(scaling)

    def outputs(self, plan: RootPlan) -> list[torch.Tensor]:
        """Returns all tensors that a call without a graph returns."""
        self._states.restore()
        self._own.restore()
        plan = replace(plan, loss_scale=None)
        settings = switched(self._root.plan.settings, plan.settings)
        with settings, self._recorded.around(), torch.no_grad():
            return tensor_leaves(self._root.run(plan, self._recorded.inputs.detached()))

    def compare(self, present: RootPlan, plan: RootPlan) -> tuple[Closeness, Closeness]:
        """Returns how close outputs and gradients are to those of `present`, with dropout off.

        Answers are compared with those of the script as written, whatever was chosen before.
        """
        reference = RootPlan() if self._recorded.answers else present
        with without_dropout():
            return self.run(reference).kept().compare(self.run(plan))

    def draws(self, plan: RootPlan) -> bool:
        """Returns whether a run draws torch's random numbers, for dropout or anything else."""
        self.run(plan)
        return self._states.drawn

    def seconds(self, plan: RootPlan) -> float:
        self._synchronize()
        start = time.perf_counter()
        self.run(plan)
        self._synchronize()
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._root.device.type == "cuda":
            torch.cuda.synchronize(self._root.device)
