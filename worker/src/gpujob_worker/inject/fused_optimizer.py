"""The optimizer's fused kernel, enabled in place after it was measured on copies."""

import copy
import functools
import time
import weakref
from typing import Any

import torch

from gpujob_worker.probe.compare import Closeness, closeness, update_error

_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")
# These optimizers step with sparse gradients too, but not in the fused kernel.
_SPARSE = ("SGD", "Adagrad")
# Maximum memory for copies if steps are not known to take more.
COPIES_BYTES = 2 * 1024**3
# Optimizers whose kernel was switched in this process. The script's own choice looks the same.
_ours: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def fused_refusal(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns why the fused kernel is not used for this optimizer, or None if it may be tried."""
    kind = type(optimizer)
    if kind.__module__.split(".")[:2] != ["torch", "optim"] or kind.__name__ not in _FUSED:
        return f"{kind.__name__} has no fused kernel in torch"
    for group in optimizer.param_groups:
        if group.get("fused") is not None or group.get("foreach") is not None:
            return "the script chose the kernel itself"
        if group.get("differentiable") or group.get("capturable"):
            return "a differentiable or capturable optimizer is left as it is"
        for parameter in group["params"]:
            if not parameter.is_floating_point() or parameter.is_sparse:
                return "it has parameters that are not dense floating point"
            if not _has_kernel(kind.__name__, parameter.device.type):
                return f"{kind.__name__} has no fused kernel for {parameter.device.type} in torch"
    if any(p.grad is not None and p.grad.is_sparse for p in parameters_of(optimizer)):
        return "it has sparse gradients"
    return None


def copy_refusal(optimizer: torch.optim.Optimizer) -> str | None:
    """Returns why the optimizer cannot be stepped on copies now, or None if it can.

    It may be between two of its own steps, in a step of another optimizer.
    """
    if type(optimizer).__name__ not in _SPARSE or not _without_gradients(optimizer):
        return None
    return "its gradients are gone between its steps, and may be sparse"


def _without_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return all(parameter.grad is None for parameter in parameters_of(optimizer))


def _has_kernel(kind: str, device: str) -> bool:
    """Returns whether the kernel exists. Older torch has Adagrad's for the CPU only, and raises in
    the step on a GPU.
    """
    if device not in ("cpu", "cuda"):
        return True
    has: Any = torch._C._dispatch_has_kernel_for_dispatch_key  # pyright: ignore[reportPrivateUsage]
    return has(f"aten::_fused_{kind.lower()}_", device.upper())


def use_fused(optimizer: torch.optim.Optimizer, fused: bool) -> None:
    """Switches the kernel of a running optimizer. Its state is unchanged."""
    hooks = optimizer._optimizer_state_dict_post_hooks  # pyright: ignore[reportPrivateUsage]
    if fused and _as_written not in hooks.values():
        optimizer.register_state_dict_post_hook(_as_written)
    if fused:
        _ours.add(optimizer)
    else:
        _ours.discard(optimizer)
    for group in optimizer.param_groups:
        group["fused"] = True if fused else None
        group["foreach"] = False if fused else None
    optimizer._step_supports_amp_scaling = fused  # pyright: ignore[reportAttributeAccessIssue]
    optimizer._need_device_dtype_check_for_fused = fused  # pyright: ignore[reportAttributeAccessIssue]
    for parameter, state in optimizer.state.items():
        step = state.get("step")
        if isinstance(step, torch.Tensor) and parameter.device.type == "cuda":
            # Other kernels would wait for the GPU to read the step count in every step.
            state["step"] = step.to(parameter.device, torch.float32) if fused else step.cpu()


def restore_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Restores the script's own kernel, if `use_fused` replaced it."""
    if optimizer in _ours:
        use_fused(optimizer, False)


def _as_written(_: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Makes the script save what it would have saved without us, for a run without us to load.

    torch calls this with the dict that `state_dict` returns. Its groups are copies, but its state
    is not.
    """
    for group in state["param_groups"]:
        if _switched(group):
            group["fused"] = group["foreach"] = None
            state["state"].update(_steps_on_host(state["state"], group["params"]))


def pickle_as_written() -> None:
    """Does the same for scripts that save or copy their optimizer as an object."""
    plain = torch.optim.Optimizer.__getstate__

    @functools.wraps(plain)
    def __getstate__(self: torch.optim.Optimizer) -> dict[str, Any]:  # noqa: N807
        state = plain(self)
        state["param_groups"] = [
            {**group, "fused": None, "foreach": None} if _switched(group) else group
            for group in state["param_groups"]
        ]
        return state

    torch.optim.Optimizer.__getstate__ = __getstate__


def _steps_on_host(states: dict[int, dict[str, Any]], wanted: list[int]) -> dict[int, Any]:
    """Returns states whose step count is on a GPU, with the count on the host. Only a fused kernel
    needs it on the GPU.
    """
    return {
        index: {**states[index], "step": states[index]["step"].cpu()}
        for index in wanted
        if index in states and getattr(states[index].get("step"), "is_cuda", False)
    }


def keep_fused(optimizer: torch.optim.Optimizer) -> bool:
    """Makes groups that the script added, or loaded from before the switch, step like the others.

    A GradScaler passes its scale to all groups of an optimizer or to none. Returns False if a new
    group cannot use the kernel.
    """
    if fused_in_force(optimizer):
        return True
    dense = all(p.is_floating_point() and not p.is_sparse for p in parameters_of(optimizer))
    use_fused(optimizer, dense)
    return dense


class OptimizerCopy:
    """A copy of an optimizer with its parameters, gradients and state, which can be stepped freely.

    If the script has dropped the gradients, the parameters stand in for them.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        twins: dict[torch.Tensor, torch.Tensor] = {}
        dropped = _without_gradients(optimizer)
        groups: list[dict[str, Any]] = []
        for group in optimizer.param_groups:
            settings = {key: copy.copy(group[key]) for key in group if key != "params"}
            settings["params"] = [_twin(parameter, twins) for parameter in group["params"]]
            groups.append(settings)
        for twin in twins.values() if dropped else ():
            twin.grad = twin.detach().clone() if twin.requires_grad else None
        self.optimizer = object.__new__(type(optimizer))
        vars(self.optimizer).update(
            {key: value for key, value in vars(optimizer).items() if "hooks" not in key}
        )
        self.optimizer.__setstate__({"param_groups": groups, "state": _states(optimizer, twins)})
        self.parameters = list(twins.values())
        self._start = list(twins)

    def step_seconds(self) -> float:
        device = self.parameters[0].device
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        # The hooks are left out, because this is no step of the training.
        step: Any = type(self.optimizer).step
        inner = getattr(step, "__wrapped__", step)
        with torch.no_grad():
            inner(self.optimizer)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    def closeness(self, other: "OptimizerCopy") -> Closeness:
        """Compares the parts of the parameters that this process has. Other processes are not
        involved.
        """
        return closeness(
            list(map(_own_part, self.parameters)), list(map(_own_part, other.parameters))
        )

    def update_error(self, other: "OptimizerCopy") -> float:
        """Compares what both added to the parameters, relative to what this copy added.

        The original parameters must not have changed since the copies were made.
        """
        return update_error(
            list(map(_own_part, self._start)),
            list(map(_own_part, self.parameters)),
            list(map(_own_part, other.parameters)),
        )


def copies_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Returns the bytes of one copy: parameter, gradient and state."""
    total = sum(2 * _bytes(parameter) for parameter in parameters_of(optimizer))
    for state in optimizer.state.values():
        total += sum(_bytes(value) for value in state.values() if isinstance(value, torch.Tensor))
    return total


def _bytes(tensor: torch.Tensor) -> int:
    own = _own_part(tensor)
    return own.numel() * own.element_size()


def _own_part(tensor: Any) -> torch.Tensor:
    """Returns the part of the tensor that this process has, if it is spread over processes."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def device_of(optimizer: torch.optim.Optimizer) -> torch.device:
    """Returns the device of the parameters. The first group may be empty."""
    devices = (parameter.device for parameter in parameters_of(optimizer))
    return next(devices, torch.device("cpu"))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the parameters of all groups in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _twin(parameter: torch.Tensor, twins: dict[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    twin = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    if parameter.grad is not None:
        twin.grad = parameter.grad.detach().clone()
    twins[parameter] = twin
    return twin


def _states(
    optimizer: torch.optim.Optimizer, twins: dict[torch.Tensor, torch.Tensor]
) -> dict[torch.Tensor, dict[str, Any]]:
    return {
        twins[parameter]: {
            key: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
            for key, value in state.items()
        }
        for parameter, state in optimizer.state.items()
        if parameter in twins
    }


def fused_in_force(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether `use_fused` enabled the kernel, in this run or in the one whose state was
    loaded.
    """
    return all(_switched(group) for group in optimizer.param_groups)


def _switched(group: dict[str, Any]) -> bool:
    return group.get("fused") is True and group.get("foreach") is False
