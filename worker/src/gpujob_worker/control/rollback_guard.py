"""Watches a run after its settings were applied (speed, memory, loss), and rolls them back if
needed.

It also checks once whether the allocator's memory is fragmented (`SegmentsCheck`).
"""

import math
import os
from collections import deque
from dataclasses import dataclass, field

import torch

from gpujob_api.quantities import format_memory
from gpujob_api.report import Timing
from gpujob_api.settings import OptimizeMode, Precision, Toggle
from gpujob_worker.control.sharded_tuning import sharded_root
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.device.memory import CudaMemory
from gpujob_worker.device.segments import Unused, segments_in_force, segments_refusal
from gpujob_worker.device.step_events import DeviceEvents
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.process_flags import Tf32
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.memory_limit.model import divisors
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import setting_called
from gpujob_worker.tune.trial import short

CONFIRM_STEPS = 10
SLOWER_ALLOWED = 1.10
LOSS_CHECK_STEPS = 20
# The loss rises this many times its first size above the first losses, in this many consecutive
# checks.
DIVERGED_FACTOR = 2.0
DIVERGED_CHECKS = 3
LOSSES_PENDING_MAX = 16
# Steps until memory is checked for fragments, enough to show a script's sizes.
SEGMENTS_CHECK_STEPS = 50


class SegmentsCheck:
    """Checks once whether memory is fragmented. The next process then uses expandable segments.

    A process that already uses the GPU cannot switch to them. The finding is reported with the
    other settings. The next attempt begins with it (`device.segments`) and checks again. Counters
    of the allocator are read in one step only.
    """

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._setting = setting_called("expandable_segments")

    def step(self, since: int) -> None:
        """Called after each step. `since` counts the steps after the settings were applied."""
        memory = self._session.meter.memory
        if since != SEGMENTS_CHECK_STEPS or not isinstance(memory, CudaMemory):
            return
        self._session.meter.read_memory()
        self._judge(self._unused(memory))

    def _unused(self, memory: CudaMemory) -> Unused:
        window, beside = self._session.meter.window, memory.context_bytes
        allocated = max(
            window.forward_backward_bytes, window.optimizer_bytes, memory.allocated_peak_bytes()
        )
        return Unused(memory.current_bytes() - beside, allocated - beside)

    def _judge(self, unused: Unused) -> None:
        said, item = self._session.log, self._setting.ITEM
        if segments_in_force(os.environ):
            if unused.is_large:
                said.skipped(item, f"from the next start on: with them {unused}")
            self._want(not unused.is_large)
            return
        reason = self._refusal()
        if reason is None and not unused.is_large:
            reason = str(unused)
        if reason is not None:
            said.skipped(item, reason)
        elif self._session.environment.settings.mode is OptimizeMode.RECOMMEND:
            said.recommended(item, str(unused))
        else:
            said.note(item, f"from the next start on: {unused}")
            self._want(True)

    def _refusal(self) -> str | None:
        if not self._session.features.allows(self._setting.NAME):
            return "switched off"
        return segments_refusal(os.environ)

    def _want(self, wanted: bool) -> None:
        tuner = self._model.first.tuner
        if tuner is not None and tuner.applied.expandable_segments != wanted:
            tuner.applied.expandable_segments = wanted
            self._model.report()


class LaterNumber:
    """A tensor's single number as it is now, available on the host once the device has
    computed it. Nothing waits for the device.
    """

    def __init__(self, tensor: torch.Tensor, events: DeviceEvents | None) -> None:
        self._events = events
        self._host, self._mark = tensor, None
        if events is not None and tensor.is_cuda:
            self._host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
            self._mark = events.mark()

    @property
    def ready(self) -> bool:
        return self._events is None or self._mark is None or self._events.happened(self._mark)

    def value(self) -> float:
        return float(self._host)


@dataclass(slots=True)
class LossDivergence:
    """Detects a diverged run: its loss is not finite, or stays far above its start."""

    first: list[float] = field(default_factory=list[float])
    _above: int = 0

    def starts(self, loss: float) -> None:
        if math.isfinite(loss):
            self.first.append(loss)

    def verdict(self, loss: float) -> str | None:
        if not math.isfinite(loss):
            return "the loss is not finite any more"
        if not self.first:
            return None
        worst = max(self.first)
        scale = max(abs(worst), worst - min(self.first))
        self._above = self._above + 1 if loss > worst + DIVERGED_FACTOR * scale else 0
        if self._above < DIVERGED_CHECKS:
            return None
        return f"the loss diverges: {loss:.4g} after {worst:.4g} in the first steps"


