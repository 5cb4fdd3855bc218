"""Finds reasons why a module must not be split or recomputed: its forward has other effects than
its return value.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.instancenorm import _InstanceNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils._python_dispatch import TorchDispatchMode

from gpujob_worker.probe.side_effects import MODULE_INTERNALS

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_GLOBAL_HOOKS = tuple(f"_global{name}" for name in _HOOKS)
# `gradient_checkpointing_enable` and similar methods set this hook.
_MARKING_LIBRARIES = ("transformers", "peft")
_MARKING_HOOK = "make_inputs_require_grad"
# These hooks collect hidden states and attentions for the model's running call only.
_COLLECTING_HOOKS = "transformers.utils.output_capturing"
# The class that `fully_shard` gives a module.
FULLY_SHARDED = "FSDPModule"
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", FULLY_SHARDED)


def is_on_one_device(module: torch.nn.Module) -> bool:
    """Returns whether the module is torch's DataParallel over at most one GPU.

    It copies no module then, and calls the script's own module inside.
    """
    return type(module) is torch.nn.DataParallel and len(module.device_ids) <= 1


def parallel_wrapper(module: torch.nn.Module) -> str | None:
    """Returns the wrapper that manages the gradients of the module or a part, or None.

    DataParallel over several GPUs is such a wrapper.
    """
    for layer in module.modules():
        if is_on_one_device(layer):
            continue
        names = {kind.__name__ for kind in type(layer).__mro__}
        found = next((name for name in _WRAPPERS if name in names), None)
        if found is not None:
            return found if layer is module else f"{found} inside"
    return None


def is_fully_sharded(module: torch.nn.Module) -> bool:
    """Returns whether `fully_shard` spreads the module or parts of it over processes.

    Nothing else manages its gradients then.
    """
    return parallel_wrapper(module) in (FULLY_SHARDED, f"{FULLY_SHARDED} inside")


def is_fabric(module: torch.nn.Module) -> bool:
    """Returns whether the module is Lightning Fabric's, around one of the script's.

    Its call hooks on to the outputs of the module inside.
    """
    return any(kind.__name__ == "_FabricModule" for kind in type(module).__mro__)


def batch_statistics(module: torch.nn.Module) -> str | None:
    """Returns the first layer in training mode whose result depends on the whole batch, or None."""
    for name, layer in module.named_modules():
        normalizes = isinstance(layer, _BatchNorm)
        tracks = isinstance(layer, _InstanceNorm) and layer.track_running_stats
        if (normalizes or tracks) and layer.training:
            return f"{type(layer).__name__} {name or 'itself'} learns from the whole batch"
    return None


def probe_refusal(module: torch.nn.Module) -> str | None:
    """Returns why this module must not be run for a measurement: an effect that cannot be undone.
    None otherwise.

    torch's own hooks (weight and spectral norms) only affect parameters and buffers. The hook for
    checkpointing in transformers and peft marks the output of an embedding. The hooks that collect
    hidden states in transformers do so for each call separately.
    """
    for hooks in _GLOBAL_HOOKS:
        of_all: dict[Any, Any] = getattr(torch.nn.modules.module, hooks, {})
        if any(not _is_known(hook) for hook in of_all.values()):
            return "hooks of the script for all modules would run in probes too"
    for name, layer in module.named_modules():
        for hooks in _HOOKS:
            if any(not _is_known(hook) for hook in vars(layer).get(hooks, {}).values()):
                owner = name or type(layer).__name__
                return f"module {owner} has hooks of the script, which would run in probes too"
    for name, parameter in module.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            return f"parameter {name} is made in the first call"
    return None


def _is_known(hook: Any) -> bool:
    of: Any = getattr(hook, "__module__", None) or type(hook).__module__
    library = str(of).split(".")[0]
    name = getattr(hook, "__name__", "")
    marks = library in _MARKING_LIBRARIES and name.startswith(_MARKING_HOOK)
    return library == "torch" or of == _COLLECTING_HOOKS or marks


def statistics_layers(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns layers in training mode that normalize by their own input and only update running
    statistics.
    """
    kinds = (_BatchNorm, _InstanceNorm)
    return [layer for layer in module.modules() if isinstance(layer, kinds) and layer.training]


