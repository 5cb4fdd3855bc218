"""The items that make a step faster: what speaks against each before any try, then its trial."""

from dataclasses import replace

import torch

from gpujob_api.settings import AttentionKernel, Precision, Settings, TunedSettings
from gpujob_worker.inject.attention import AttentionWatch, candidates
from gpujob_worker.inject.call_inputs import differentiable_leaves, trainable
from gpujob_worker.inject.channels_last import channels_last_refusal, sample_shapes
from gpujob_worker.inject.ddp import exchanged, scaling_refusal_of
from gpujob_worker.inject.grad_scaling import LossScale, scaling_refusal, skip_refusal
from gpujob_worker.inject.guards import leaves_outside, parallel_wrapper
from gpujob_worker.inject.process_flags import convolution_autotuning_refusal, tf32_refusal
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import RecordedCall, Root, RootPlan
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.features import Switches
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import (
    BFLOAT16,
    FLOAT16,
    Decision,
    Trial,
    few_rows,
    short,
    tolerance_of,
)

CHANNELS_LAST, CONVOLUTIONS = "channels_last", "convolution autotuning"


class SpeedItems:
    """Tries precision, memory format and kernels one after the other on one recorded batch."""

    def __init__(
        self,
        settings: Settings,
        switches: Switches,
        decision: Decision,
        applied: Applied,
        root: Root,
        recorded: RecordedCall,
        facts: ScriptFacts,
    ) -> None:
        self._facts = facts
        self._settings = settings
        self._switches = switches
        self._decision = decision
        self._applied = applied
        self._root = root
        self._recorded = recorded
        self._trial = Trial(decision, root, recorded)

    @property
    def _plan(self) -> RootPlan:
        return self._applied.plan

    def expected(self) -> list[str]:
        """Items that nothing known beforehand speaks against."""
        switches, module = self._switches, self._root.module
        against = {
            "precision": self._precision_refusal(self._settings.precision),
            "attention kernel": self._refusal(switches.attention),
            CHANNELS_LAST: self._channels_last_refusal(),
            CONVOLUTIONS: self._refusal(switches.convolution_autotuning)
            or convolution_autotuning_refusal(module, len(self._root.signatures)),
        }
        return [item for item, reason in against.items() if reason is None]

    def precision(self) -> None:
        wanted = self._settings.precision
        reason = self._precision_refusal(wanted)
        if reason is not None:
            self._decision.refuse("precision", reason)
            return
        if wanted in (Precision.AUTO, Precision.TF32) and self._root.device.type == "cuda":
            self._tf32(forced=wanted is Precision.TF32)
        if wanted in (Precision.AUTO, Precision.BFLOAT16):
            plan = replace(self._plan, autocast=torch.bfloat16)
            forced = wanted is Precision.BFLOAT16
            what = "bfloat16 autocast"
            if self._trial.accepts(
                "precision", self._plan, plan, what=what, tolerance=BFLOAT16, forced=forced
            ):
                self._applied.plan = plan
        if wanted is Precision.FLOAT16:
            self._float16("precision", forced=True)
        elif wanted is Precision.AUTO and self._plan.autocast is None:
            self._float16("precision float16", forced=False)

    def _float16(self, item: str, *, forced: bool) -> None:
        reason = self._float16_refusal()
        if reason is None and not forced and self._root.device.type != "cuda":
            reason = "tried on cards where bfloat16 is missing or slow"
        plan = None if reason is not None else self._scaled_plan()
        if plan is None:
            self._decision.refuse(item, reason or "gradients overflow at every scale")
            return
        assert plan.loss_scale is not None
        what = f"float16 autocast, losses scaled by {plan.loss_scale.scale:g}"
        if self._trial.accepts(item, self._plan, plan, what=what, tolerance=FLOAT16, forced=forced):
            self._applied.plan = plan

    def _float16_refusal(self) -> str | None:
        module = self._root.module
        if self._facts.scales_loss:
            return "the script scales its loss itself"
        if self._facts.differentiates_gradients:
            return "the script differentiates gradients (create_graph)"
        if self._facts.steps_with_closure:
            return "gradients are computed inside the optimizer's step, too late to skip it"
        reason = skip_refusal(self._facts.optimizers) or scaling_refusal(module)
        reason = reason or scaling_refusal_of(self._root.wrapper)
        if reason is not None:
            return reason
        inputs = few_rows(self._recorded, 2).inputs.detached()
        with no_trace(module), torch.enable_grad():
            leaves = differentiable_leaves(inputs.call(module._call_impl))  # pyright: ignore[reportPrivateUsage]
        known = [leaf for leaf in inputs.leaves if isinstance(leaf, torch.Tensor)]
        if leaves_outside(leaves, trainable(module) + known):
            return "forward uses learning tensors that are not its parameters"
        return None

    def _scaled_plan(self) -> RootPlan | None:
        """float16 with the largest scale at which no gradient of this batch overflows."""
        scale = LossScale(exchanged=exchanged(self._root.wrapper))
        plan = replace(self._plan, autocast=torch.float16, loss_scale=scale)
        probe = RootProbe(self._root, self._recorded)
        while scale.scale >= 1.0:
            with no_trace(self._root.module):
                gradients = probe.run(plan).gradients
            if all(bool(torch.isfinite(g).all()) for g in gradients if g is not None):
                return plan
            scale.scale /= 2
        return None

    def _refusal(self, switch: bool) -> str | None:
        """What speaks against every item: the switch, a wrapper whose calls must not be run."""
        if not switch:
            return "switched off"
        wrapper = parallel_wrapper(self._root.module)
        return f"{wrapper} is left as it is" if wrapper else None

    def _precision_refusal(self, wanted: Precision) -> str | None:
        root = self._root
        reason: str | None = None
        if not self._switches.precision:
            reason = "switched off"
        elif wanted is Precision.FLOAT32:
            reason = "float32 was asked for"
        elif wanted is Precision.FLOAT8:
            reason = "float8 needs other layers, which are not injected; bfloat16 is"
        elif wanted is Precision.TF32 and root.device.type != "cuda":
            reason = f"tf32 exists on CUDA cards; this is {root.device.type}"
        elif root.user_autocast or "_original_forward" in vars(root.module):
            # Accelerate keeps a model's own forward under that name and calls it under autocast.
            reason = "the script uses autocast itself"
        elif any(p.dtype != torch.float32 for p in root.module.parameters()):
            reason = "the script chose the parameters' type itself"
        else:
            reason = self._refusal(True)
        return reason

    def _tf32(self, *, forced: bool) -> None:
        item = "precision tf32"
        reason = tf32_refusal()
        if reason is not None:
            self._decision.refuse(item, reason)
            return
        plan = replace(self._plan, flags=replace(self._plan.flags, tf32=True))
        if self._trial.accepts(item, self._plan, plan, tolerance=BFLOAT16, forced=forced):
            self._applied.plan = plan

    def attention(self) -> None:
        item = "attention kernel"
        reason = self._refusal(self._switches.attention) or self._attention_refusal()
        if reason is not None:
            self._decision.refuse(item, reason)
            return
        for kernel in candidates(self._root.device.type):
            plan = replace(self._plan, attention=kernel)
            tolerance = tolerance_of(plan)
            what = kernel.value
            if self._trial.accepts(item, self._plan, plan, what=what, tolerance=tolerance):
                self._applied.plan = plan

    def _attention_refusal(self) -> str | None:
        watch = AttentionWatch()
        probe = RootProbe(self._root, few_rows(self._recorded, 2))
        try:
            with no_trace(self._root.module), watch:
                probe.run(replace(self._plan, compiled=None, compiled_blocks=None))
        except Exception as error:
            return f"a probe failed: {short(error)}"
        return watch.refusal()

    def channels_last(self) -> None:
        item, reason = CHANNELS_LAST, self._channels_last_refusal()
        if reason is not None:
            self._decision.refuse(item, reason)
            return
        plan = replace(self._plan, channels_last=sample_shapes(self._recorded.inputs))
        if self._trial.accepts(item, self._plan, plan, tolerance=tolerance_of(plan)):
            self._applied.plan = plan

    def _channels_last_refusal(self) -> str | None:
        reason = self._refusal(self._switches.channels_last)
        return reason or channels_last_refusal(self._root.module, self._recorded.inputs)

    def convolution_autotuning(self) -> None:
        item = CONVOLUTIONS
        reason = self._refusal(self._switches.convolution_autotuning)
        reason = reason or convolution_autotuning_refusal(
            self._root.module, len(self._root.signatures)
        )
        if reason is not None:
            self._decision.refuse(item, reason)
            return
        flags = replace(self._plan.flags, convolution_autotuning=True)
        plan = replace(self._plan, flags=flags)
        if self._trial.accepts(item, self._plan, plan, tolerance=tolerance_of(plan)):
            self._applied.plan = plan

    def adopt(self, tuned: TunedSettings) -> None:
        """Takes over what an earlier run found; few samples show that it is safe here too."""
        if tuned.precision is not Precision.FLOAT32:
            self._adopt_precision(tuned.precision)
        if tuned.attention is not None:
            self._adopt_attention(tuned.attention)
        if tuned.channels_last:
            reason = self._channels_last_refusal()
            shapes = sample_shapes(self._recorded.inputs)
            self._adopt(CHANNELS_LAST, reason, replace(self._plan, channels_last=shapes))
        if tuned.convolution_autotuning:
            reason = self._refusal(self._switches.convolution_autotuning)
            reason = reason or convolution_autotuning_refusal(self._root.module, 1)
            flags = replace(self._plan.flags, convolution_autotuning=True)
            self._adopt(CONVOLUTIONS, reason, replace(self._plan, flags=flags))

    def _adopt_precision(self, precision: Precision) -> None:
        reason = self._precision_refusal(precision)
        plan = self._plan
        if precision is Precision.TF32:
            reason = reason or tf32_refusal()
            plan = replace(plan, flags=replace(plan.flags, tf32=True))
        elif precision is Precision.BFLOAT16:
            plan = replace(plan, autocast=torch.bfloat16)
        elif reason is None:
            reason = self._float16_refusal()
            scaled = self._scaled_plan() if reason is None else None
            reason = reason or (None if scaled else "gradients overflow at every scale")
            plan = scaled or plan
        self._adopt("precision", reason, plan, f"{precision.value} ")

    def _adopt_attention(self, kernel: AttentionKernel) -> None:
        reason = self._refusal(self._switches.attention) or self._attention_refusal()
        plan = replace(self._plan, attention=kernel)
        self._adopt("attention kernel", reason, plan, f"{kernel.value} ")

    def _adopt(self, item: str, reason: str | None, plan: RootPlan, what: str = "") -> None:
        if reason is not None:
            self._decision.refuse(item, reason)
        elif self._trial.safe(item, self._plan, plan, tolerance_of(plan)):
            self._applied.plan = plan
            self._decision.accept(item, f"{what}{self._decision.source}")
