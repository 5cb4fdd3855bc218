"""The kernel of `scaled_dot_product_attention`. A probe finds the candidates, and a measurement
decides.
"""

from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from gpujob_api.settings import AttentionKernel, TunedSettings
from gpujob_worker.inject.call_settings import CallSetting
from gpujob_worker.inject.surroundings import all_kernels_enabled, order_is_chosen
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting
from gpujob_worker.tune.trial import few_rows, short

_BACKENDS = {
    AttentionKernel.FLASH: SDPBackend.FLASH_ATTENTION,
    AttentionKernel.EFFICIENT: SDPBackend.EFFICIENT_ATTENTION,
    AttentionKernel.CUDNN: SDPBackend.CUDNN_ATTENTION,
    AttentionKernel.MATH: SDPBackend.MATH,
}


class AttentionWatch(TorchDispatchMode):
    """Records the attention kernels that run in a probe: their number, their types, and whether the
    script restricts them.

    It records kernels and not calls, because `nn.MultiheadAttention` hides its call from function
    modes. Kernels with dropout count too. Their masks differ, so results are compared with dropout
    off.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.types: set[torch.dtype] = set()
        # Taken around the whole loop, before the script's contexts around the call are entered.
        self.chosen = _are_chosen()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        name = str(func)
        self.chosen = self.chosen or _are_chosen()
        if name.startswith("aten._scaled_dot_product_") and "backward" not in name:
            self.calls += 1
            self.types.add(args[0].dtype)
        return func(*args, **(kwargs or {}))

    def refusal(self) -> str | None:
        if self.chosen:
            return "the script chooses its kernels itself"
        if self.calls == 0:
            return "no kernel of scaled_dot_product_attention runs in the model"
        return None


def _are_chosen() -> bool:
    return not all_kernels_enabled() or order_is_chosen()


@dataclass(frozen=True, slots=True)
class AttentionChoice(CallSetting):
    """Gives `kernel` priority. The others stay allowed for inputs that it cannot take."""

    kernel: AttentionKernel

    def around(self) -> AbstractContextManager[object]:
        return attention_kernel(self.kernel)


def kernels_to_try(device_type: str, types: set[torch.dtype]) -> tuple[AttentionKernel, ...]:
    """Returns kernels that torch would not choose by itself, the most promising first.

    Only one GPU kernel takes float32, and torch chooses it.
    """
    if device_type != "cuda":
        return (AttentionKernel.MATH,)
    if not types & {torch.bfloat16, torch.float16}:
        return ()
    return (AttentionKernel.CUDNN, AttentionKernel.FLASH, AttentionKernel.EFFICIENT)


@contextmanager
def attention_kernel(kernel: AttentionKernel) -> Generator[None]:
    backends = [_BACKENDS[kernel]]
    if kernel is not AttentionKernel.MATH:
        backends += [backend for backend in _BACKENDS.values() if backend not in backends]
    with sdpa_kernel(backends, set_priority=True):
        yield


class AttentionSetting(Setting):
    NAME = "attention"
    ITEM = "attention kernel"
    FIELDS = ("attention",)
    ORDER = 40

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        seen = self.not_measured(context) or _seen(context)
        if isinstance(seen, str):
            yield Refused(seen)
            return
        kernels = kernels_to_try(context.root.device.type, seen.types)
        if not kernels:
            yield Refused("torch's own choice is the only kernel for float32")
        for kernel in kernels:
            yield Candidate(context.plan.having(AttentionChoice(kernel)), kernel.value)

    def refusal(self, context: Context) -> str | None:
        """Returns why nothing is measured. Only a run shows which kernels a model calls."""
        return self.not_measured(context)

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        if tuned.attention is None:
            return None
        seen = self.not_measured(context) or _seen(context)
        if isinstance(seen, str):
            return Refused(seen)
        choice = AttentionChoice(tuned.attention)
        return Candidate(context.plan.having(choice), f"{tuned.attention.value} ")

    def tuned(self, applied: Applied) -> dict[str, Any]:
        choice = applied.plan.setting(AttentionChoice)
        return {"attention": choice.kernel if choice is not None else None}

    def drop(self, applied: Applied) -> None:
        applied.plan = applied.plan.without(AttentionChoice)


def _seen(context: Context) -> AttentionWatch | str:
    """Returns the kernels that run under the settings so far, or why there is nothing to choose."""
    recorded = context.recorded
    probe = RootProbe(context.root, few_rows(recorded, 2))
    try:
        with no_trace(context.root.module), AttentionWatch() as watch:
            plan = context.plan.without(AttentionChoice)
            probe.run(replace(plan, compiled=None, compiled_blocks=None))
    except Exception as error:
        return f"a probe failed: {short(error)}"
    return watch.refusal() or watch


SETTING = AttentionSetting()