def split_refusal_of_layers(module: torch.nn.Module) -> str | None:
    """Returns why running this module's forward in parts would be visible from outside, or None."""
    return batch_statistics(module) or recompute_refusal(module)


def recompute_refusal(module: torch.nn.Module) -> str | None:
    """Returns why running this module's forward twice would be visible from outside, or None.

    Running statistics are not included, because the caller restores them.
    """
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.SyncBatchNorm):
            return f"SyncBatchNorm {name} speaks to other processes in forward"
    for name, layer in module.named_modules():
        if any(vars(layer).get(hooks) for hooks in _HOOKS):
            return (
                f"module {name or type(layer).__name__} has hooks, which would run more than once"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks:
            return f"parameter {name} has hooks, which would run more than once"
    return None


@dataclass(frozen=True, slots=True)
class _Seen:
    attributes: dict[str, int]
    versions: dict[str, int]


def observe(module: torch.nn.Module) -> _Seen:
    """Returns the state that a forward must not change: attributes of the modules, versions of
    buffers.
    """
    attributes = {
        f"{name}.{key}": _identity(value)
        for name, layer in module.named_modules()
        for key, value in vars(layer).items()
        if key not in MODULE_INTERNALS
    }
    return _Seen(attributes, {name: buffer._version for name, buffer in module.named_buffers()})


def _identity(value: Any) -> int:
    if isinstance(value, (int, float, str, bool, tuple)) or value is None:
        return hash((type(value), repr(value)))
    if isinstance(value, (list, dict, set)):
        return hash((id(value), len(value)))  # pyright: ignore[reportUnknownArgumentType]
    return id(value)


def state_refusal(before: _Seen, after: _Seen, allowed: frozenset[str] = frozenset()) -> str | None:
    """Returns what a forward changed on its module, or None. Buffers in `allowed` may change."""
    for name in after.attributes:
        if after.attributes[name] != before.attributes.get(name):
            return f"forward changes {name.lstrip('.')}"
    for name in after.versions.keys() - allowed:
        if after.versions[name] != before.versions.get(name):
            return f"forward changes buffer {name}"
    return None


class _NoDropout(TorchDispatchMode):
    """Runs dropout with probability zero, so that two runs can be compared.

    Masks differ by type, by memory order and by kernel. Learning does not depend on them.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        name, keywords = str(func), kwargs or {}
        if name.startswith("aten.native_dropout."):
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        if name.startswith("aten.native_dropout_backward"):
            return args[0].clone()  # not scaled, as its forward was not
        if name.startswith("aten.bernoulli_.float") and args[0].is_floating_point():
            # Dropout then divides by this probability of keeping a value.
            return args[0].fill_(args[1] if len(args) > 1 else keywords.get("p", 0.5))
        if "attention" in name or name.startswith("aten._cudnn_rnn"):
            args, keywords = _without_probability(func, args, keywords)
        return func(*args, **keywords)


def _without_probability(
    func: Any, args: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments with the dropout probability set to zero, if the operation has one."""
    names = [argument.name for argument in func._schema.arguments]
    for name in ("dropout_p", "dropout"):
        if name in keywords:
            return args, {**keywords, name: 0.0}
        at = names.index(name) if name in names else len(args)
        if at < len(args):
            return (*args[:at], 0.0, *args[at + 1 :]), keywords
    return args, keywords


@contextmanager
def without_dropout() -> Generator[None]:
    """Turns dropout off in layers and in attention, in forward and backward."""
    with _NoDropout():
        yield


def leaves_outside(outputs: list[torch.Tensor], known: list[torch.Tensor]) -> bool:
    """Returns whether the graph reaches a trainable tensor that is neither a parameter nor an
    input.
    """
    expected = {id(tensor) for tensor in known}
    pending = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in expected:
            return True
        pending += [following for following, _ in node.next_functions]
    return False
