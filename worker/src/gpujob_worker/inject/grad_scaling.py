"""float16 with loss scaling that the script never sees.

float16 gradients below 6e-8 would vanish. The gradients of the root's outputs are multiplied by the
scale where they enter the root. The gradients of its parameters and inputs are divided by it where
they leave. Losses, clipping, accumulation and penalties outside therefore work on true values. If a
gradient overflowed, the step passes without gradients, so the optimizer changes nothing. The scale
is halved then, and doubled after `GROWTH_STEPS` clean steps, as in torch's own GradScaler.

If processes exchange gradients, an overflow in one of them must be seen by all. It leaves as "not a
number" everywhere, which the exchange and any clipping carry on. Every process then checks the
exchanged gradients, which are the same bits in all, and nothing else. Until they are exchanged
(`no_sync`), an optimizer of other parameters steps as written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpujob_worker.inject.call_inputs import CallInputs, trainable

Tensor = torch.Tensor

SCALE_START = 65536.0
SCALE_MAX = 2.0**24
GROWTH_STEPS = 2000
SKIPPED_IN_A_ROW_MAX = 20
_SKIPS = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop")
_SKIPS_TOO = ("Rprop", "SGD")


@dataclass(frozen=True, slots=True)
class _State:
    scale: float
    found: Tensor | None
    stepped: bool
    waits: bool


class LossScale:
    """The current scale, the overflows since the last step, and the number of skipped steps."""

    def __init__(
        self,
        scale: float = SCALE_START,
        exchanged: Sequence[Tensor] = (),
        exchanges: Callable[[], bool] = lambda: True,
    ) -> None:
        """`exchanged` are parameters to whose gradients other processes add after they left here.

        `exchanges` returns whether that happens in the backward of the current call.
        """
        self.scale = scale
        self._exchanged = list(exchanged)
        self.exchanges = exchanges
        # Gradients of the last backward wait to be exchanged. The current step is of other
        # parameters.
        self._waits = self._passes = False
        self.steps = 0
        self.skipped = 0
        self._in_a_row = 0
        self._clean = 0
        self._found: Tensor | None = None
        self._stepped = False
        self._hidden: list[tuple[Tensor, Tensor]] = []

    @property
    def hopeless(self) -> bool:
        """Whether scaling does not help, because gradients overflow at every scale."""
        return self._in_a_row >= SKIPPED_IN_A_ROW_MAX or self.scale < 1.0

    @property
    def overflowed(self) -> bool:
        """Whether a gradient overflowed. Waits for the device."""
        return self._found is not None and bool(self._found.item())

    def state(self) -> _State:
        return _State(self.scale, self._found, self._stepped, self._waits)

    def restore(self, state: _State) -> None:
        """Discards the findings of a probe."""
        self.scale, self._found, self._stepped = state.scale, state.found, state.stepped
        self._waits = state.waits

    def saved(self) -> list[float]:
        """Returns the state for a checkpoint; `resume` restores it."""
        return [self.scale, float(self._clean)]

    def resume(self, saved: Sequence[float]) -> None:
        """Restores the state. Raises `ValueError` if `saved` is no result of `saved()`."""
        scale, clean = saved
        self.scale, self._clean = float(scale), int(clean)

    def unscale(
        self, gradients: Sequence[Tensor | None], *, waits: bool = False
    ) -> list[Tensor | None]:
        """Returns the true gradients, and records whether one of them is not finite.

        With `waits`, they are exchanged together with those of a later backward.
        """
        self._waits = waits
        if self._stepped:
            self._found, self._stepped = None, False
        result: list[Tensor | None] = list(gradients)
        owned: list[Tensor] = []
        for index, gradient in enumerate(gradients):
            if gradient is not None:
                # Two parameters may share a gradient, which is changed in place here.
                result[index] = gradient.clone()
                owned.append(result[index])  # pyright: ignore[reportArgumentType]
        if owned:
            device = owned[0].device
            found = torch.zeros((), device=device) if self._found is None else self._found.clone()
            inverse = torch.full((), 1.0 / self.scale, device=device)
            torch._amp_foreach_non_finite_check_and_unscale_(owned, found, inverse)  # pyright: ignore
            if self._exchanged:
                spoiled = torch.where(found > 0, torch.nan, 1.0)
                for gradient in owned:
                    gradient.mul_(spoiled)
            self._found = found
        return result

    def _look_at_exchanged(self) -> None:
        gradients = [p.grad for p in self._exchanged if p.grad is not None]
        if not gradients or self._found is None:
            return
        found, one = torch.zeros_like(self._found), torch.ones_like(self._found)
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, one)  # pyright: ignore
        self._found = found

    def step_starts(self, optimizer: torch.optim.Optimizer) -> None:
        """Removes the gradients for this step if one of them overflowed."""
        self._passes = self._waits and not self._steps_exchanged(optimizer)
        if self._passes:
            return
        if self._exchanged and not self._stepped:
            self._look_at_exchanged()
        if not self.overflowed:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._hidden.append((parameter, parameter.grad))
                    parameter.grad = None

    def _steps_exchanged(self, optimizer: torch.optim.Optimizer) -> bool:
        exchanged = {id(parameter) for parameter in self._exchanged}
        return any(id(p) in exchanged for group in optimizer.param_groups for p in group["params"])

    def step_ends(self) -> None:
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden.clear()
        if self._stepped or self._passes or self._found is None:
            return
        self._stepped = True
        self.steps += 1
        if self.overflowed:
            self.skipped += 1
            self._in_a_row += 1
            self._clean = 0
            self.scale /= 2
        else:
            self._in_a_row = 0
            self._clean += 1
            if self._clean % GROWTH_STEPS == 0:
                self.scale = min(SCALE_MAX, self.scale * 2)

    def __str__(self) -> str:
        return f"{self.skipped} of {self.steps} steps skipped, scale {self.scale:g}"


def skip_refusal(optimizers: Sequence[torch.optim.Optimizer]) -> str | None:
    """Returns why a step without gradients might change something, or None."""
    for optimizer in optimizers:
        kind = type(optimizer)
        own = kind.__module__.split(".")[:2] != ["torch", "optim"]
        if own or kind.__name__ not in (*_SKIPS, *_SKIPS_TOO):
            return f"{kind.__name__} may not skip a step whose gradients overflowed"
    return None


def scaling_refusal(module: torch.nn.Module) -> str | None:
    for name, layer in module.named_modules():
        if vars(layer).get("_backward_hooks") or vars(layer).get("_backward_pre_hooks"):
            return f"module {name or 'itself'} has backward hooks, which would see scaled gradients"
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            return f"parameter {name} has hooks, which would see scaled gradients"
    return None


class _Run:
    """One scaled call. It holds the inner graph, which the outer graph sees as one node."""

    def __init__(
        self,
        call: Callable[[CallInputs], Any],
        parameters: list[Tensor],
        inputs: CallInputs,
        scale: LossScale,
    ) -> None:
        self._call = call
        self._inputs = inputs.detached()
        self._scale = scale
        self._waits = not scale.exchanges()
        leaves = (leaf for leaf in self._inputs.leaves if isinstance(leaf, Tensor))
        self._wanted = [leaf for leaf in leaves if leaf.requires_grad] + parameters
        self._outputs: list[Tensor] = []
        self.leaves: list[Any] = []
        self.spec: Any = None

    def forward(self) -> list[Tensor]:
        with torch.enable_grad():
            self.leaves, self.spec = pytree.tree_flatten(self._call(self._inputs))
        self._outputs = [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]
        return [leaf.detach() for leaf in self._outputs]

    @property
    def constants(self) -> list[bool]:
        return [not output.requires_grad for output in self._outputs]

    def backward(self, gradients: tuple[Tensor | None, ...]) -> list[Tensor | None]:
        pairs = [
            (output, gradient * self._scale.scale)
            for output, gradient in zip(self._outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if not pairs:
            return [None] * len(self._wanted)
        keep: bool = torch._C._autograd._get_current_graph_task_keep_graph()  # pyright: ignore
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            self._wanted,
            [gradient for _, gradient in pairs],
            retain_graph=keep,
            allow_unused=True,
        )
        return self._scale.unscale(found, waits=self._waits)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Tensor) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        del tensors
        ctx.run = run
        outputs = run.forward()
        ctx.set_materialize_grads(False)
        constants = zip(outputs, run.constants, strict=True)
        ctx.mark_non_differentiable(*(output for output, constant in constants if constant))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if torch.is_grad_enabled():
            raise RuntimeError(
                "gradients of gradients do not go through loss scaling; run with --no-precision"
            )
        return (None, *ctx.run.backward(gradients))


def scaled_call(
    call: Callable[[CallInputs], Any],
    module: torch.nn.Module,
    inputs: CallInputs,
    scale: LossScale,
) -> Any:
    """Returns `call(inputs)`. Its gradients are computed with the scale and leave without it."""
    parameters = trainable(module)
    run = _Run(call, parameters, inputs, scale)
    wanted = [leaf for leaf in inputs.leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    outputs: Any = iter(_Scaled.apply(run, *wanted, *parameters))  # pyright: ignore
    leaves = [next(outputs) if isinstance(leaf, Tensor) else leaf for leaf in run.leaves]
    run.leaves = []
    return pytree.tree_unflatten(leaves, run.spec)
