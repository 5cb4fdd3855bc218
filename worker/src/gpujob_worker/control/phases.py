"""Walks the model in training through its phases, one optimizer step after the other.

A model that only answers takes the same way, one call after the other.

- warm-up: libraries set themselves up, and all modules are called once;
- baseline: steps are measured as the script wrote them, and calls of the last one are recorded;
- tuning: between two steps, settings are tried on the recorded calls and applied;
- training: the applied settings are watched, and rolled back if they do harm.

What cannot wait for the tuning is done before a module's first call (`startup`).
"""

from enum import Enum, auto

import torch

from gpujob_api.report import WorkerPhase
from gpujob_worker.control.loss_check import LossCheck
from gpujob_worker.control.module_watch import WARM_UP_STEPS, ModuleWatch
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.control.schedule import TuningSchedule
from gpujob_worker.control.startup import Startup
from gpujob_worker.control.subsequent_models import SubsequentModels
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.fused_optimizer import device_of
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import use_device

BASELINE_STEPS = 5
# The steps after which a model is tuned.
MEASURED_STEPS = WARM_UP_STEPS + BASELINE_STEPS


class Phase(Enum):
    WARM_UP = auto()
    BASELINE = auto()
    # The last baseline step. The tuning follows it.
    TUNING = auto()
    TRAINING = auto()

    @staticmethod
    def of(steps: int) -> "Phase":
        """Returns the phase of this step. The first step is step 1."""
        if steps < MEASURED_STEPS:
            return Phase.WARM_UP if steps <= WARM_UP_STEPS else Phase.BASELINE
        return Phase.TUNING if steps == MEASURED_STEPS else Phase.TRAINING


class Phases:
    """Acts after each step, while none of the script's own work is under way."""

    def __init__(
        self,
        session: Session,
        model: TrainedModel,
        clock: StepClock[torch.optim.Optimizer],
        *,
        startup: Startup,
        schedule: TuningSchedule,
        rollback_guard: RollbackGuard,
        loss_check: LossCheck,
        module_watch: ModuleWatch,
        subsequent_models: SubsequentModels,
    ) -> None:
        self._session = session
        self._model = model
        self._clock = clock
        self._startup = startup
        self._schedule = schedule
        self._rollback_guard = rollback_guard
        self._loss_check = loss_check
        self._module_watch = module_watch
        self._subsequent_models = subsequent_models
        # The next step shows which models are still called.
        self._waits_for_calls = False

    def after_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Acts after a step of the optimizer, or after a call of a model that only answers."""
        steps = self._model.steps
        if steps == 1:
            self._after_first_step(optimizer)
        if not self._session.optimizes:
            return
        self._drop_models_that_are_over()
        steps = self._model.steps
        phase = Phase.of(steps)
        if phase is Phase.WARM_UP:
            self._warm_up(steps)
        elif phase is Phase.BASELINE:
            self._baseline(steps)
        elif phase is Phase.TUNING:
            self._tune(optimizer)
        else:
            self._train(steps - MEASURED_STEPS, has_loss=optimizer is not None)

    def _after_first_step(self, optimizer: torch.optim.Optimizer | None) -> None:
        session, model = self._session, self._model
        device = model.first.root.device if optimizer is None else device_of(optimizer)
        use_device(session, device)
        measures = session.optimizes and not model.whose
        session.state.enter(WorkerPhase.MEASURING if measures else WorkerPhase.TRAINING)
        if optimizer is not None:
            self._count_samples()
        self._startup.stepped()
        if model.first.fit is not None and model.modules:
            model.first.root.ask_before_next_call()
        if session.listens_to_stops and not session.stop.listens:
            session.listen_for_stop()

    def _count_samples(self) -> None:
        state, roots = self._session.state, self._model.roots
        alone = len(roots) == 1
        passes = self._model.backward_passes if alone else 0
        self._session.takes_samples(roots[0].samples(passes) if roots else None)
        state.makes_calls(roots[0].calls_as_large if alone else 1.0)

    def _drop_models_that_are_over(self) -> None:
        """Drops models that the whole step after another optimizer's first one did not call."""
        model = self._model
        if self._waits_for_calls:
            model.drop_uncalled()
            if not model.modules and self._subsequent_models.watches:
                self._module_watch.start()
        self._waits_for_calls = self._clock.fresh and self._session.meter.steps > 1
        if self._waits_for_calls:
            for root in model.roots:
                root.expect_call()

    def _warm_up(self, steps: int) -> None:
        if steps == WARM_UP_STEPS:
            self._module_watch.finish()
            self._subsequent_models.warm()
            for root in self._model.roots:
                root.ask_before_next_call(False)
            self._session.meter.memory.trim()
            self._session.meter.new_window()
        self._watch_first_steps()

    def _baseline(self, steps: int) -> None:
        known = self._watch_first_steps()
        if not known and steps == MEASURED_STEPS - 1 and self._model.modules:
            self._model.record()

    def _tune(self, optimizer: torch.optim.Optimizer | None) -> None:
        if not self._watch_first_steps():
            self._schedule.run(optimizer)

    def _watch_first_steps(self) -> bool:
        """Returns whether the settings are already known, so that nothing is measured."""
        self._rollback_guard.first_steps()
        known = self._session.state.known_tuned is not None
        if known:
            self._session.state.enter(WorkerPhase.TRAINING)
        return known

    def _train(self, since: int, *, has_loss: bool) -> None:
        """Called after each step in training. `since` counts the steps after the tuning."""
        self._rollback_guard.step(since)
        if has_loss:
            self._loss_check.step(since)
        self._schedule.compile_when_due(since)
