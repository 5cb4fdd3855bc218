"""One look at how the applied settings change the loss, for `loss_check`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpujob_worker.control.output_sample import OutputSample
from gpujob_worker.inject.call_inputs import tensor_leaves
from gpujob_worker.tune.trial import short

# The change of a sampled output is summed in this many groups. Their spread shows what chance does.
GROUPS = 64


@dataclass(slots=True)
class Look:
    """One call, from before its forward to the end of its step."""

    samples: Sequence[OutputSample]
    # What the settings change in the values of each sample.
    differences: Sequence[torch.Tensor]
    # The part of the batch that the samples cover.
    part: float
    loss: torch.Tensor | None = None
    failure: str | None = None
    # A step ended without the call's backward. Another optimizer's step may follow it.
    waited: bool = False
    handles: list[Any] = field(default_factory=list[Any])
    # By output: the contribution of each group of values, or of each row, to the loss change.
    _changes: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    # By output: the other outputs from which it is computed.
    _inner: dict[int, frozenset[int]] = field(default_factory=dict[int, frozenset[int]])

    @property
    def seen(self) -> bool:
        """True once backward has passed an output."""
        return bool(self._changes)

    def ends_with_step(self) -> bool:
        """Returns whether the look ends with this optimizer step.

        True if backward was seen, or if this is the second step without it.
        """
        waited, self.waited = self.waited, True
        return waited or self.seen or self.failure is not None

    def watch(self, output: Any, loss_now: Callable[[], torch.Tensor | None]) -> None:
        """Adds the effect of each output's difference on the loss while backward runs."""
        leaves = tensor_leaves(output)
        # A tensor that is returned twice counts once.
        first = {id(leaf): index for index, leaf in reversed(list(enumerate(leaves)))}
        fitting = {
            index: leaf
            for index, (leaf, sample) in enumerate(zip(leaves, self.samples, strict=False))
            if leaf.requires_grad and first[id(leaf)] == index and sample.fits(leaf)
        }
        self._inner = inner_outputs(fitting)
        for index, leaf in fitting.items():
            self.handles.append(leaf.register_hook(self._hook(index, loss_now)))

    def _hook(
        self, index: int, loss_now: Callable[[], torch.Tensor | None]
    ) -> Callable[[torch.Tensor | None], None]:
        def add(gradient: torch.Tensor | None) -> None:
            # Compiled code gives None for an output without a backward.
            if gradient is None:
                return
            try:
                with torch.no_grad():
                    self._add(gradient.detach(), index)
            except Exception as error:
                self.failure = short(error)
            self.loss = loss_now()

        return add

    def _add(self, gradient: torch.Tensor, index: int) -> None:
        sample = self.samples[index]
        products = sample.of(gradient) * self.differences[index] * sample.every
        if any(other.every > 1 for other in self.samples):
            groups = products.flatten().tensor_split(GROUPS)
            each = torch.stack([group.sum() for group in groups])
        else:
            each = products.sum(1)
        before = self._changes.get(index)
        self._changes[index] = each if before is None else before + each

    def found(self, typical_loss: float) -> tuple[float, float]:
        """Returns the change of the loss and the size of chance, both relative to the loss.

        An output from which another one is computed is already part of the other's difference.
        """
        assert self.loss is not None
        inner = {one for index in self._changes for one in self._inner.get(index, ())}
        outer = [each for index, each in self._changes.items() if index not in inner]
        changes = torch.stack(outer).sum(0)
        count = changes.numel()
        chance = float(changes.std()) * math.sqrt(count) if count > 1 else 0.0
        size = self.part * max(abs(float(self.loss)), typical_loss)
        return _relative(float(changes.sum()), size), _relative(chance, size)

    def forget_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()


def _relative(change: float, loss: float) -> float:
    """Returns the relative change. It is infinite if it is not finite or if the loss is zero."""
    if not math.isfinite(change):
        return math.inf
    return change / abs(loss) if loss else math.copysign(math.inf, change) if change else 0.0


# A transformer of a hundred blocks has some thousands of nodes.
NODES_MAX = 50_000

Edge = tuple[Any, int]


def inner_outputs(outputs: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
    """Returns, for each output by its key, the other outputs from which autograd computed it.

    A loss, for example, is computed from logits that the call returns too. Nothing more is found
    beyond NODES_MAX nodes of a graph.
    """
    if len(outputs) < 2:
        return {}
    edges = {_edge(output): index for index, output in outputs.items()}
    return {index: _reached(output, edges) - {index} for index, output in outputs.items()}


def _reached(output: torch.Tensor, edges: Mapping[Edge, int]) -> frozenset[int]:
    found: set[int] = set()
    seen: set[Any] = set()
    nodes: list[Any] = [output.grad_fn]
    while nodes and len(seen) < NODES_MAX:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for edge in node.next_functions:
            if edge in edges:
                found.add(edges[edge])
            nodes.append(edge[0])
    return frozenset(found)


def _edge(output: torch.Tensor) -> Edge:
    return output.grad_fn, output.output_nr
