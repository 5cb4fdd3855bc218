"""The number format of matrix products and convolutions: TF32, bfloat16, or float16 with loss
scaling.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from gpujob_api.settings import Precision, TunedSettings
from gpujob_worker.inject.call_inputs import differentiable_leaves, trainable
from gpujob_worker.inject.ddp import exchanged, exchanges, scaling_refusal_of
from gpujob_worker.inject.float32_tail import Float32Tail, LayerCall, noting_layers, tail_of
from gpujob_worker.inject.grad_scaling import LossScale, scaling_refusal, skip_refusal
from gpujob_worker.inject.guards import leaves_outside
from gpujob_worker.inject.process_flags import Tf32, tf32_refusal
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting
from gpujob_worker.tune.trial import BFLOAT16, FLOAT16, few_rows

_OVERFLOWS = "gradients overflow at every scale"


class PrecisionSetting(Setting):
    NAME = "precision"
    ITEM = "precision"
    FIELDS = ("precision",)
    ORDER = 30

    def refusal(self, context: Context) -> str | None:
        return self._refusal(context, context.settings.precision)

    def _refusal(self, context: Context, wanted: Precision) -> str | None:
        root = context.root
        reason: str | None = None
        if self.switched_off(context):
            reason = "switched off"
        elif wanted is Precision.FLOAT32:
            reason = "float32 was asked for"
        elif wanted is Precision.TF32 and root.device.type != "cuda":
            reason = f"tf32 exists on CUDA GPUs; this is {root.device.type}"
        elif root.user_autocast or "_original_forward" in vars(root.module):
            # Accelerate stores a model's own forward under this name and calls it under autocast.
            reason = "the script uses autocast itself"
        elif any(p.dtype != torch.float32 for p in root.module.parameters()):
            reason = "the script chose the parameters' type itself"
        elif wanted is Precision.AUTO and context.facts.differentiates_gradients:
            reason = "the script differentiates gradients, whose own are not compared"
        else:
            reason = self.not_measured(context)
        return reason

    def candidates(self, context: Context) -> Iterator[Candidate | Refused]:
        wanted, cuda = context.settings.precision, context.root.device.type == "cuda"
        if wanted in (Precision.AUTO, Precision.TF32) and cuda:
            yield _tf32(context, forced=wanted is Precision.TF32)
        if wanted in (Precision.AUTO, Precision.BFLOAT16):
            plan, forced = _bfloat16(context), wanted is Precision.BFLOAT16
            what = f"bfloat16 autocast{_tail_text(plan)}"
            yield Candidate(plan, what, tolerance=BFLOAT16, forced=forced)
        if wanted is Precision.FLOAT16:
            yield _float16(context, "", forced=True)
        elif wanted is Precision.AUTO and context.plan.autocast is None:
            yield _float16(context, "precision float16", forced=False)

    def known(self, context: Context, tuned: TunedSettings) -> Candidate | Refused | None:
        wanted = tuned.precision
        if wanted is Precision.FLOAT32:
            return None
        reason = self._refusal(context, wanted)
        plan: RootPlan | None = None
        if wanted is Precision.TF32:
            reason = reason or tf32_refusal()
            plan = context.plan.having(Tf32())
        elif wanted is Precision.BFLOAT16:
            plan = _bfloat16(context)
        elif reason is None:
            reason = _float16_refusal(context)
            plan = _scaled_plan(context) if reason is None else None
        if reason is not None or plan is None:
            return Refused(reason or _OVERFLOWS)
        return Candidate(plan, f"{wanted.value} ")

    def tuned(self, applied: Applied) -> dict[str, Any]:
        plan = applied.plan
        found = Precision.FLOAT32 if plan.setting(Tf32) is None else Precision.TF32
        if plan.autocast is not None:
            found = Precision.BFLOAT16 if plan.autocast is torch.bfloat16 else Precision.FLOAT16
        return {"precision": found}

    def drop(self, applied: Applied) -> None:
        plan = applied.plan.without(Tf32).without(Float32Tail)
        applied.plan = replace(plan, autocast=None, loss_scale=None)


def _bfloat16(context: Context) -> RootPlan:
    return _half(context, torch.bfloat16)


def _half(context: Context, kind: torch.dtype) -> RootPlan:
    """Returns the plan for a 16-bit type.

    It ends TF32, which would stay in force for the script's own products outside the module. A
    large last layer keeps TF32.
    """
    plan, tail = context.plan.without(Tf32), _tail(context, kind)
    if tail is None:
        return replace(plan, autocast=kind)
    if tail.whole and tail.large and _may_use_tf32(context):
        plan = plan.having(Tf32())
    return replace(plan.having(tail), autocast=kind)


def _may_use_tf32(context: Context) -> bool:
    """Returns whether TF32 is available, or was chosen just now and is in force."""
    chosen = context.plan.setting(Tf32) is not None
    return chosen or (context.root.device.type == "cuda" and tf32_refusal() is None)


def _tail(context: Context, kind: torch.dtype) -> Float32Tail | None:
    """Returns the last layer in float32, or None if the module calls no layer of torch's types. A
    try then shows whether it runs.
    """
    calls: list[LayerCall] = []
    root, few = context.root, few_rows(context.recorded, 2)
    try:
        with no_trace(root.module), noting_layers(root.module, calls):
            RootProbe(root, few).outputs(RootPlan())
    except Exception:
        return None
    return tail_of(calls, kind)


def _tail_text(plan: RootPlan) -> str:
    tail = plan.setting(Float32Tail)
    if tail is None:
        return ""
    return ", the last layer in TF32" if plan.setting(Tf32) is not None else f", {tail}"


def _tf32(context: Context, *, forced: bool) -> Candidate | Refused:
    item, reason = "precision tf32", tf32_refusal()
    if reason is not None:
        return Refused(reason, item)
    plan = context.plan.having(Tf32())
    return Candidate(plan, item=item, tolerance=BFLOAT16, forced=forced)


def _float16(context: Context, item: str, *, forced: bool) -> Candidate | Refused:
    reason = _float16_refusal(context)
    if reason is None and not forced and context.root.device.type != "cuda":
        reason = "tried on GPUs where bfloat16 is missing or slow"
    plan = None if reason is not None else _scaled_plan(context)
    if plan is None:
        return Refused(reason or _OVERFLOWS, item)
    scaled = f", losses scaled by {plan.loss_scale.scale:g}" if plan.loss_scale is not None else ""
    what = f"float16 autocast{scaled}{_tail_text(plan)}"
    return Candidate(plan, what, item, FLOAT16, forced)


def _float16_refusal(context: Context) -> str | None:
    if context.recorded.answers:
        return None
    facts, root = context.facts, context.root
    if facts.scales_loss:
        return "the script scales its loss itself"
    if facts.differentiates_gradients:
        return "the script differentiates gradients (create_graph)"
    if facts.steps_with_closure:
        return "gradients are computed inside the optimizer's step, too late to skip it"
    reason = skip_refusal(facts.optimizers) or scaling_refusal(root.module)
    reason = reason or scaling_refusal_of(root.wrapper)
    if reason is not None:
        return reason
    few = few_rows(context.recorded, 2)
    inputs = few.inputs.detached()
    with no_trace(root.module), torch.enable_grad(), few.around():
        leaves = differentiable_leaves(inputs.call(root.module._call_impl))  # pyright: ignore[reportPrivateUsage]
    known = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
    if leaves_outside(leaves, trainable(root.module) + known):
        return "forward uses learning tensors that are not its parameters"
    return None


def _scaled_plan(context: Context) -> RootPlan | None:
    """Returns float16 with the largest scale at which no gradient of this batch overflows, or
    None.
    """
    root = context.root
    if context.recorded.answers:
        return _half(context, torch.float16)
    scale = LossScale(exchanged=exchanged(root.wrapper), exchanges=lambda: exchanges(root.wrapper))
    plan = replace(_half(context, torch.float16), loss_scale=scale)
    probe = RootProbe(root, context.recorded)
    while scale.scale >= 1.0:
        with no_trace(root.module):
            gradients = probe.run(plan).gradients
        if all(bool(torch.isfinite(g).all()) for g in gradients if g is not None):
            return plan
        scale.scale /= 2
    return None


SETTING = PrecisionSetting()
