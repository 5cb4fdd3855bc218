"""Runs the root once to find effects of a run that cannot be undone.

A forward may change parameters (a momentum encoder), its inputs, or a dict that it was given. It
may add hooks that call the script, or train by itself (meta learning). A measurement would repeat
that without the script's request. This run uses copies, stops before an optimizer's step, restores
the parameters and their gradients, and reports what it saw.
"""

from collections.abc import Generator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.guards import parallel_wrapper, probe_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.reachable import reachable
from gpujob_worker.probe.side_effects import (
    CONTAINERS,
    no_trace,
    plain_attributes,
    restore_contents,
)
from gpujob_worker.tune.trial import few_rows

_ROWS = 2
# A cache holds layers, and each of these holds tensors in lists.
_HELD_DEPTH = 4
# Attributes that torch gives every module.
_OF_TORCH = frozenset(vars(torch.nn.Module()))
_STEPS = "forward steps an optimizer, as every try would"
_HOOKING = ("register_hook", "register_post_accumulate_grad_hook")


def trace_refusal(root: Root, recorded: RecordedCall, *, whole: bool) -> str | None:
    """Returns why the module must not be run for a measurement, or None if nothing prevents it.

    If a few samples cannot run, `whole` decides whether the whole call runs instead. Without it,
    None is returned.
    """
    reason = recorded.refusal or probe_refusal(root.module)
    if reason is not None or parallel_wrapper(root.module) is not None:
        return reason
    few = () if recorded.whole_only else (few_rows(recorded, _ROWS),)
    for call in (*few, recorded) if whole else few:
        try:
            with call.around():
                refusal = _look(root.module, call)
        except _SteppedError:
            return _STEPS
        except Exception:  # noqa: S112 - what cannot run is said by the items that need it
            continue
        recorded.whole_only = call is recorded
        return refusal
    return None


class _SteppedError(Exception):
    """The script's own optimizer was about to step."""


@contextmanager
def _no_step() -> Generator[None]:
    def stop(*_: Any) -> None:
        raise _SteppedError(_STEPS)

    handle = register_optimizer_step_pre_hook(stop)
    try:
        yield
    finally:
        handle.remove()


def _look(module: torch.nn.Module, call: RecordedCall) -> str | None:
    parameters = _Parameters(module)
    arguments = _Arguments(call.inputs)
    held = _Held(module, call)
    hooks: list[str] = []
    try:
        with no_trace(module), call.gradients(), _noting_hooks(hooks), _no_step():
            output = arguments.call(module)
    finally:
        changed, written = parameters.put_back(), held.put_back()
    if changed is not None:
        return f"forward changes {changed}, as every try would"
    if hooks:
        return f"forward calls {hooks[0]}: the hook would run in tries too"
    return written or arguments.refusal() or _opaque(output, call.answers)


class _Parameters:
    """Parameters with a copy of each, even if a forward gives them other memory.

    Their gradients are removed meanwhile, so that nothing is added to the script's gradients.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        named = list(module.named_parameters())
        self._kept = [(n, p, p.data, p.detach().clone()) for n, p in named]
        self._gradients = [(name, parameter, parameter.grad) for name, parameter in named]
        for _, parameter in named:
            parameter.grad = None
        preserve: Any = torch.autograd._unsafe_preserve_version_counter  # pyright: ignore
        # Restores autograd's count of changes, which a call needs whose backward pass is still to
        # come.
        self._versions = preserve(tuple(parameter for _, parameter in named))

    def put_back(self) -> str | None:
        """Restores all parameters, and returns the name of one that was changed, or None."""
        changed: str | None = None
        for name, parameter, gradient in self._gradients:
            if parameter.grad is not None:
                changed = changed or f"the gradient of {name}"
            parameter.grad = gradient
        with self._versions:
            for name, parameter, data, value in self._kept:
                now, parameter.data = parameter.data, data
                if now.shape != value.shape or not _same(now, value):
                    changed = changed or f"parameter {name}"
                    data.copy_(value)
        return changed


def _same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    same = (tensor == other) | ((tensor != tensor) & (other != other))  # NaN is not itself
    return bool(same.all())


class _Arguments:
    """Copies of a call's arguments, and the changes that the call made to them."""

    def __init__(self, inputs: CallInputs) -> None:
        leaves = (
            leaf.detach().clone().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else leaf
            for leaf in inputs.leaves
        )
        self._before = inputs.with_leaves(tuple(leaves))
        self._args, self._kwargs = pytree.tree_unflatten(
            list(self._before.leaves), self._before.spec
        )
        self._versions = self._version_list()

    def call(self, module: torch.nn.Module) -> Any:
        return module._call_impl(*self._args, **self._kwargs)  # pyright: ignore[reportPrivateUsage]

    def refusal(self) -> str | None:
        leaves, spec = pytree.tree_flatten((self._args, self._kwargs))
        same = spec == self._before.spec and len(leaves) == len(self._before.leaves)
        if not same or any(a is not b for a, b in zip(leaves, self._before.leaves, strict=True)):
            return "forward writes into the dict or list that it is given"
        if self._versions != self._version_list():
            return "forward changes its input in place, as every try would"
        return None

    def _version_list(self) -> list[int]:
        return [leaf._version for leaf in self._before.leaves if isinstance(leaf, torch.Tensor)]


class _Held:
    """Objects that a call may write to: those among its arguments, such as a cache of keys and
    values, and those that the layers of a module that only answers keep. Objects inside them are
    included. They are not copied, because a copy may behave differently.
    """

    def __init__(self, module: torch.nn.Module, call: RecordedCall) -> None:
        starts = [leaf for leaf in call.inputs.leaves if hasattr(leaf, "__dict__")]
        if call.answers:
            for layer in module.modules():
                kept = plain_attributes(layer).items()
                starts += [value for name, value in kept if name not in _OF_TORCH]
        found = [
            each for each in reachable(starts, _HELD_DEPTH, limited=False) if not _is_fixed(each)
        ]
        self._attributes = [(each, dict(vars(each))) for each in found if hasattr(each, "__dict__")]
        self._contents = [(each, each.copy()) for each in found if type(each) in CONTAINERS]
        values = [value for _, attributes in self._attributes for value in attributes.values()]
        values += [value for _, before in self._contents for value in _values(before)]
        values += [value for each in found if isinstance(each, tuple) for value in each]
        tensors = {id(value): value for value in values if _may_be_filled(value)}
        self._tensors = [(tensor, tensor.detach().clone()) for tensor in tensors.values()]

    def put_back(self) -> str | None:
        """Restores everything, and returns a refusal if something was changed, or None."""
        written: str | None = None
        for owner, attributes in self._attributes:
            now = vars(owner)
            same = now.keys() == attributes.keys()
            if not same or any(now[name] is not value for name, value in attributes.items()):
                written = written or _writes_into(owner)
                now.clear()
                now.update(attributes)
        for container, before in self._contents:
            if not _holds_the_same(container, before):
                written = written or _writes_into(container)
                restore_contents(container, before)
        for tensor, value in self._tensors:
            if not _same(tensor, value):
                written = (
                    written or "forward writes into a tensor of an object that it is given or keeps"
                )
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(value)
        return written


def _writes_into(owner: Any) -> str:
    return f"forward writes into the {type(owner).__name__} that it is given or keeps"


def _is_fixed(value: Any) -> bool:
    """Returns whether the value is code or a module, whose state others restore."""
    return isinstance(value, (torch.nn.Module, FunctionType, type))


def _may_be_filled(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and value.layout is torch.strided
        and value.grad_fn is None
    )


def _values(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def _holds_the_same(container: Any, before: Any) -> bool:
    if len(container) != len(before) or isinstance(container, set):
        return bool(container == before)
    if isinstance(container, dict) and list(container) != list(before):
        return False
    pairs = zip(_values(container), _values(before), strict=True)
    return all(now is value for now, value in pairs)


def _opaque(output: Any, answers: bool) -> str | None:
    """Returns why outputs are out of reach. Outputs inside an object can be neither compared nor
    cast.
    """
    for leaf in pytree.tree_leaves(output):
        kind = type(leaf)
        if isinstance(leaf, torch.Tensor) or kind.__module__.split(".")[0] == "transformers":
            continue  # Its caches are returned next to the outputs that the loss uses.
        held: list[Any] = list(getattr(leaf, "__dict__", {}).values())
        held += [v for inner in reachable(held, 1) for v in getattr(inner, "__dict__", {}).values()]
        tensors = [value for value in held if isinstance(value, torch.Tensor)]
        if any(answers or value.requires_grad for value in tensors):
            return f"what it returns is inside a {kind.__name__}, which is not looked into"
    return None


@contextmanager
def _noting_hooks(seen: list[str]) -> Generator[None]:
    plain = {name: getattr(torch.Tensor, name) for name in _HOOKING}

    def noting(name: str) -> Any:
        def register(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return plain[name](self, *args, **kwargs)

        return register

    for name in _HOOKING:
        setattr(torch.Tensor, name, noting(name))
    try:
        yield
    finally:
        for name, function in plain.items():
            setattr(torch.Tensor, name, function)
