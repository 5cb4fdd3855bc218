"""Chooses the settings of a running job by measurement, between two steps and without side effects.

Settings for memory come first (split, then activation checkpointing). Settings for speed follow
(precision, attention kernel, memory format, convolutions, compile, the optimizer's kernel).
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import torch

from gpujob_api.quantities import format_memory
from gpujob_api.report import Speedup
from gpujob_api.settings import OptimizeMode, Settings, TunedSettings
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.fused_optimizer import (
    COPIES_BYTES,
    OptimizerCopy,
    copies_bytes,
    copy_refusal,
    device_of,
    fused_in_force,
    fused_refusal,
    use_fused,
)
from gpujob_worker.inject.grad_scaling import skip_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.compare import measure_speedup
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.compile_choice import CompileItems
from gpujob_worker.tune.gain import GAIN_FRACTION, GAIN_SECONDS, Part, measure_gain
from gpujob_worker.tune.registry import SETTINGS, setting_called, tuned
from gpujob_worker.tune.setting import Candidate, Context, Refused, Setting
from gpujob_worker.tune.split_check import SplitCheck
from gpujob_worker.tune.trial import (
    AN_EARLIER_RUN,
    SPEEDUP_NEEDED,
    AcceptanceRule,
    Trial,
    run_noise,
    short,
    tolerance_of,
)

# Maximum relative differences of the parameters after a step, and of the updates that the step
# adds. Updates are small next to the parameters. Their difference means little for narrow types,
# whose rounding is larger than most updates.
FUSED_ERROR_MAX = 1e-5
UPDATE_ERROR_MAX = 1e-3
FUSED = setting_called("optimizer").ITEM
# The settings that are measured on the root's plan, in this order.
SPEED = tuple(s for s in SETTINGS if type(s).candidates is not Setting.candidates)


class SpeedItems:
    """Tries settings one after the other. Each one builds on those accepted before."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._trial = context.trial()

    def expected(self) -> list[str]:
        """Returns the settings that are not ruled out beforehand."""
        return [setting.ITEM for setting in SPEED if setting.refusal(self._context) is None]

    def choose_all(self) -> None:
        for setting in SPEED:
            self.choose(setting.NAME)

    def choose(self, name: str) -> None:
        """Chooses one setting by its name."""
        context, setting = self._context, setting_called(name)
        accepted = False
        for found in setting.tried(context):
            item = found.item or setting.ITEM
            if isinstance(found, Refused):
                context.acceptance_rule.skip(item, found.why)
                continue
            # The log line of the candidate accepted before stays, unless this one is better.
            own = f"{item} {found.what}" if accepted and not found.item else item
            if self._accepts(own, found):
                context.applied.plan, accepted = found.plan, True
                if own != item:
                    context.acceptance_rule.settle(item, own)

    def _accepts(self, item: str, found: Candidate) -> bool:
        return self._trial.accepts(
            item,
            self._context.plan,
            found.plan,
            what=found.what,
            tolerance=found.tolerance or tolerance_of(found.plan, self._context.root),
            forced=found.forced,
        )

    def adopt(self, tuned: TunedSettings) -> None:
        """Adopts the settings of an earlier run, after a check on a few samples."""
        for setting in SPEED:
            found = setting.known(self._context, tuned)
            if found is not None:
                self._adopt(setting.ITEM, found)

    def _adopt(self, item: str, found: Candidate | Refused) -> None:
        context = self._context
        if isinstance(found, Refused):
            context.acceptance_rule.skip(item, found.why)
        elif self._trial.safe(
            item, context.plan, found.plan, tolerance_of(found.plan, context.root)
        ):
            context.applied.plan = found.plan
            context.acceptance_rule.accept(item, f"{found.what}{context.acceptance_rule.source}")