class RollbackGuard:
    """The checks between steps. They read the loss only every `LOSS_CHECK_STEPS` steps, to stay
    cheap.
    """

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._log = session.log
        self._segments = SegmentsCheck(session, model)
        self._loss = LossDivergence()
        # Losses that the device has not computed yet, and whether each is of the first steps.
        self._losses: deque[tuple[bool, LaterNumber]] = deque()
        self._since = 0
        # Timing of the steps before the last compilation, and the step of the check that compares
        # it.
        self._before_compiled: Timing | None = None
        self._compiled_check = 0

    @property
    def _applied(self) -> Applied:
        return self._model.first.applied

    def again(self) -> None:
        """Starts over for another model."""
        self._loss = LossDivergence()
        self._losses.clear()
        self._since = 0
        self._before_compiled = None

    def first_steps(self) -> None:
        """Records the losses of the first steps, to which later ones are compared."""
        self._read_loss(first=True)
        self._judge_losses()

    def step(self, since: int) -> None:
        """Called after each step. `since` counts the steps after the settings were applied."""
        self._since = since
        if since % CONFIRM_STEPS == 0:
            self._roll_back_together(since)
        if since == CONFIRM_STEPS:
            self._confirm()
        if since == self._compiled_check:
            self._confirm_compiled()
        self._bound_compilations()
        self._segments.step(since)
        if since % CONFIRM_STEPS == 0:
            self._keep_limit(settling=since == CONFIRM_STEPS)
        if since % LOSS_CHECK_STEPS == 0 and not self._over:
            self._read_loss(first=False)
        self._judge_losses()

    def compiled(self, before: Timing | None) -> None:
        """Called when compiled code is applied after this step. Steps took `before` without it."""
        self._before_compiled = before
        self._compiled_check = self._since + CONFIRM_STEPS

    def scaled_step_ends(self, scale: LossScale) -> None:
        skipped = scale.skipped
        scale.step_ends()
        self._session.state.skipped(scale.skipped)
        if scale.skipped > skipped:
            self._log.note("loss scaling", str(scale))
        if scale.hopeless:
            # This step's check comes after this call.
            self._roll_back(f"gradients overflow, {scale}", self._since + 1)

    def loss_changed(self, why: str) -> None:
        """Rolls back settings that change the loss. A lower precision is the most likely cause."""
        plan = self._applied.plan
        lower = plan.autocast is not None or plan.setting(Tf32) is not None
        if lower and self._model.consensus is None:
            self._model.roll_back_setting("precision", why)
        else:
            self._roll_back(why, self._since + 1)

    def call_failed(self, error: Exception) -> None:
        """Called after a call failed with the settings and succeeded without them.

        A sharded module's call was not repeated. The script's next attempt begins without the
        settings.
        """
        why = f"a call of the model failed with it, {short(error)}"
        if sharded_root(self._model) is not None:
            self._model.roll_back(why)
        else:
            self._roll_back(why, self._since + 1)

    def _roll_back(self, why: str, at: int) -> None:
        """Rolls back at once or, if several processes decide together, after their next check."""
        if self._model.consensus is None:
            self._model.roll_back(why)
        elif not self._model.rolled_back:
            self._model.consensus.ask_roll_back(at, why)

    def _roll_back_together(self, at: int) -> None:
        consensus = self._model.consensus
        if consensus is None or self._model.rolled_back:
            return
        why = consensus.roll_back_due(at)
        if why is not None:
            self._model.roll_back(why)
        elif self._applied.plan.compiles:
            slower = consensus.roll_back_due(at, "compile")
            if slower is not None:
                self._model.roll_back_setting("compile", slower)

    def _keep_limit(self, *, settling: bool) -> None:
        """Makes a split finer if it was too coarse. The finer one was shown to be safe already."""
        session, tuner = self._session, self._model.first.tuner
        limit, rows = session.environment.memory_limit_bytes, self._applied.plan.rows_per_step
        session.meter.read_memory()
        peak = session.meter.window.peak_memory_bytes
        if limit is None or peak <= limit:
            return
        finer = _finer(rows)
        if finer is None:
            if self._make_further_finer(peak, limit):
                return
            if self._model.first.fit is not None:
                # Later peaks may have other causes, such as an evaluation or a checkpoint. A step
                # of slower settings may not make them smaller, so they are only reported.
                self._model.first.fit.judge(peak, ends=settling)
                session.state.needs(self._model.first.fit.needed_bytes)
            return
        assert tuner is not None
        tuner.split_finer(finer)
        numbers = f"{format_memory(peak)} measured, limit {format_memory(limit)}"
        self._log.applied("batch split", f"steps of {finer}; of {rows}: {numbers}")
        text = f"{numbers}; steps of {finer} from now on{self._model.whose}"
        self._log.note("memory limit", text)
        self._model.apply()
        self._model.report()
        session.meter.memory.trim()
        session.meter.new_window()

    def _make_further_finer(self, peak: int, limit: int) -> bool:
        """Returns whether the split of a module other than the first was made finer."""
        for module in self._model.further:
            tuner = module.choices
            finer = _finer(tuner.applied.plan.rows_per_step)
            if finer is None or tuner.recommends:
                continue
            tuner.split_finer(finer)
            numbers = f"{format_memory(peak)} measured, limit {format_memory(limit)}"
            module.log.applied("batch split", f"steps of {finer} from now on: {numbers}")
            module.apply()
            self._session.meter.memory.trim()
            self._session.meter.new_window()
            return True
        return False

    def _confirm(self) -> None:
        """Checks that settings chosen for speed do not make the real steps slower."""
        self._session.meter.settle()
        now = self._session.meter.window.timing(None)
        before = self._session.state.baseline
        if now is None or before is None or self._asked_for():
            return
        if now.step_seconds > before.step_seconds * SLOWER_ALLOWED:
            what = f"steps took {now.step_seconds:.4f} s after {before.step_seconds:.4f} s"
            self._roll_back(what, self._since)

    def _confirm_compiled(self) -> None:
        """Checks that code compiled in the middle of a run does not make the real steps slower."""
        self._session.meter.settle()
        now = self._session.meter.window.timing(None)
        before, self._before_compiled = self._before_compiled, None
        if now is None or before is None or self._model.rolled_back:
            return
        if now.step_seconds > before.step_seconds * SLOWER_ALLOWED:
            what = f"steps took {now.step_seconds:.4f} s after {before.step_seconds:.4f} s"
            if self._model.consensus is None:
                self._model.roll_back_setting("compile", what)
            else:
                self._model.consensus.ask_roll_back(self._since, what, "compile")

    def _bound_compilations(self) -> None:
        """Rolls back code that is compiled again and again, because compiling takes longer than it
        will ever gain.
        """
        counts = [applied.plan.compilations for applied in self._model.all_applied]
        many = next((found for found in counts if found is not None and found.too_many), None)
        if many is None or self._model.rolled_back:
            return
        why = f"{many.calls} calls were compiled anew; shapes or values differ from call to call"
        if self._model.consensus is None:
            self._model.roll_back_setting("compile", why)
        else:
            self._roll_back(why, self._since + 1)

    def _asked_for(self) -> bool:
        settings, plan = self._session.environment.settings, self._applied.plan
        forced = settings.compile is Toggle.ON or settings.precision is not Precision.AUTO
        trades = plan.rows_per_step is not None or self._applied.activation_checkpointing
        plans = [applied.plan for applied in self._model.all_applied]
        sped_up = any(plan.without_split() != RootPlan() for plan in plans)
        return forced or trades or not (sped_up or self._model.has_lowered_frozen)

    @property
    def _over(self) -> bool:
        plain = all(applied == Applied() for applied in self._model.all_applied)
        return self._model.rolled_back or (plain and not self._model.has_lowered_frozen)

    def _read_loss(self, *, first: bool) -> None:
        """Reads the loss later if it is on a device, because waiting for it would leave the device
        idle.
        """
        loss, events = self._session.state.loss_tensor, self._session.meter.events
        if loss is None or (events is not None and events.capturing):
            return
        if len(self._losses) < LOSSES_PENDING_MAX:
            self._losses.append((first, LaterNumber(loss, events)))

    def _judge_losses(self) -> None:
        while self._losses and self._losses[0][1].ready:
            first, loss = self._losses.popleft()
            if first:
                self._loss.starts(loss.value())
                continue
            verdict = None if self._over else self._loss.verdict(loss.value())
            if verdict is not None:
                self._roll_back(verdict, self._since)


def _finer(rows: int | None) -> int | None:
    """Returns the largest divisor that is at most half of the rows, or None."""
    return next((n for n in divisors(rows or 1) if n <= (rows or 1) // 2), None)
