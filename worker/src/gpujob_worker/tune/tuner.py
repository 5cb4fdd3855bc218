"""Chooses the settings of a running job by measurement, between two steps, leaving no trace.

Order: memory first (split, then activation checkpointing), then speed (precision, compile, the
optimizer's kernel). A candidate that nobody asked for is kept only when it is faster beyond noise
and its outputs and gradients agree with the plain run on a real batch.
"""

import time
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gpujob_api.settings import OptimizeMode, Precision, Settings, Toggle, TunedSettings
from gpujob_worker.explanation import Explanation
from gpujob_worker.inject.activation import ActivationCheckpointing
from gpujob_worker.inject.compiling import compile_refusal, compile_root
from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.inject.optimizers import (
    MEASURE_BYTES_MAX,
    OptimizerCopy,
    copies_bytes,
    fused_refusal,
    use_fused,
)
from gpujob_worker.inject.root import RecordedCall, Root, RootPlan
from gpujob_worker.inject.split_check import split_refusal
from gpujob_worker.switches import Switches
from gpujob_worker.tune.compare import Speedup, measure_speedup
from gpujob_worker.tune.no_trace import no_trace
from gpujob_worker.tune.probe import RootProbe

SPEEDUP_NEEDED = 1.02
# Libraries set themselves up in a first call; beyond this factor that is no excuse any more.
HOPELESS = 8.0
# bfloat16 has 8 bits of mantissa: outputs within a few percent, gradients in the same direction.
BFLOAT16_OUTPUT_ERROR_MAX = 0.05
BFLOAT16_COSINE_MIN = 0.98
# Another order of float32 operations.
SAME_TYPE_ERROR_MAX = 1e-3
SAME_TYPE_COSINE_MIN = 0.9999
FUSED_ERROR_MAX = 1e-5


@dataclass(slots=True)
class Applied:
    """What is in force; everything that `undo` has to take back."""

    plan: RootPlan = field(default_factory=RootPlan)
    precision: Precision = Precision.FLOAT32
    activation_checkpointing: bool = False
    fused: bool = False
    loader_workers: int | None = None

    def tuned(self) -> TunedSettings:
        return TunedSettings(
            precision=self.precision,
            batch_per_step=self.plan.rows_per_step,
            activation_checkpointing=self.activation_checkpointing,
            compile=self.plan.compiled is not None,
            data_loader_workers=self.loader_workers,
        )


