"""Decides when and on which root a run is tuned: once after the baseline, and compiled much later.

`tuning_run` decides what is tried, and in which order.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch

from gpujob_api.report import Speedup, Timing, WorkerPhase
from gpujob_worker.control.consensus import MEASURED, UNNUMBERED, Consensus
from gpujob_worker.control.distributed_tuning import SharedTuner, tuner_for
from gpujob_worker.control.rollback_guard import CONFIRM_STEPS
from gpujob_worker.control.sharded_tuning import whole_root
from gpujob_worker.control.shared_decisions import settle, settle_compiled
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.control.tuned_module import FURTHER_MAX, TunedModule, names_of, too_many
from gpujob_worker.control.tuning_run import TuningRun
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_limit
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.frozen_modules import FrozenModules
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.trial import measuring
from gpujob_worker.tune.tuner import Tuner


class TuningSchedule:
    """Runs between two steps: measures, applies the choices, and reports them."""

    def __init__(
        self,
        session: Session,
        model: TrainedModel,
        loaders: LoaderPolicy,
        compiled: Callable[[Timing | None], None],
    ) -> None:
        """`compiled` is called with the timing of the steps before code was compiled in the middle
        of a run.
        """
        self._compiled = compiled
        self._session = session
        self._model = model
        self._loaders = loaders
        self._log = session.log
        self._compile_due: float | None = None
        # All processes that decide together record this step's calls.
        self._all_record = False

    def run(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Tunes the run, without an optimizer one that only answers. Raises `MemoryLimitError` if
        the memory limit cannot be kept.
        """
        session, model = self._session, self._model
        if optimizer is not None:
            model.optimizers.lead(optimizer)
        session.state.enter(WorkerPhase.TUNING)
        session.reporter.wake()
        hold_to_limit(session)
        window = session.meter.new_window()
        timing = window.timing(session.state.samples_per_step)
        session.state.measured_first(timing, window.data_wait_percent)
        start = time.monotonic()
        tuner = model.first.tuner or model.first.use(tuner_for(model))
        tuner.start(session.tuning_budget_seconds)
        with measuring("tuning", self._log):
            self._try_items(optimizer)
        self._try_frozen()
        settle(model)
        model.apply()
        self._loaders.decide(tuner.applied)
        session.state.tuning_took(time.monotonic() - start)
        model.report()
        session.state.enter(WorkerPhase.TRAINING)
        session.meter.memory.trim()
        session.meter.new_window()

    def compile_when_due(self, since: int) -> None:
        """Compiles in a long-running job: one step records a batch, and the trial follows.

        `since` counts the steps after the tuning.
        """
        if self._compile_due is None:
            return
        if self._model.consensus is not None:
            self._compile_with_others(since, self._compile_due, self._model.consensus)
        elif time.monotonic() >= self._compile_due:
            self._compile_alone()

    def _compile_with_others(self, since: int, due: float, consensus: Consensus) -> None:
        """The first process decides when it is due. All record the same step, and decide after it.

        A process without a call, a root or a tuner takes part too, because the others wait for it.
        """
        if self._all_record:
            self._all_record, self._compile_due = False, None
            with self._standing_still():
                self._decide_on_code()
        elif since % CONFIRM_STEPS == 0:
            if self._model.rolled_back:
                self._compile_due = None
            elif consensus.compilation_due(since):
                self._all_record = True
                for root in self._model.roots[:1]:
                    root.record()
            elif consensus.leads and time.monotonic() >= due and self._model.first_shape:
                consensus.plan_compilation(since)

    @contextmanager
    def _standing_still(self) -> Generator[None]:
        """Reports the pause at once. Otherwise, a missing step would look like a hung run."""
        with self._session.state.standing_still():
            self._session.reporter.wake()
            yield
        self._session.reporter.wake()

    def _decide_on_code(self) -> None:
        session, tuner, gain = self._session, self._model.first.tuner, None
        before = session.meter.new_window().timing(None)
        roots = self._model.roots[:1]
        with measuring("compile", self._log):
            for root in roots:
                root.stop_recording()
                gain = self._compile_shared(root, tuner)
        for root in roots:
            root.forget_call()
        settle_compiled(self._model)
        if tuner is None:
            return
        if tuner.applied.plan.compiles:
            session.state.gained(tuner.tuned(), gain)
            self._compiled(before)
        self._model.apply()
        self._model.report()
        session.meter.new_window()

    def _compile_shared(self, root: Root, tuner: Tuner | None) -> Speedup | None:
        """Compiles the first module alone, and returns its gain if it is measured here."""
        if not isinstance(tuner, SharedTuner):
            return None
        tuner.compiles_later()
        call = self._compile_one(root, tuner, self._log)
        if call is None or not tuner.applied.plan.compiles:
            return None
        return tuner.gain(root, call, self._model.optimizers.fused)

    def _compile_alone(self) -> None:
        if self._model.rolled_back or self._model.first.tuner is None:
            self._compile_due = None
            return
        if not self._model.first_shape:
            return
        roots = [module.root for module in (self._model.first, *self._measured_further)]
        if not roots[0].recording:
            for root in roots:
                root.record()
            return
        self._compile_due = None
        for root in roots:
            root.stop_recording()
        try:
            with self._standing_still():
                self._compile()
        finally:
            for root in roots:
                root.forget_call()

    @property
    def _measured_further(self) -> list[TunedModule]:
        """The other modules that may be run for a measurement."""
        return [module for module in self._model.further if module.refusal is None]

    def _try_items(self, optimizer: torch.optim.Optimizer | None) -> None:
        model = self._model
        tuning = TuningRun(self._session, model, optimizer)
        for root in model.roots:
            root.stop_recording()
        reason = self._select_roots()
        roots = model.roots
        # All processes must take part in copying a sharded module, whatever their own results are.
        with whole_root(model, MEASURED, self._tried_call(reason)) as whole:
            if reason is not None and self._has_memory_of_several():
                tuning.memory_only(names_of(roots[1:]), reason)
            elif reason is not None:
                tuning.without_root(reason)
            elif len(roots) == 1:
                self._compile_due = tuning.run(roots[0], whole)
            else:
                self._compile_due = tuning.run_several(names_of(roots[1:]), too_many(roots))

    def _tried_call(self, reason: str | None) -> RecordedCall | None:
        """Returns the recorded call of the first module, or None if there is a `reason` not to try
        it.
        """
        roots = self._model.roots
        return roots[0].recorded if roots and reason is None else None

    def _try_frozen(self) -> None:
        """Tries each frozen module for itself."""
        session, model = self._session, self._model
        settings, budget = session.environment.settings, session.tuning_budget_seconds
        frozen = FrozenModules(settings, session.features, model.facts, budget)
        for module in model.frozen:
            if model.consensus is not None:
                module.root.forget_call()
                module.log.skipped("precision", "several processes would have to decide together")
                continue
            assert isinstance(module.root, FrozenRoot)
            module.run_with(frozen.choose(module.root, module.log))

    def _has_memory_of_several(self) -> bool:
        model = self._model
        several = len(model.roots) > 1 and model.first.refusal is None
        return several and not model.script_compiles

    def _select_roots(self) -> str | None:
        """Forgets roots that must not be run for a measurement, and puts the slowest root first.

        Returns why no root can be tuned, or None if one can.
        """
        model, roots = self._model, self._model.roots
        if model.script_compiles:
            return "the script compiles its model itself; its graph is left as it is"
        if not roots:
            return "no module in training was called from outside all others, with gradients"
        if len(roots) > 1 and (model.first.refusal is not None or self._leaves_several):
            return too_many(roots)
        if all(root.recorded is None for root in roots):
            return "no call of the module was seen"
        if model.consensus is not None:
            self._leave_out_refused()
        elif model.first.refusal is None:
            refused = self._leave_out_unsafe()
            none_left = all(root.recorded is None for root in roots)
            model.first.refuse(refused[0][1] if none_left else None)
            if not none_left and len(roots) > 1:
                self._choose_first()
                self._refuse(refused)
        return model.first.refusal

    @property
    def _leaves_several(self) -> bool:
        """Whether processes that decide together leave several modules as they are."""
        model, limit = self._model, self._session.environment.memory_limit_bytes
        unnumbered = model.first_number == UNNUMBERED
        return model.consensus is not None and (limit is not None or unnumbered)

    def _leave_out_refused(self) -> None:
        """Forgets calls of modules that were refused before their first call, or not looked at."""
        for module in self._model.modules[1:]:
            if module.tuner is None or module.refusal is not None:
                module.root.forget_call()

    def _leave_out_unsafe(self) -> list[tuple[Root, str]]:
        """Forgets calls that must not be made for a measurement, and returns the reasons."""
        refused: list[tuple[Root, str]] = []
        for root in self._model.roots:
            call = root.recorded
            refusal = trace_refusal(root, call, whole=True) if call is not None else None
            if refusal is not None:
                root.forget_call()
                refused.append((root, refusal))
        return refused

    def _choose_first(self) -> None:
        """Makes the module whose calls take longest the first one, unless a limit is kept for
        another first one.
        """
        model = self._model
        if model.first.fit is not None:
            return
        known = [(_seconds(root), root) for root in model.roots if root.recorded is not None]
        known.sort(key=lambda pair: -pair[0])
        for _, root in known[1 + FURTHER_MAX :]:
            root.forget_call()
        model.lead(known[0][1])

    def _refuse(self, refused: list[tuple[Root, str]]) -> None:
        for root, why in refused[:FURTHER_MAX]:
            module = self._model.module_of(root)
            if module is not self._model.first:
                module.refuse(why)
                module.log.skipped("settings for speed", why)

    def _compile(self) -> None:
        """Compiles each module whose call was recorded, for itself."""
        session, first = self._session, self._model.first
        tuner = first.choices
        before = session.meter.new_window().timing(None)
        with measuring("compile", self._log):
            recorded = self._compile_one(first.root, tuner, self._log)
            further: list[tuple[Root, RecordedCall, Applied]] = []
            for module in self._measured_further:
                call = self._compile_one(module.root, module.choices, module.log)
                if call is not None:
                    further.append((module.root, call, module.choices.applied))
            gain = None
            if recorded is not None:
                fused = self._model.optimizers.fused
                gain = tuner.gain(first.root, recorded, fused, further)
            session.state.gained(self._model.with_further(tuner.tuned()), gain)
        self._model.apply()
        self._model.report()
        session.meter.new_window()
        if any(applied.plan.compiles for applied in self._model.all_applied):
            self._compiled(before)

    def _compile_one(self, root: Root, tuner: Tuner, said: DecisionLog) -> RecordedCall | None:
        """Returns the call on which compilation was tried, or None if it could not be tried."""
        recorded = root.recorded
        # Hooks may have been added since the first check.
        reason = probe_refusal(root.module)
        if recorded is None:
            reason = "the step in which it was due did not call the module"
        if reason is not None:
            said.skipped("compile", reason)
            return None
        assert recorded is not None
        tuner.compile(root, recorded)
        return recorded


def _seconds(root: Root) -> float:
    """Returns the seconds of a step's calls, forward and backward."""
    assert root.recorded is not None
    probe = RootProbe(root, root.recorded)
    with no_trace(root.module):
        # The first run also sets up state that libraries keep.
        seconds = min(probe.seconds(RootPlan()) for _ in range(2))
    return seconds * root.calls_as_large
