"""A true micro-batch split inside an unmodified loop: the module's forward runs chunk by chunk.

The call runs without a graph on one chunk of rows after another, and its outputs are concatenated.
In backward every chunk runs again with a graph and with the same random numbers, and its parameter
gradients are summed. Only one chunk's memory is needed, and the loss sees the whole batch. If every
sample is treated independently, the sum of the chunks' gradients is the gradient of the whole.
Gradients that are differentiated themselves, as for some penalties, use one graph for the whole
batch. The graph of the last chunk is kept from the forward, so that only the other chunks run
twice. If the loss needs that memory, no graph is kept.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpujob_worker.inject.call_inputs import INDIVISIBLE, CallInputs, trainable
from gpujob_worker.inject.surroundings import Surroundings

Tensor = torch.Tensor


class NotSplittableError(Exception):
    """Raised if inputs or outputs of a call do not have the samples first. The call runs whole
    instead.
    """


class _Random:
    """States of torch's generators at one moment, on the CPU and on the device of the call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def restore(self) -> None:
        torch.set_rng_state(self._host)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, self._device)


class _Run:
    """One split call, with the state that forward leaves for backward."""

    def __init__(
        self,
        call: Callable[..., Any],
        parameters: list[Tensor],
        inputs: CallInputs,
        rows: int,
        keeps_chunk: bool,
    ) -> None:
        self.call = call
        self._keeps_chunk = keeps_chunk
        self.parameters = parameters
        self.inputs = inputs.detached()
        self.batched = inputs.batched()
        total = inputs.rows
        assert total is not None
        self.rows = total
        self.chunks = [(at, min(rows, total - at)) for at in range(0, total, rows)]
        self.device = parameters[0].device
        self.output_spec: Any = None
        # A cast cached without a graph would later cut the graph of the kept chunk.
        self._around = replace(Surroundings.now(self.device.type), caches=False)
        self._random: list[_Random] = []
        self._kept: tuple[list[Tensor], list[Tensor]] | None = None
        self._versions = self._version_list()

    def forward(self) -> list[Tensor]:
        whole: list[Tensor] = []
        for index, (start, length) in enumerate(self.chunks):
            self._random.append(_Random(self.device))
            kept = self._keeps_chunk and index == len(self.chunks) - 1
            leaves, wanted = self._run_chunk(index, with_graph=kept)
            if kept:
                self._kept = (leaves, wanted)
            # Outputs are copied into place at once. Concatenating them at the end would need them
            # twice.
            whole = whole or [_for_rows(leaf, self.rows) for leaf in leaves]
            for place, leaf in zip(whole, leaves, strict=True):
                if (leaf.shape[1:], leaf.dtype) != (place.shape[1:], place.dtype):
                    raise NotSplittableError("chunks return different shapes or types")
                place.narrow(0, start, length).copy_(leaf.detach())
        return whole

    def backward(self, output_gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        """Returns the gradients of the inputs that need one, then those of the parameters."""
        if self._versions != self._version_list():
            raise RuntimeError(
                "a parameter or an input was changed in place between forward and backward; "
                "run with --no-batch-split to keep the script's own order"
            )
        sums = _Sums(self)
        with self._around.entered():
            for index in reversed(range(len(self.chunks))):
                self._backward_chunk(index, output_gradients, sums)
        return sums.result()

    def differentiable_backward(
        self, tensors: tuple[Tensor, ...], output_gradients: tuple[Tensor | None, ...]
    ) -> tuple[Tensor | None, ...]:
        """Like `backward`, but with a graph, and therefore with the memory of the whole batch."""
        present = _Random(self.device)
        wanted = iter(tensors)
        inputs = self.inputs.with_leaves(
            tuple(
                next(wanted) if isinstance(leaf, Tensor) and leaf.requires_grad else leaf
                for leaf in self.inputs.leaves
            )
        )
        chunks: list[list[Tensor]] = []
        with self._around.entered():
            for chunk, random in zip(self.chunks, self._random, strict=True):
                random.restore()
                output = inputs.narrow(*chunk, self.batched).call(self.call)
                chunks.append(pytree.tree_leaves(output))
        present.restore()
        outputs = [torch.cat(parts) for parts in zip(*chunks, strict=True)]
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, output_gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs:
            return (None,) * len(tensors)
        return torch.autograd.grad(
            [output for output, _ in pairs],
            tensors,
            [gradient for _, gradient in pairs],
            create_graph=True,
            allow_unused=True,
        )

    def _backward_chunk(
        self, index: int, output_gradients: tuple[Tensor | None, ...], sums: "_Sums"
    ) -> None:
        leaves, wanted = self._again(index)
        start, length = self.chunks[index]
        pairs = [
            (leaf, gradient.narrow(0, start, length))
            for leaf, gradient in zip(leaves, output_gradients, strict=True)
            if gradient is not None and leaf.requires_grad
        ]
        if not pairs or not wanted:
            return
        gradients = torch.autograd.grad(
            [leaf for leaf, _ in pairs],
            wanted,
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        sums.add(index, gradients)

    def _again(self, index: int) -> tuple[list[Tensor], list[Tensor]]:
        if self._kept is not None and index == len(self.chunks) - 1:
            kept, self._kept = self._kept, None
            return kept
        present = _Random(self.device)
        self._random[index].restore()
        try:
            return self._run_chunk(index, with_graph=True)
        finally:
            present.restore()

    def _run_chunk(self, index: int, *, with_graph: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the outputs of one chunk, and the tensors for which gradients are needed."""
        chunk = self.inputs.narrow(*self.chunks[index], self.batched).detached()
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad() if with_graph else torch.no_grad())
            stack.enter_context(self._around.entered())
            output = chunk.call(self.call)
        leaves, spec = pytree.tree_flatten(output)
        rows = self.chunks[index][1]
        for leaf in leaves:
            if not isinstance(leaf, Tensor) or leaf.dim() == 0 or leaf.shape[0] != rows:
                raise NotSplittableError("an output does not have the samples first")
        if self.output_spec is not None and self.output_spec != spec:
            raise NotSplittableError("chunks return different structures")
        self.output_spec = spec
        wanted = [leaf for leaf in chunk.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        return leaves, wanted + self.parameters

    def _version_list(self) -> list[int]:
        tensors = [leaf for leaf in self.inputs.leaves if isinstance(leaf, Tensor)]
        return [tensor._version for tensor in (*self.parameters, *tensors)]


class _Sums:
    """Sums gradients over chunks: parameters over all rows, batched inputs in their own rows."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._inputs = [
            (leaf, batched)
            for leaf, batched in zip(run.inputs.leaves, run.batched, strict=True)
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ]
        self._sums: list[Tensor | None] = [None] * (len(self._inputs) + len(run.parameters))
        self._owned = [False] * len(self._sums)

    def add(self, index: int, gradients: tuple[Tensor | None, ...]) -> None:
        for slot, gradient in enumerate(gradients):
            if gradient is None:
                continue
            if slot < len(self._inputs) and self._inputs[slot][1]:
                self._add_rows(slot, index, gradient)
            else:
                self._add_whole(slot, gradient)

    def _add_rows(self, slot: int, index: int, gradient: Tensor) -> None:
        whole = self._sums[slot]
        if whole is None:
            whole = self._sums[slot] = torch.zeros_like(self._inputs[slot][0])
        whole.narrow(0, *self._run.chunks[index]).add_(gradient)

    def _add_whole(self, slot: int, gradient: Tensor) -> None:
        present = self._sums[slot]
        if present is None:
            self._sums[slot] = gradient
        elif self._owned[slot]:
            present.add_(gradient)
        else:
            # The first gradient may be a view that autograd shares.
            self._sums[slot] = present + gradient
            self._owned[slot] = True

    def result(self) -> list[Tensor | None]:
        return self._sums


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.run = run
        ctx.save_for_backward(*tensors)
        outputs = run.forward()
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if not _differentiable(out)))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *output_gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            found = ctx.run.differentiable_backward(ctx.saved_tensors, output_gradients)
            return (None, *found)
        return (None, *ctx.run.backward(output_gradients))