class Tuner:
    """One tuning of one root and its optimizer, within `budget_seconds`."""

    def __init__(
        self,
        settings: Settings,
        switches: Switches,
        explanation: Explanation,
        budget_seconds: float,
    ) -> None:
        self._settings = settings
        self._switches = switches
        self._explain = explanation
        self._ends = time.monotonic() + budget_seconds
        self._recommend = settings.mode is OptimizeMode.RECOMMEND
        self.applied = Applied()

    def has_time(self) -> bool:
        return time.monotonic() < self._ends

    def split(self, root: Root, recorded: RecordedCall, rows: int, why: str) -> bool:
        """Splits the root's call into `rows` samples where that is shown to change nothing."""
        if not self._switches.batch_split:
            self._explain.refused("batch split", "switched off")
            return False
        total = recorded.inputs.rows
        if total is not None and rows >= total:
            self._explain.refused("batch split", f"the batch of {total} goes through at once")
            return False
        reason = split_refusal(root, recorded)
        if reason is not None:
            self._explain.refused("batch split", reason)
            return False
        self._accept("batch split", f"{total} samples in steps of {rows}, {why}")
        self.applied.plan = replace(self.applied.plan, rows_per_step=rows)
        return True

    def activation_checkpointing(self, root: Root, recorded: RecordedCall, why: str) -> bool:
        item = "activation checkpointing"
        if not self._switches.activation_checkpointing:
            self._explain.refused(item, "switched off")
            return False
        blocks = ActivationCheckpointing(root)
        reason = blocks.refusal(recorded)
        if reason is not None:
            self._explain.refused(item, reason)
            return False
        self._accept(item, f"{len(blocks.blocks)} blocks, {why}")
        self.applied.activation_checkpointing = True
        return True

    def precision(self, root: Root, recorded: RecordedCall) -> None:
        wanted = self._settings.precision
        reason = self._precision_refusal(root, wanted)
        if reason is not None:
            self._explain.refused("precision", reason)
            return
        if wanted in (Precision.AUTO, Precision.TF32) and root.device.type == "cuda":
            self._tf32(root, recorded, forced=wanted is Precision.TF32)
        if wanted in (Precision.AUTO, Precision.BFLOAT16):
            self._bfloat16(root, recorded, forced=wanted is Precision.BFLOAT16)

    def _precision_refusal(self, root: Root, wanted: Precision) -> str | None:
        reason: str | None = None
        if not self._switches.precision:
            reason = "switched off"
        elif wanted is Precision.FLOAT32:
            reason = "float32 was asked for"
        elif wanted in (Precision.FLOAT16, Precision.FLOAT8):
            reason = f"{wanted.value} needs loss scaling, which is not injected; bfloat16 is"
        elif wanted is Precision.TF32 and root.device.type != "cuda":
            reason = f"tf32 exists on CUDA cards; this is {root.device.type}"
        elif root.user_autocast:
            reason = "the script uses autocast itself"
        elif any(p.dtype != torch.float32 for p in root.module.parameters()):
            reason = "the script chose the parameters' type itself"
        else:
            wrapper = parallel_wrapper(root.module)
            reason = f"{wrapper} is left as it is" if wrapper else None
        return reason

    def _tf32(self, root: Root, recorded: RecordedCall, *, forced: bool) -> None:
        before = torch.get_float32_matmul_precision()
        if before != "highest":
            self._explain.refused("precision tf32", f"the script chose {before!r} itself")
            return
        probe = RootProbe(root, recorded)

        def with_tf32(name: str, call: Any) -> Any:
            torch.set_float32_matmul_precision(name)
            try:
                return call(self.applied.plan)
            finally:
                torch.set_float32_matmul_precision(before)

        with no_trace(root.module):
            plain = probe.run(self.applied.plan)
            _, gradients = plain.compare(with_tf32("high", probe.run))
            found = measure_speedup(
                lambda: probe.seconds(self.applied.plan),
                lambda: with_tf32("high", probe.seconds),
                self.has_time,
                needed=SPEEDUP_NEEDED,
            )
        close = gradients.within(BFLOAT16_OUTPUT_ERROR_MAX, BFLOAT16_COSINE_MIN)
        if self._decide("precision tf32", found, str(gradients.relative_error), close, forced):
            self.applied.precision = Precision.TF32

    def _bfloat16(self, root: Root, recorded: RecordedCall, *, forced: bool) -> None:
        plan = replace(self.applied.plan, autocast=torch.bfloat16)
        probe = RootProbe(root, recorded)
        try:
            with no_trace(root.module):
                slower = self._times_slower(root, recorded, plan)
                if slower > HOPELESS and not forced:
                    text = f"bfloat16 is {slower:.1f} times slower on {root.device.type}"
                    self._explain.refused("precision", text)
                    return
                outputs, gradients = probe.run(self.applied.plan).compare(probe.run(plan))
                found = self._speedup(probe, plan)
        except Exception as error:
            self._explain.refused("precision", f"bfloat16 failed: {_short(error)}")
            return
        close = outputs.relative_error <= BFLOAT16_OUTPUT_ERROR_MAX
        close = close and gradients.cosine >= BFLOAT16_COSINE_MIN
        numbers = (
            f"outputs differ by {100 * outputs.relative_error:.2g} %, "
            f"gradients' cosine {gradients.cosine:.5f}"
        )
        if self._decide("precision", found, f"bfloat16 autocast, {numbers}", close, forced):
            self.applied.plan = plan
            self.applied.precision = Precision.BFLOAT16

    def _times_slower(self, root: Root, recorded: RecordedCall, plan: RootPlan) -> float:
        """A first look at few samples, so that a hopeless candidate costs no full step."""
        rows = recorded.inputs.rows or 1
        few = recorded.inputs.narrow(0, min(rows, max(2, rows // 16)), recorded.inputs.batched())
        probe = RootProbe(root, RecordedCall(few))
        plain = min(probe.seconds(self.applied.plan) for _ in range(3))
        return probe.seconds(plan) / max(plain, 1e-9)

    def compile(self, root: Root, recorded: RecordedCall) -> None:
        reason = "switched off" if not self._switches.compile else compile_refusal(root)
        if self._settings.compile is Toggle.OFF:
            reason = "not asked for (compile: Off)"
        if reason is not None:
            self._explain.refused("compile", reason)
            return
        plan = self._compiled_plan(root, recorded)
        probe = RootProbe(root, recorded)
        start = time.monotonic()
        try:
            with no_trace(root.module):
                first = probe.run(plan)
                compile_seconds = time.monotonic() - start
                self._ends = max(self._ends, time.monotonic() + 3.0)
                outputs, gradients = probe.run(self.applied.plan).compare(first)
                found = self._speedup(probe, plan)
        except Exception as error:
            self._explain.refused("compile", f"failed: {_short(error)}")
            return
        error_max, cosine = SAME_TYPE_ERROR_MAX, SAME_TYPE_COSINE_MIN
        if plan.autocast is not None:
            error_max, cosine = BFLOAT16_OUTPUT_ERROR_MAX, BFLOAT16_COSINE_MIN
        close = outputs.relative_error <= error_max and gradients.cosine >= cosine
        numbers = f"after {compile_seconds:.1f} s, outputs differ by {outputs.relative_error:.1e}"
        forced = self._settings.compile is Toggle.ON
        if self._decide("compile", found, numbers, close, forced):
            self.applied.plan = plan

    def _compiled_plan(self, root: Root, recorded: RecordedCall) -> RootPlan:
        inputs = recorded.inputs
        rows = self.applied.plan.rows_per_step
        if rows is not None and inputs.rows is not None and rows < inputs.rows:
            inputs = inputs.narrow(0, rows, inputs.batched())
        return replace(
            self.applied.plan, compiled=compile_root(root), compiled_signature=inputs.signature
        )

    def fused_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        reason = None if self._switches.optimizer else "switched off"
        reason = reason or fused_refusal(optimizer)
        needed = 0 if reason else 2 * copies_bytes(optimizer)
        if needed > MEASURE_BYTES_MAX:
            reason = f"measuring it would take {needed / 2**30:.1f} GiB of copies"
        if reason is not None:
            self._explain.refused("fused optimizer", reason)
            return
        try:
            plain, fused = OptimizerCopy(optimizer), OptimizerCopy(optimizer)
            use_fused(fused.optimizer, True)
            plain.step_seconds()
            fused.step_seconds()
            close = plain.closeness(fused).relative_error
            found = measure_speedup(
                plain.step_seconds, fused.step_seconds, self.has_time, needed=SPEEDUP_NEEDED
            )
        except Exception as error:
            self._explain.refused("fused optimizer", f"failed: {_short(error)}")
            return
        numbers = f"parameters differ by {close:.1e} after a step"
        if self._decide("fused optimizer", found, numbers, close <= FUSED_ERROR_MAX, False):
            self.applied.fused = True

    def adopt(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Takes over settings of an earlier run. What cannot be shown to be safe is left out."""
        if tuned.batch_per_step is not None:
            self.split(root, recorded, tuned.batch_per_step, "from an earlier run")
        if tuned.activation_checkpointing:
            self.activation_checkpointing(root, recorded, "from an earlier run")
        if tuned.precision is not Precision.FLOAT32:
            reason = self._precision_refusal(root, tuned.precision)
            if reason is not None:
                self._explain.refused("precision", reason)
            else:
                self._adopt_precision(tuned.precision)
        if tuned.compile:
            reason = compile_refusal(root) if self._switches.compile else "switched off"
            if reason is not None:
                self._explain.refused("compile", reason)
            else:
                self.applied.plan = self._compiled_plan(root, recorded)
                self._accept("compile", "from an earlier run")

    def _adopt_precision(self, precision: Precision) -> None:
        self.applied.precision = precision
        if precision is Precision.BFLOAT16:
            self.applied.plan = replace(self.applied.plan, autocast=torch.bfloat16)
        self._accept("precision", f"{precision.value} from an earlier run")

    def _speedup(self, probe: RootProbe, plan: RootPlan) -> Speedup:
        probe.seconds(plan)
        return measure_speedup(
            lambda: probe.seconds(self.applied.plan),
            lambda: probe.seconds(plan),
            self.has_time,
            needed=SPEEDUP_NEEDED,
        )

    def _decide(self, item: str, found: Speedup, numbers: str, close: bool, forced: bool) -> bool:
        if not close:
            self._explain.refused(item, f"numbers disagree: {numbers}")
            return False
        if found.low <= SPEEDUP_NEEDED and not forced:
            self._explain.refused(item, f"not faster beyond noise: {found}; {numbers}")
            return False
        self._accept(item, f"{'asked for, ' if forced else ''}{found}; {numbers}")
        return True

    def _accept(self, item: str, what: str) -> None:
        (self._explain.recommended if self._recommend else self._explain.applied)(item, what)


def put_in_force(root: Root, optimizer: torch.optim.Optimizer | None, applied: Applied) -> None:
    """Makes the next step run with `applied`; `Applied()` is the script's own way."""
    root.plan = applied.plan
    blocks = ActivationCheckpointing(root)
    (blocks.enable if applied.activation_checkpointing else blocks.disable)()
    if applied.precision is Precision.TF32:
        torch.set_float32_matmul_precision("high")
    if optimizer is not None and applied.fused:
        use_fused(optimizer, True)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}"[
        :160
    ]
