"""Finds the modules of the model in training: those that the script calls from outside all others.

`Discovery` reports every such call in the first steps, and again once a new optimizer is made. Each
module becomes a part of the model in training (`trained_model`), or is the first module of a later
model (`subsequent_models`).
"""

import functools
import time
from collections.abc import Sequence

import torch

from gpujob_worker.control.distributed_tuning import leads_to_roots, root_inside
from gpujob_worker.control.loss_check import LossCheck
from gpujob_worker.control.own_work import OwnWork
from gpujob_worker.control.presence import require_all
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.control.startup import Startup
from gpujob_worker.control.subsequent_models import SubsequentModels
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.ddp import past_wrapper
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.safety_net import SafetyNet
from gpujob_worker.run.session import Session

# Steps of a new optimizer within which its model's modules are found.
WARM_UP_STEPS = 2


class ModuleWatch:
    """Watches the script's calls while new modules may appear."""

    def __init__(
        self,
        session: Session,
        model: TrainedModel,
        net: SafetyNet,
        own_work: OwnWork,
        *,
        startup: Startup,
        rollback_guard: RollbackGuard,
        loss_check: LossCheck,
        subsequent_models: SubsequentModels,
    ) -> None:
        self._session = session
        self._model = model
        self._net = net
        self._own_work = own_work
        self._startup = startup
        self._rollback_guard = rollback_guard
        self._loss_check = loss_check
        self._subsequent_models = subsequent_models
        self.discovery = self._new_discovery(())
        # Steps since the watch began.
        self._steps = 0

    def start(self) -> None:
        """Watches for the modules of a new model, which are called from now on."""
        if self._model.facts.compiles or self.discovery.active:
            return
        self.discovery = self._new_discovery(self._model.roots)
        self._steps = 0
        for root in self._model.roots:
            root.settle(False)
        self.discovery.start()

    def finish(self) -> None:
        """Called once all modules of the model are known."""
        self.forget()
        for root in self._model.roots:
            root.settle()

    def forget(self) -> None:
        """Ends the watch, and drops all references to the script's objects."""
        self.discovery.finish()
        self.discovery.forget()

    def step_done(self) -> None:
        """Ends the watch in time. A later model's modules are called in its optimizer's first
        steps, or never.
        """
        if self.discovery.active and self._model.steps >= WARM_UP_STEPS:
            self._steps += 1
            if self._steps >= WARM_UP_STEPS:
                self.finish()

    def before_call(self, root: Root) -> None:
        """Runs before the first call of a module, and before each one until its memory is known."""
        if self._own_work.under_way:
            return
        start = time.monotonic()
        try:
            with self._own_work.doing():
                self._subsequent_models.before_call(root)
                self._startup.before_call(root)
        finally:
            self._subsequent_models.spent(time.monotonic() - start)

    def _new_discovery(self, known: Sequence[Root]) -> Discovery:
        guard = self._net.guard
        leads = guard(functools.partial(leads_to_roots, model=self._model))
        return Discovery(guard(self._on_root), known, guard(self._on_frozen), leads)

    def _on_frozen(self, module: torch.nn.Module) -> Root | None:
        return None if self._own_work.under_way else self._model.meet_frozen(module)

    def _on_root(self, module: torch.nn.Module) -> Root | None:
        model, session = self._model, self._session
        if self._own_work.under_way or past_wrapper(module):
            return None
        if not module.training and not self._subsequent_models.steps(module):
            return None  # a teacher that is not frozen
        session.start()
        if not model.modules:
            require_all(session)
        if model.steps and self._subsequent_models.watches:
            with session.meter.paused():
                if self._subsequent_models.is_over(warm=model.steps >= WARM_UP_STEPS):
                    self._begin_again()
        if model.steps >= WARM_UP_STEPS:
            return None  # trained next to the present model, and unmodified
        before_call = self._net.guard(self.before_call)
        root = root_inside(module, model, before_call) or Root(module, before_call)
        model.meet(root)
        root.install(self._net.guard(self._rollback_guard.call_failed))
        root.let_go()
        return root

    def _begin_again(self) -> None:
        self._subsequent_models.begin()
        # The watch may still hold the previous model.
        self.discovery.forget()
        self._startup.again()
        self._rollback_guard.again()
        self._loss_check.again()