def chunked_call(
    call: Callable[..., Any],
    module: torch.nn.Module,
    inputs: CallInputs,
    rows: int,
    *,
    keeps_chunk: bool = True,
) -> Any:
    """Returns `inputs.call(call)`, computed in chunks of `rows` samples.

    Raises `NotSplittableError` if an output does not have the samples first. The random state is
    then as before.
    """
    parameters = trainable(module)
    if not parameters:
        raise NotSplittableError("nothing to learn")
    if not inputs.divisible:
        raise NotSplittableError(INDIVISIBLE)
    run = _Run(call, parameters, inputs, rows, keeps_chunk)
    wanted = [leaf for leaf in inputs.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    before = _Random(run.device)
    try:
        outputs = _Chunked.apply(run, *wanted, *parameters)
    except NotSplittableError:
        before.restore()
        raise
    assert isinstance(outputs, tuple)
    return pytree.tree_unflatten(list(outputs), run.output_spec)


def _differentiable(output: Tensor) -> bool:
    return output.is_floating_point() or output.is_complex()


def _for_rows(leaf: Tensor, rows: int) -> Tensor:
    """Returns memory for the whole batch's output, in the memory format of one chunk's output."""
    last = leaf.dim() == 4 and leaf.is_contiguous(memory_format=torch.channels_last)
    lies = torch.channels_last if last and not leaf.is_contiguous() else torch.contiguous_format
    size = (rows, *leaf.shape[1:])
    return torch.empty(size, dtype=leaf.dtype, device=leaf.device, memory_format=lies)
