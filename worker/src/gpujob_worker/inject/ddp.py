"""torch's DistributedDataParallel: the module inside it is called and measured by itself.

Gradients are exchanged when the parameters' own gradients arrive, and nothing inside the module
triggers that. A call that returns all gradients at once (a split batch, scaled losses) therefore
exchanges each of them once, for the whole batch, as written. `torch.autograd.grad` exchanges
nothing.
"""

import functools
import itertools
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

_WRAPPER = "DistributedDataParallel"
# Parts of a wrapper's module get numbers above those of all wrappers.
_WRAPPERS_MAX = 1 << 16
# Modules that were put into such a wrapper, and their parts.
_wrapped: weakref.WeakSet[nn.Module] = weakref.WeakSet()
# Wrappers over all processes, numbered in the order in which they were made. All processes make a
# wrapper at the same time and compare parameters meanwhile, so a number means the same module in
# all.
_numbers: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
_numbering = itertools.count(1)


def inside(module: nn.Module) -> nn.Module | None:
    """Returns the module in a plain DistributedDataParallel, or None for any other module."""
    kind = type(module)
    own = kind.__module__ == "torch.nn.parallel.distributed" and kind.__name__ == _WRAPPER
    return getattr(module, "module", None) if own else None


def watch_wrappers(on_module: Callable[[nn.Module], None]) -> None:
    """Records from now on which modules are put into a DistributedDataParallel, and numbers the
    wrappers.

    `on_module` is called with each module before.
    """
    kind = nn.parallel.DistributedDataParallel
    plain: Any = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, module: nn.Module, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        _wrapped.update(module.modules())
        on_module(module)
        plain(self, module, *args, **kwargs)
        together = kwargs.get("init_sync", True) and self.process_group.size() == _world_size()
        if together and self not in _numbers:
            _numbers[self] = next(_numbering)

    kind.__init__ = __init__


def number_of(wrapper: nn.Module | None, part: nn.Module | None = None) -> int | None:
    """Returns the number of the wrapper, or of a part of the module inside. It is the same in all
    processes.

    None if the wrapper has no number.
    """
    number = _numbers.get(wrapper) if wrapper is not None else None
    if wrapper is None or number is None or part is None or part is inside(wrapper):
        return number
    place = next((place for place, one in enumerate(wrapper.modules()) if one is part), 0)
    return number + _WRAPPERS_MAX * place


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def is_wrapped(module: nn.Module) -> bool:
    """Returns whether the module trains inside a wrapper."""
    return module in _wrapped


def is_around_wrappers(module: nn.Module) -> bool:
    """Returns whether all trainable parameters of the module are inside wrappers that are parts of
    it.

    Each of these wrappers is called as if the script called it.
    """
    found = [part for part in module.modules() if inside(part) is not None]
    if inside(module) is not None or not found:
        return False
    theirs = {id(parameter) for wrapper in found for parameter in wrapper.parameters()}
    return all(id(p) in theirs for p in module.parameters() if p.requires_grad)


def is_whole_step(module: nn.Module) -> bool:
    """Returns whether the wrapper's call of the module is a whole training step, which may log
    values.

    That holds for Lightning's modules.
    """
    return any(kind.__name__ == "LightningModule" for kind in type(module).__mro__)


def is_redirected(module: nn.Module) -> bool:
    """Returns whether the module's next call is a Lightning step and not the module's `forward`.

    Lightning replaces `forward` for that one call. Others, such as Accelerate, replace it for good.
    """
    own, kind = vars(module).get("forward"), type(module)
    replaced = own is not None and getattr(own, "__func__", None) is not kind.forward
    return replaced and is_whole_step(module)


def wrapper_in_step(module: nn.Module) -> nn.Module | None:
    """Returns the wrapper whose current call is a whole training step that calls this part; None
    without one.
    """
    kind: Any = nn.parallel.DistributedDataParallel
    wrapper: nn.Module | None = kind._active_ddp_module
    within = inside(wrapper) if wrapper is not None else None
    if wrapper is None or within is None or not is_whole_step(within):
        return None
    return wrapper if any(part is module for part in within.modules()) else None