class Tuner:
    """One tuning of one root and its optimizer, within `budget_seconds`."""

    def __init__(
        self,
        settings: Settings,
        features: Features,
        log: DecisionLog,
        budget_seconds: float,
        facts: ScriptFacts | None = None,
        source: str = AN_EARLIER_RUN,
    ) -> None:
        self._settings = settings
        self._features = features
        self._log = log
        self._facts = facts or ScriptFacts()
        self._acceptance_rule = AcceptanceRule(
            settings,
            log,
            budget_seconds,
            self._facts.processes,
            limited=self._facts.memory_limited,
            source=source,
        )
        self.applied = Applied()
        self.split_check = SplitCheck(limited=self._facts.memory_limited)
        # True until the fused kernel is shown to compute the same in all optimizers.
        self._unproven = False

    def start(self, budget_seconds: float) -> None:
        """Starts the time for measuring. A memory limit is checked long before."""
        self._acceptance_rule.start(budget_seconds)

    @property
    def recommends(self) -> bool:
        """True if choices are only reported, not applied."""
        return self._settings.mode is OptimizeMode.RECOMMEND

    def whole(self, root: Root) -> None:
        """Undoes the choices for memory, so that they can be made again."""
        ActivationCheckpointing(root).disable()
        self.without_split()
        self.applied.activation_checkpointing = False

    def without_split(self) -> None:
        self.applied.plan = self.applied.plan.without_split()

    def split_finer(self, rows: int) -> None:
        """Splits into fewer samples than were shown to be safe. Each chunk is computed twice."""
        self.applied.plan = replace(self.applied.plan, rows_per_step=rows, keeps_chunk=False)

    def checkpoint(self, on: bool) -> None:
        """Turns activation checkpointing on or off after it was shown to be safe."""
        self.applied.activation_checkpointing = on

    def settle_for(self, applied: Applied) -> None:
        """Replaces the choices by those that are left."""
        self.applied = applied

    def split(
        self,
        root: Root,
        recorded: RecordedCall,
        rows: int,
        why: str,
        *,
        keeps_chunk: bool = True,
    ) -> bool:
        """Splits the root's call into `rows` samples if that changes nothing on the real batch."""
        context, setting = self._context(root, recorded), setting_called("batch_split")
        total, reason = recorded.inputs.rows, setting.switched_off(context)
        if reason is None and total is not None and rows >= total:
            reason = f"the batch of {total} goes through at once"
        reason = reason or setting.refusal(context)
        if reason is not None:
            self._log.skipped(setting.ITEM, reason)
            return False
        found = self.split_check.compared(root, recorded, rows)
        if found.refusal is not None:
            self._log.skipped(setting.ITEM, found.refusal)
            return False
        part = f"; {found.part}" if found.part else ""
        self._acceptance_rule.accept(
            setting.ITEM, f"{total} samples in steps of {rows}, {why}{part}"
        )
        plan = self.applied.plan
        self.applied.plan = replace(plan, rows_per_step=rows, keeps_chunk=keeps_chunk)
        return True

    def activation_checkpointing(self, root: Root, recorded: RecordedCall, why: str) -> bool:
        setting = setting_called("activation_checkpointing")
        reason = setting.refusal(self._context(root, recorded))
        if reason is not None:
            self._log.skipped(setting.ITEM, reason)
            return False
        blocks = len(ActivationCheckpointing(root).blocks)
        self._acceptance_rule.accept(setting.ITEM, f"{blocks} blocks, {why}")
        self.applied.activation_checkpointing = True
        return True

    def offload(self, root: Root, recorded: RecordedCall, why: str) -> bool:
        """Keeps activations and optimizer state on the host, as the last resort for memory."""
        activations = self._activation_offload(root, recorded, why)
        return self._optimizer_offload(root, recorded, why) or activations

    def _activation_offload(self, root: Root, recorded: RecordedCall, why: str) -> bool:
        item, present = "activation offload", self.applied.plan
        plan = replace(present, activations_on_host=True)
        reason = self._offload_refusal(root, recorded)
        if reason is not None:
            self._log.skipped(item, reason)
            return False
        trial = Trial(self._acceptance_rule, root, recorded)
        if not trial.safe(item, present, plan, tolerance_of(plan, root)):
            return False
        self._acceptance_rule.accept(item, why)
        self.applied.plan = plan
        return True

    def _optimizer_offload(self, root: Root, recorded: RecordedCall, why: str) -> bool:
        item, reason = "optimizer offload", self._offload_refusal(root, recorded)
        if reason is not None:
            self._log.skipped(item, reason)
            return False
        self._acceptance_rule.accept(item, why)
        self.applied.optimizer_offload = True
        return True

    def _offload_refusal(self, root: Root, recorded: RecordedCall) -> str | None:
        return setting_called("offload").refusal(self._context(root, recorded))

    def _context(self, root: Root, recorded: RecordedCall) -> Context:
        return Context(
            self._settings,
            self._features,
            self._acceptance_rule,
            self.applied,
            root,
            recorded,
            self._facts,
        )

    def tuned(self) -> TunedSettings:
        """Returns the choices, for reports and for the next run."""
        return tuned(self.applied)

    def speed_items(self, root: Root, recorded: RecordedCall) -> SpeedItems:
        return SpeedItems(self._context(root, recorded))

    def speed(self, root: Root, recorded: RecordedCall) -> None:
        """Tunes everything except compilation, which may have to wait."""
        self.speed_items(root, recorded).choose_all()

    def compile(self, root: Root, recorded: RecordedCall) -> None:
        self.compile_items(root, recorded).choose()

    def compile_refusal(self, root: Root, recorded: RecordedCall) -> str | None:
        """Returns the reason against a compilation before anything is tried, or None."""
        return setting_called("compile").refusal(self._context(root, recorded))

    def compile_items(self, root: Root, recorded: RecordedCall) -> CompileItems:
        return CompileItems(self._context(root, recorded))

    def expects_speed(self, root: Root, recorded: RecordedCall) -> None:
        """Makes earlier measurements leave time for `speed`."""
        self._acceptance_rule.expects(self.speed_items(root, recorded).expected())

    def fused_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        free_bytes: int = COPIES_BYTES,
        item: str = FUSED,
    ) -> bool:
        """Returns whether the kernel is faster and computes the same; `fuse` chooses it.

        Measures on copies of the optimizer, which need free memory.
        """
        if not self._acceptance_rule.measures(item, forced=False):
            return False
        refusal = self._fused_refusal(optimizer)
        if refusal is not None:
            self._log.skipped(item, refusal)
            return False
        unproven, self._unproven = self._unproven, True  # Until the numbers are compared.
        refusal = _copies_refusal(optimizer, free_bytes)
        if refusal is not None:
            self._log.skipped(item, refusal)
            return False
        if not self._acceptance_rule.in_time(item, forced=False):
            return False
        try:
            plain, fused = OptimizerCopy(optimizer), OptimizerCopy(optimizer)
            use_fused(fused.optimizer, True)
            plain.step_seconds()
            fused.step_seconds()
            parameters = plain.closeness(fused).relative_error
            updates = plain.update_error(fused)
            found = measure_speedup(
                plain.step_seconds,
                fused.step_seconds,
                self._acceptance_rule.share(item),
                needed=SPEEDUP_NEEDED,
                noise=run_noise(device_of(optimizer)),
            )
        except Exception as error:
            self._log.skipped(item, f"failed: {short(error)}")
            return False
        numbers = f"parameters differ by {parameters:.1e} after a step, updates by {updates:.1e}"
        close = parameters <= FUSED_ERROR_MAX and updates <= UPDATE_ERROR_MAX
        self._unproven = unproven or not close
        of = "the optimizer's step alone"
        return self._acceptance_rule.decide(item, found, numbers, close, False, of)

    def _fused_refusal(self, optimizer: torch.optim.Optimizer) -> str | None:
        """Returns the reason against the kernel, which also holds in the next run."""
        if not self._features.allows("optimizer"):
            return "switched off"
        return fused_refusal(optimizer)

    def fuse(self, chosen: bool, judged: int) -> None:
        """Records whether one of the optimizers steps with the kernel.

        The next run tries nothing. It uses the kernel for as many optimizers as were `judged`, and
        for none if the numbers of one disagreed or could not be compared.
        """
        self.applied.fused = chosen
        self.applied.fused_here_only = chosen and self._unproven
        self.applied.optimizers_judged = judged if chosen else 1

    def gain(
        self,
        root: Root,
        recorded: RecordedCall,
        optimizers: Sequence[torch.optim.Optimizer] = (),
        beside: Sequence[tuple[Root, RecordedCall, Applied]] = (),
    ) -> Speedup | None:
        """Returns the gain of the choices, alternating with the script's own settings; None if it
        cannot be measured.

        `optimizers` are those with the fused kernel. `beside` has calls of other modules in the
        same step, with their settings.
        """
        ways = [self._ways(applied) for applied in (self.applied, *(way for *_, way in beside))]
        if self.recommends or all(plain == chosen for plain, chosen in ways):
            return None
        calls = [(root, recorded), *((other, call) for other, call, _ in beside)]
        parts = [Part(*call, *way) for call, way in zip(calls, ways, strict=True)]
        granted = GAIN_FRACTION * self._acceptance_rule.budget_seconds
        seconds = max(GAIN_SECONDS, granted, self._acceptance_rule.seconds_left())
        try:
            with ExitStack() as stack:
                for part in parts:
                    stack.enter_context(no_trace(part.root.module))
                return measure_gain(parts, optimizers, seconds)
        except Exception as error:
            self._log.skipped("speed-up", f"measuring failed: {short(error)}")
            return None

    def _ways(self, chosen: Applied) -> tuple[Applied, Applied]:
        """Returns the script's own settings, except those that keep a memory limit, and the chosen
        ones.
        """
        limited = self._facts.memory_limited
        own = chosen.without_settings()
        return chosen.memory_only() if limited else own, chosen

    def adopt(
        self,
        root: Root,
        recorded: RecordedCall,
        tuned: TunedSettings,
        *,
        keeps_chunk: bool = True,
        whole: Root | None = None,
    ) -> None:
        """Adopts settings of an earlier run, except those that cannot be shown to be safe.

        `whole` is the copy on which a module that is spread over processes is tried.
        """
        self.applied.loader_workers = tuned.data_loader_workers
        expands = tuned.expandable_segments and self._features.allows("expandable_segments")
        self.applied.expandable_segments = expands
        # The optimizer is not known yet. `adopt_fused` checks it before its first step.
        self.applied.fused = tuned.fused_optimizer and self._features.allows("optimizer")
        self.applied.optimizers_judged = tuned.optimizers_judged if self.applied.fused else 1
        if tuned.batch_per_step is not None:
            rows, source = tuned.batch_per_step, self._acceptance_rule.source
            self.split(root, recorded, rows, source, keeps_chunk=keeps_chunk)
        if tuned.activation_checkpointing:
            self.activation_checkpointing(root, recorded, self._acceptance_rule.source)
        if tuned.activation_offload:
            self._activation_offload(root, recorded, self._acceptance_rule.source)
        if tuned.optimizer_offload:
            self._optimizer_offload(root, recorded, self._acceptance_rule.source)
        self.adopt_speed(whole or root, recorded, tuned)
        self.adopt_compiled(root, recorded, tuned)

    def adopt_speed(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Adopts settings for speed that are close on this call, except compilation."""
        self.speed_items(root, recorded).adopt(tuned)

    def adopt_compiled(
        self, root: Root, recorded: RecordedCall, tuned: TunedSettings, *, compares: bool = False
    ) -> None:
        """Adopts the compilation. With `compares`, it may come from another module and must be
        close.
        """
        self.compile_items(root, recorded).adopt(tuned, compares=compares)

    def adopt_scaling(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before the first step; keeps float16 only if the optimizer can skip a step."""
        if self.applied.plan.loss_scale is None:
            return
        reason = skip_refusal([optimizer])
        if self._facts.steps_with_closure:
            reason = "gradients are computed inside the optimizer's step, too late to skip it"
        if reason is not None:
            self.applied.plan = replace(self.applied.plan, autocast=None, loss_scale=None)
            self._log.skipped("precision", reason)

    def adopt_fused(
        self, optimizer: torch.optim.Optimizer, tuned: TunedSettings, item: str = FUSED
    ) -> bool:
        """Returns whether an optimizer gets the earlier run's kernel; called before its first step.

        A script that copied its optimizer may carry the kernel in the optimizer's own groups.
        """
        if not tuned.fused_optimizer:
            return False
        if not self._features.allows("optimizer"):
            if fused_in_force(optimizer):
                use_fused(optimizer, False)
            self._log.skipped(item, "switched off")
            return False
        reason = None if fused_in_force(optimizer) else fused_refusal(optimizer)
        if reason is not None:
            self._log.skipped(item, reason)
            return False
        self._acceptance_rule.accept(item, self._acceptance_rule.source)
        return True


def _copies_refusal(optimizer: torch.optim.Optimizer, free_bytes: int) -> str | None:
    """Returns why the kernel cannot be measured on copies in this run, or None."""
    reason = copy_refusal(optimizer)
    needed = 0 if reason else 2 * copies_bytes(optimizer)
    if needed > free_bytes:
        free = format_memory(free_bytes)
        reason = f"measuring it would take {format_memory(needed)} of copies, {free} are free"
    return reason
