"""Decides when and on which root a run is tuned: once after the baseline, and a compilation much
later.

`tuning_run` decides what is tried, and in which order.
"""

import time

import torch

from gpujob_api.report import WorkerPhase
from gpujob_worker.control.applied_settings import AppliedSettings
from gpujob_worker.control.device import hold_to_limit
from gpujob_worker.control.distributed_tuning import tuner_for
from gpujob_worker.control.secondary_modules import names_of
from gpujob_worker.control.tuning_run import TuningRun
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.run.session import Session
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.trial import measuring


class TuningSchedule:
    """Runs between two steps: measures, applies what was chosen, and reports it."""

    def __init__(self, session: Session, in_force: AppliedSettings, loaders: LoaderPolicy) -> None:
        self._session = session
        self._in_force = in_force
        self._loaders = loaders
        self._explain = session.explanation
        self._compile_due: float | None = None

    def run(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises `MemoryLimitError` if the memory limit cannot be kept."""
        session, in_force = self._session, self._in_force
        in_force.tunes(optimizer)
        session.state.enter(WorkerPhase.TUNING)
        session.reporter.wake()
        hold_to_limit(session)
        window = session.meter.new_window()
        timing = window.timing(session.state.samples_per_step)
        session.state.measured_first(timing, window.data_wait_percent)
        start = time.monotonic()
        tuner = in_force.tuner or in_force.use(tuner_for(in_force))
        tuner.start(session.tuning_budget_seconds)
        with measuring("tuning", self._explain):
            self._try_items(optimizer)
        in_force.settle()
        in_force.apply()
        self._loaders.decide(tuner.applied)
        session.state.tuning_took(time.monotonic() - start)
        in_force.report()
        session.state.enter(WorkerPhase.TRAINING)
        session.meter.memory.trim()
        session.meter.new_window()

    def compile_when_due(self) -> None:
        """Compiles in a long-running job: one step to record a batch, then the trial."""
        if self._compile_due is None or time.monotonic() < self._compile_due:
            return
        if self._in_force.rolled_back or self._in_force.tuner is None:
            self._compile_due = None
            return
        if not self._in_force.first_shape:
            return
        root = self._in_force.roots[0]
        if not root.recording:
            root.recording = True
            return
        self._compile_due = None
        self._compile()

    def _try_items(self, optimizer: torch.optim.Optimizer) -> None:
        in_force, roots = self._in_force, self._in_force.roots
        tuning = TuningRun(self._session, in_force, optimizer)
        for root in roots:
            root.stop_recording()
        reason = self._no_single_root()
        if reason is None:
            self._compile_due = tuning.run(roots[0])
        elif in_force.run_refusal is None and len(roots) > 1 and not in_force.script_compiles:
            tuning.among_others(roots[0], names_of(roots[1:]), reason)
        else:
            tuning.without_root(reason)

    def _no_single_root(self) -> str | None:
        """Why no root can be tuned; None if there is one."""
        in_force, roots = self._in_force, self._in_force.roots
        if in_force.script_compiles:
            return "the script compiles its model itself; its graph is left as it is"
        if not roots:
            return "no module in training was called from outside all others, with gradients"
        if len(roots) > 1:
            count, names = len(roots), names_of(roots)
            return f"{count} modules are trained from outside, one is needed: {names}"
        root = roots[0]
        if root.recorded is None:
            return "no call of the module was seen"
        if in_force.run_refusal is None and in_force.agreement is None:
            in_force.refuse_runs(trace_refusal(root, root.recorded, whole=True))
        return in_force.run_refusal

    def _compile(self) -> None:
        session, tuner, root = self._session, self._in_force.tuner, self._in_force.roots[0]
        assert tuner is not None
        root.stop_recording()
        recorded, root.recorded = root.recorded, None
        if recorded is None:
            return
        # Hooks may have come since the first look.
        reason = probe_refusal(root.module)
        if reason is not None:
            self._explain.skipped("compile", reason)
            return
        session.meter.new_window()
        with measuring("compile", self._explain):
            tuner.compile(root, recorded)
            gain = tuner.gain(root, recorded, self._in_force.optimizer)
            session.state.gained(tuner.tuned(), gain)
        self._in_force.apply()
        self._in_force.report()
        session.meter.new_window()