def past_wrapper(module: nn.Module) -> bool:
    """Returns whether a wrapper's part is called outside the wrapper, possibly by one process
    alone.
    """
    return is_wrapped(module) and wrapper_in_step(module) is None


def process_group() -> tuple[int, int] | None:
    """Returns this process's rank in the default group and the group's size; None without
    a group.
    """
    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def watch_process_group(on_group: Callable[[], None]) -> None:
    """Calls `on_group` whenever the default group has started."""
    if not dist.is_available():
        return
    plain: Any = dist.init_process_group

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        on_group()
        return result

    dist.init_process_group = init_process_group


def wrapper_refusal(wrapper: Any, processes: int) -> str | None:
    """Returns why the module inside must not be changed, or None if processes can decide
    together.
    """
    if getattr(wrapper, "mixed_precision", None) is not None:
        return f"{_WRAPPER} casts the module itself (mixed_precision)"
    if not dist.is_initialized() or dist.get_world_size() != processes:
        return f"the process group is not that of the {processes} processes"
    if wrapper.process_group.size() != processes:
        return f"{_WRAPPER} is over {wrapper.process_group.size()} of {processes} processes"
    if number_of(wrapper) is None:
        return f"{_WRAPPER} was not made by all processes at once (a copy, init_sync=False)"
    for layer in wrapper.module.modules():
        if isinstance(layer, nn.SyncBatchNorm):
            return "SyncBatchNorm speaks to other processes in forward"
        if inside(layer) is not None:
            return f"another {_WRAPPER} is inside"
    return None


def one_call_refusal(wrapper: Any) -> str | None:
    """Returns why one call must not return all gradients at once, or None."""
    if wrapper is None:
        return None
    if wrapper.find_unused_parameters:
        return f"{_WRAPPER} looks for unused parameters in the graph"
    return (
        f"{_WRAPPER} counts on a graph that stays (static_graph)" if wrapper.static_graph else None
    )


def scaling_refusal_of(wrapper: Any) -> str | None:
    """Returns why other processes might not see an overflow of float16 gradients in one,
    or None.
    """
    if wrapper is None:
        return None
    if wrapper.parameters_to_ignore:
        return f"{_WRAPPER} leaves out parameters, whose overflow other processes would not see"
    if getattr(wrapper, "_comm_hooks", None):
        return f"a communication hook of {_WRAPPER} would get gradients that overflowed"
    return one_call_refusal(wrapper)


def sequence_numbers() -> list[int]:
    """Returns how many collectives each process group has run. The numbers grow with each
    exchange.
    """
    groups: Any = dist.distributed_c10d._world.pg_map  # pyright: ignore[reportPrivateUsage]
    return [int(group._get_sequence_number_for_group()) for group in groups]


def group_store() -> Any:
    """Returns the store where the processes of the default group found each other."""
    return dist.PrefixStore("gpujob", dist.distributed_c10d._get_default_store())  # pyright: ignore


def store_within(store: Any, prefix: str) -> Any:
    """Returns the same store with keys that begin with `prefix`."""
    return dist.PrefixStore(prefix, store)  # pyright: ignore


@contextmanager
def compiled_as_one(wrapper: nn.Module | None) -> Generator[None]:
    """Compiles the module inside as a whole, as it was measured.

    In its wrapper's call torch would split the graph where gradients are exchanged. The other
    processes would then not run what the first process measured.
    """
    if wrapper is None:
        yield
        return
    kind: Any = nn.parallel.DistributedDataParallel
    active = kind._active_ddp_module
    kind._active_ddp_module = None
    try:
        yield
    finally:
        kind._active_ddp_module = active


def exchanges(wrapper: Any) -> bool:
    """Returns whether a call's own backward exchanges its gradients, if the call is made now."""
    return wrapper is None or bool(wrapper.require_backward_grad_sync)


def exchanged(wrapper: nn.Module | None) -> list[torch.Tensor]:
    """Returns the parameters whose gradients are exchanged by the end of backward."""
    if wrapper is None:
        return []
    return [parameter for parameter in wrapper.parameters() if parameter.requires_grad]
