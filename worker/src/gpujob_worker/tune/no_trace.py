"""Probing leaves no trace: random states, buffers, attributes and output streams are put back."""

import contextlib
import io
import random
import sys
from collections.abc import Generator
from typing import Any

import torch

_INTERNAL = frozenset(("_parameters", "_buffers", "_modules", "training", "_compiled_call_impl"))

_CONTAINERS = (list, dict, set)


class RandomStates:
    """Every generator a script may draw from: python, numpy, torch, and torch's on each card."""

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


@contextlib.contextmanager
def no_trace(module: torch.nn.Module) -> Generator[None]:
    """Forward and backward runs inside leave the process as it was, also when they raise.

    Gradients must be taken with `torch.autograd.grad`; `.grad` is not looked after here.
    """
    states = RandomStates()
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    attributes = [(layer, _plain(layer)) for layer in module.modules()]
    contents = [pair for _, values in attributes for pair in _contents(values)]
    silence = io.StringIO()
    try:
        with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
            yield
    finally:
        for buffer, value in buffers:
            put_back(buffer, value)
        for layer, values in attributes:
            _restore_attributes(layer, values)
        for container, before in contents:
            _restore_contents(container, before)
        states.restore()


def put_back(buffer: torch.Tensor, value: torch.Tensor) -> None:
    """Copies `value` into a buffer without autograd taking it for a change."""
    preserve: Any = torch.autograd._unsafe_preserve_version_counter  # pyright: ignore
    with torch.no_grad(), preserve((buffer,)):
        buffer.copy_(value)


def _plain(layer: torch.nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(layer).items() if key not in _INTERNAL}


def _contents(values: dict[str, Any]) -> list[tuple[Any, Any]]:
    """Containers with a copy of what is in them: a forward may add to them."""
    return [(value, value.copy()) for value in values.values() if type(value) in _CONTAINERS]


def _restore_contents(container: Any, before: Any) -> None:
    if isinstance(container, list):
        container[:] = before
        return
    container.clear()
    container.update(before)


def _restore_attributes(layer: torch.nn.Module, values: dict[str, Any]) -> None:
    present = vars(layer)
    for key in [key for key in present if key not in values and key not in _INTERNAL]:
        del present[key]
    for key, value in values.items():
        if present.get(key) is not value:
            present[key] = value
