"""Observed facts of the script that settings must respect."""

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

# Losses of one step that a script may scale before its first backward pass.
_SCALED_MAX = 8


@dataclass(slots=True)
class ScriptFacts:
    """Filled while the script runs. Facts are only added."""

    # Weak references, because a script that makes one optimizer after another needs the memory of
    # earlier ones.
    stepped: list["weakref.ref[torch.optim.Optimizer]"] = field(
        default_factory=list["weakref.ref[torch.optim.Optimizer]"]
    )
    # Number of processes that must come to the same decision separately. It is 1 if they decide
    # together.
    processes: int = 1
    memory_limited: bool = False
    # The script compiles a trained module, or code that is called in the model or contains it.
    compiles: bool = False
    # The script compiles anything else.
    compiles_functions: bool = False
    scales_loss: bool = False
    differentiates_gradients: bool = False
    # The script keeps a graph for another backward pass.
    goes_back_twice: bool = False
    # The script calls the model inside the optimizer's step, as LBFGS and Lightning do.
    steps_with_closure: bool = False

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers that have stepped and still exist."""
        return [found for found in (optimizer() for optimizer in self.stepped) if found is not None]

    def has_seen(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self.optimizers)

    def saw(self, optimizer: torch.optim.Optimizer) -> None:
        if not self.has_seen(optimizer):
            self.stepped = [known for known in self.stepped if known() is not None]
            self.stepped.append(weakref.ref(optimizer))


def watch_optimizers(on_made: Callable[[torch.optim.Optimizer], None]) -> None:
    """Calls `on_made` with each optimizer that the script makes. Later calls belong to training."""
    plain = torch.optim.Optimizer.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        on_made(self)

    torch.optim.Optimizer.__init__ = __init__


def watch_backward(on_loss: Callable[[torch.Tensor, torch.Tensor], None]) -> None:
    """Calls `on_loss` with each scalar from which the script starts a backward pass.

    The second argument is the scalar before a GradScaler multiplied it.
    """
    plain, scaled = torch.Tensor.backward, _watch_scaled_losses()

    @functools.wraps(plain)
    def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.numel() == 1:
            unscaled = next((loss for product, loss in scaled if product() is self), self)
            on_loss(self.detach(), unscaled.detach())
        plain(self, *args, **kwargs)

    torch.Tensor.backward = backward  # pyright: ignore[reportAttributeAccessIssue]


def _watch_scaled_losses() -> "deque[tuple[weakref.ref[torch.Tensor], torch.Tensor]]":
    """Records the latest losses that a GradScaler multiplied, with their values before."""
    scaled: deque[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = deque(maxlen=_SCALED_MAX)
    plain = torch.amp.GradScaler.scale

    @functools.wraps(plain)
    def scale(self: Any, outputs: Any) -> Any:
        product = plain(self, outputs)
        if isinstance(outputs, torch.Tensor) and product is not outputs:
            scaled.append((weakref.ref(product), outputs.detach()))
        return product

    torch.amp.GradScaler.scale = scale  # pyright: ignore[reportAttributeAccessIssue]
    return scaled


def watch_compile(
    on_compile: Callable[[], None], on_start: Callable[[], None], on_end: Callable[[], None]
) -> None:
    """Calls `on_compile` when the script compiles a module that is trained.

    `on_start` and `on_end` are called around each compilation of anything else that the script
    requested, such as a function, a loss or a teacher.
    """
    starts: list[object] = []

    def begins(*details: object) -> None:
        del details
        on_start()

    def ends(*details: object) -> None:
        del details
        on_end()

    def listen() -> None:
        if not starts:
            callbacks: Any = sys.modules["torch._dynamo.callback"]
            starts.append(callbacks.on_compile_start(begins))
            callbacks.on_compile_end(ends)

    for owner in (torch, torch.nn.Module):
        plain = owner.compile

        @functools.wraps(plain)
        def compile_(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
            compiled = args[0] if args else kwargs.get("model")
            trained = isinstance(compiled, torch.nn.Module) and _is_trained(compiled)
            if trained:
                on_compile()
            made = _plain(*args, **kwargs)
            if compiled is not None and not trained:
                listen()
            return made

        owner.compile = compile_  # pyright: ignore[reportAttributeAccessIssue]


def _is_trained(module: torch.nn.Module) -> bool:
    """Returns whether the module is trained, as far as can be seen now.

    A module that is trained later or in evaluation mode shows it by its calls.
    """
    return module.training and any(parameter.requires_grad for parameter in module.parameters())


def watch_scaler(facts: ScriptFacts) -> None:
    """Records that the script makes its own GradScaler."""
    plain = torch.amp.GradScaler.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        facts.scales_loss = facts.scales_loss or self.is_enabled()

    torch.amp.GradScaler.__init__ = __init__


def watch_gradients_of_gradients(facts: ScriptFacts) -> None:
    """Records `create_graph=True`, which split, scaled or compiled calls cannot support.

    `retain_graph=True` is recorded too, because a compiled call cannot support it.
    """
    for name in ("backward", "grad"):
        plain = getattr(torch.autograd, name)

        @functools.wraps(plain)
        def call(*args: Any, _plain: Any = plain, _at: int = _CREATE_GRAPH[name], **kw: Any) -> Any:
            asked = kw.get("create_graph", args[_at] if len(args) > _at else False)
            facts.differentiates_gradients = facts.differentiates_gradients or bool(asked)
            kept = kw.get("retain_graph", args[_at - 1] if len(args) >= _at else False)
            facts.goes_back_twice = facts.goes_back_twice or bool(kept)
            return _plain(*args, **kw)

        setattr(torch.autograd, name, call)


# Position of the argument in torch.autograd.backward and torch.autograd.grad. `retain_graph`
# precedes it.
_CREATE_GRAPH = {"backward": 3, "grad": 4}
