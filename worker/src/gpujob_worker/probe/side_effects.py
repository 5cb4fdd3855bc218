"""Makes probes free of side effects: restores random states, buffers, attributes and output
streams.

`tune/safety_check.py` finds what cannot be restored before anything is tried.
"""

import contextlib
import io
import logging
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Generator
from typing import Any

import torch

from gpujob_worker.probe.reachable import OwnGenerators

# Attributes of a module that belong to torch itself.
MODULE_INTERNALS = frozenset(
    ("_parameters", "_buffers", "_modules", "training", "_compiled_call_impl")
)

CONTAINERS = (list, dict, set, deque, Counter, OrderedDict, defaultdict)


TORCH = "torch's generator"


class RandomStates:
    """The states of all generators that a script may use: python, numpy, torch, and torch's on each
    GPU.
    """

    def __init__(self) -> None:
        self.python = random.getstate()
        numpy = sys.modules.get("numpy")
        self.numpy: Any = numpy.random.get_state() if numpy is not None else None
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self) -> None:
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    @property
    def drawn(self) -> bool:
        """True if torch's generators have drawn numbers since."""
        now = RandomStates()
        pairs = zip((self.torch, *self.cuda), (now.torch, *now.cuda), strict=True)
        return not all(torch.equal(one, other) for one, other in pairs)


class Draws:
    """The generators from which a module draws after this moment, including its own."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._states, self._own = RandomStates(), OwnGenerators.of_module(module)

    @property
    def source(self) -> str | None:
        """The first generator that has drawn numbers, or None."""
        before, now = self._states, RandomStates()
        if before.drawn:
            return TORCH
        if now.python != before.python:
            return "Python's generator"
        if before.numpy is not None and repr(now.numpy) != repr(before.numpy):
            return "NumPy's generator"
        return "a generator of the script's own" if self._own.drew else None


@contextlib.contextmanager
def no_trace(module: torch.nn.Module) -> Generator[None]:
    """Leaves the process unchanged by forward and backward runs inside, even if they raise.

    Hooks that the script put on parameters do not run. Gradients must be taken with
    `torch.autograd.grad`, because `.grad` is not restored.
    """
    states, generators = RandomStates(), OwnGenerators.of_module(module)
    attributes = [(layer, plain_attributes(layer)) for layer in module.modules()]
    contents = [pair for _, values in attributes for pair in _contents(values)]
    tensors = [*module.buffers(), *_plain_tensors([values for _, values in attributes])]
    buffers = _Tensors(tensors)
    hooks = [(found, dict(found)) for found in map(_hooks, module.parameters()) if found]
    silence, logged = io.StringIO(), logging.root.manager.disable
    # A handler writes to the stream with which it was made, past any redirection.
    logging.disable(max(logged, logging.CRITICAL))
    for found, _ in hooks:
        found.clear()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            yield
    finally:
        for found, before in hooks:
            found.update(before)
        buffers.restore()
        for layer, values in attributes:
            _restore_attributes(layer, values)
        for container, before in contents:
            restore_contents(container, before)
        states.restore()
        generators.restore()
        logging.disable(logged)


def _hooks(parameter: torch.Tensor) -> dict[int, Any] | None:
    """Returns the hooks that are called with each gradient, as the very dict that torch reads.

    They also run if gradients are only computed and not stored.
    """
    return parameter._backward_hooks


class _Tensors:
    """Tensors with their current values, and with autograd's count of their changes.

    A call whose backward pass is still to come may need them. A GAN's critic, for example, steps in
    the middle of another step.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]
        preserve: Any = torch.autograd._unsafe_preserve_version_counter  # pyright: ignore
        self._versions = preserve(tuple(tensors))

    def restore(self) -> None:
        with torch.no_grad(), self._versions:
            for tensor, value in self._values:
                tensor.copy_(value)


def put_back(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Copies `value` into a buffer without autograd counting it as a change."""
    preserve: Any = torch.autograd._unsafe_preserve_version_counter  # pyright: ignore
    with torch.no_grad(), preserve((buffer,)):
        buffer.copy_(value)


def plain_attributes(layer: torch.nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(layer).items() if key not in MODULE_INTERNALS}


def _plain_tensors(attributes: list[dict[str, Any]]) -> list[torch.Tensor]:
    """Returns tensors that layers keep without registering buffers. Results with a graph are left
    out, because they are new.
    """
    held = [value for values in attributes for value in values.values()]
    for value in list(held):
        if type(value) in CONTAINERS:
            held += value.values() if isinstance(value, dict) else value
    found = {
        id(value): value
        for value in held
        if isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and value.grad_fn is None
    }
    return list(found.values())


def _contents(values: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Returns containers with a copy of their contents, because a forward may add to them."""
    return [(value, value.copy()) for value in values.values() if type(value) in CONTAINERS]


def restore_contents(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
        return
    container.clear()
    if isinstance(container, deque):
        container.extend(before)
    else:
        container.update(before)


def _restore_attributes(layer: torch.nn.Module, values: dict[str, Any]) -> None:
    present = vars(layer)
    for key in [key for key in present if key not in values and key not in MODULE_INTERNALS]:
        del present[key]
    for key, value in values.items():
        if present.get(key) is not value:
            present[key] = value
