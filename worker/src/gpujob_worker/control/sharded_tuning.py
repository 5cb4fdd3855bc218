"""Tunes a module that `fully_shard` spreads over processes, on a whole copy in each process.

`inject.unsharded` makes the copies. All processes first announce whether they can make one. If one
of them cannot, none gathers.
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import torch

from gpujob_api.quantities import format_memory
from gpujob_worker.checkpoint.host_memory import available_bytes
from gpujob_worker.control.distributed_tuning import communicates
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.float32_tail import Float32Tail
from gpujob_worker.inject.guards import is_fully_sharded
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.unsharded import (
    copy_refusal,
    counterpart,
    nothing_gathered,
    unsharded_copy,
    whole_bytes,
)
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.resume.sharded import sharding_refusal
from gpujob_worker.tune.safety_check import trace_refusal

# The copy's parameters, its gradients as written and under a candidate, and as much again for
# kernels and memory that the allocator keeps.
COPIES_FREE = 5
ITEM = "sharded module"


def sharded_root(model: TrainedModel) -> Root | None:
    """Returns the only root of the model in training, if `fully_shard` spreads it and its processes
    decide together.
    """
    if model.consensus is None or len(model.roots) != 1:
        return None
    root = model.roots[0]
    return root if is_fully_sharded(root.module) else None


@contextmanager
def whole_root(
    model: TrainedModel, name: str, recorded: RecordedCall | None
) -> Generator[Root | None]:
    """Yields a root of the copy, to be tried in place of the sharded one.

    Yields None if there is no sharded root or it must not be tried; the reason is logged. `name` is
    that of the question to all processes. Afterwards, the tuner's choices on the copy apply to the
    sharded root.
    """
    root = sharded_root(model)
    whole = _gather(root, model, name, recorded) if root is not None else None
    if root is None or whole is None:
        yield None
        return
    with nothing_gathered(root.module):
        yield whole
    if model.first.tuner is not None:
        applied = model.first.tuner.applied
        applied.plan = moved(applied.plan, whole.module, root.module)


def gathered_root(root: Root) -> Root:
    """Returns a root of the copy. All processes have to call it at the same time."""
    whole = Root(unsharded_copy(root.module), lambda _: None, asks=False)
    whole.user_autocast = root.user_autocast
    return whole


def moved(plan: RootPlan, of: torch.nn.Module, to: torch.nn.Module) -> RootPlan:
    """Returns the same plan for a copy of the module, or for the module of a copy."""
    tail = plan.setting(Float32Tail)
    layer = counterpart(tail.layer(), of, to) if tail is not None else None
    if tail is None or layer is None:
        return plan
    return plan.having(replace(tail, layer=weakref.ref(layer)))


def _gather(
    root: Root, model: TrainedModel, name: str, recorded: RecordedCall | None
) -> Root | None:
    consensus, said = model.consensus, model.log
    assert consensus is not None
    refusal = _refusal(root, model, recorded, consensus.size)
    if not consensus.agree(f"whole/{name}", yes=refusal is None):
        said.skipped(ITEM, refusal or "another process cannot gather the whole module")
        return None
    assert recorded is not None
    whole = gathered_root(root)
    with nothing_gathered(root.module):
        refusal = trace_refusal(whole, recorded, whole=False) or communicates(whole, recorded)
    if refusal is not None:
        said.skipped(ITEM, refusal)
        return None
    return whole


def _refusal(
    root: Root, model: TrainedModel, recorded: RecordedCall | None, processes: int
) -> str | None:
    """Returns why this process makes no copy, or None."""
    reason = model.first.refusal
    if model.session.environment.memory_limit_bytes is not None:
        reason = reason or "a copy of the whole module does not count in the memory limit"
    if recorded is None:
        reason = reason or "no call of the module was seen"
    reason = reason or sharding_refusal(root.module) or copy_refusal(root.module, processes)
    return reason or lack_of_memory(root)


def lack_of_memory(root: Root) -> str | None:
    """Returns why the device or the machine has too little memory to try a copy, or None."""
    needed, free = COPIES_FREE * whole_bytes(root.module), _free_bytes(root.device)
    if free is None or needed <= free:
        return None
    wanted = f"trying the whole module takes {format_memory(needed)}"
    return f"{wanted}; {format_memory(free)} are free"


def _free_bytes(device: torch.device) -> int | None:
    if device.type != "cuda":
        return available_bytes()
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept
