"""Observed facts of the script that settings must respect."""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(slots=True)
class ScriptFacts:
    """Filled while the script runs. Facts are only added."""

    # Weak references: a script that makes one optimizer after the other needs the memory of earlier
    # ones.
    stepped: list["weakref.ref[torch.optim.Optimizer]"] = field(
        default_factory=list["weakref.ref[torch.optim.Optimizer]"]
    )
    # Number of processes that must come to the same decision separately; 1 if they decide together.
    processes: int = 1
    memory_limited: bool = False
    compiles: bool = False
    scales_loss: bool = False
    # The newest loss that the script's scaler multiplied, and the loss itself.
    _scaled: "tuple[weakref.ref[torch.Tensor], torch.Tensor] | None" = None
    differentiates_gradients: bool = False
    # The model is called inside the optimizer's step, as LBFGS and Lightning do.
    steps_with_closure: bool = False

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that have stepped and still exist."""
        return [found for found in (optimizer() for optimizer in self.stepped) if found is not None]

    def plain_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss without the factor that the script's scaler put on it."""
        scaled = self._scaled
        known = scaled is not None and scaled[0]() is loss
        return scaled[1] if known and scaled is not None else loss.detach()

    def saw_scaled(self, scaled: torch.Tensor, loss: torch.Tensor) -> None:
        self._scaled = weakref.ref(scaled), loss.detach()

    def has_seen(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self.optimizers)

    def saw(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.has_seen(optimizer):
            self.stepped = [known for known in self.stepped if known() is not None]
            self.stepped.append(weakref.ref(optimizer))


def watch_optimizers(on_made: Callable[[torch.optim.Optimizer], None]) -> None:
    """Calls `on_made` with each optimizer that the script makes: calls after that belong to
    training.
    """
    plain = torch.optim.Optimizer.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        on_made(self)

    torch.optim.Optimizer.__init__ = __init__


def watch_backward(on_loss: Callable[[torch.Tensor], None]) -> None:
    """Calls `on_loss` with each scalar from which the script starts a backward pass."""
    plain = torch.Tensor.backward

    @functools.wraps(plain)
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.numel() == 1:
            on_loss(self)
        plain(self, *args, **kwargs)

    torch.Tensor.backward = backward  # pyright: ignore[reportAttributeAccessIssue]


def watch_compile(on_compile: Callable[[], None]) -> None:
    """Calls `on_compile` when the script compiles a module.

    A function may have nothing to do with the model: a root sees what is compiled in its calls.
    """
    for owner in (torch, torch.nn.Module):
        plain = owner.compile

        @functools.wraps(plain)
        def compile_(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
            if any(isinstance(found, torch.nn.Module) for found in (*args, *kwargs.values())):
                on_compile()
            return _plain(*args, **kwargs)

        owner.compile = compile_  # pyright: ignore[reportAttributeAccessIssue]


def watch_scaler(facts: ScriptFacts) -> None:
    """Records that the script makes a GradScaler of its own, and what it scales."""
    plain, plain_scale = torch.amp.GradScaler.__init__, torch.amp.GradScaler.scale

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        facts.scales_loss = facts.scales_loss or self.is_enabled()

    @functools.wraps(plain_scale)
    def scale(self: Any, outputs: Any) -> Any:
        scaled: Any = plain_scale(self, outputs)
        if isinstance(outputs, torch.Tensor):
            facts.saw_scaled(scaled, outputs)
        return scaled

    torch.amp.GradScaler.__init__ = __init__
    torch.amp.GradScaler.scale = scale


def watch_gradients_of_gradients(facts: ScriptFacts) -> None:
    """Records `create_graph=True`, which a split or scaled call cannot support."""
    for name in ("backward", "grad"):
        plain = getattr(torch.autograd, name)

        @functools.wraps(plain)
        def call(*args: Any, _plain: Any = plain, _at: int = _CREATE_GRAPH[name], **kw: Any) -> Any:
            asked = kw.get("create_graph", args[_at] if len(args) > _at else False)
            facts.differentiates_gradients = facts.differentiates_gradients or bool(asked)
            return _plain(*args, **kw)

        setattr(torch.autograd, name, call)


# Position of the argument in torch.autograd.backward and torch.autograd.grad.
_CREATE_GRAPH = {"backward": 3, "grad": 4}
