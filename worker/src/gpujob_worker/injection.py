"""Puts the hooks into torch and walks one run through warm-up, baseline, tuning and training.

The first steps run exactly as the script says and are its real steps; tuning happens between two
steps on a recorded batch; what was chosen is in force from the next step on. What cannot wait for
that is `preparation`, the tuning `tuning`, and what is watched afterwards `guardian`.
"""

from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpujob_api.report import WorkerPhase
from gpujob_api.settings import Toggle
from gpujob_worker.device import use_device
from gpujob_worker.guardian import Guardian
from gpujob_worker.in_force import InForce
from gpujob_worker.inject.children import in_forked_children
from gpujob_worker.inject.compiling import keep_compiled_in
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.loader_policy import LoaderPolicy
from gpujob_worker.inject.loaders import watch_loaders
from gpujob_worker.inject.optimizers import device_type_of
from gpujob_worker.inject.root import Root
from gpujob_worker.inject.script_facts import (
    ScriptFacts,
    watch_backward,
    watch_compile,
    watch_gradients_of_gradients,
    watch_optimizers,
    watch_scaler,
)
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.preparation import Preparation
from gpujob_worker.session import Session
from gpujob_worker.tune.together import root_inside
from gpujob_worker.tuning import Tuning

WARM_UP_STEPS = 2
BASELINE_STEPS = 5


class Injection:
    """Everything that is hooked into torch for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._explain = session.explanation
        self._facts = ScriptFacts(
            processes=session.environment.world_size,
            memory_limited=session.environment.memory_limit_bytes is not None,
        )
        self._in_force = InForce(session, self._facts)
        self._roots = self._in_force.roots
        self._preparation = Preparation(session, self._in_force)
        self._loaders = LoaderPolicy(session)
        self._tuning = Tuning(session, self._in_force, self._loaders)
        self._guardian = Guardian(session, self._in_force)
        self._discovery = Discovery(self._on_root)
        self._clock = StepClock()
        self._waits_for_calls = False
        # Our own work is under way; what torch calls us for meanwhile is not the script's.
        self._inside = False

    def install(self) -> None:
        session, settings = self._session, self._session.environment.settings
        session.torch_version = torch.__version__
        session.device = "cpu"
        session.release, session.ending = self._release, self._say_if_short
        in_forked_children(self.in_child)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        watch_loaders(self._loaders.before_pass, self._loaders.begun, self._loaders.waited)
        watch_backward(self._on_loss)
        if not session.optimizes:
            self._explain.refused("everything", "optimize mode is Off")
            return
        if session.switches.compile and settings.compile is not Toggle.OFF:
            # Before torch's compiler is imported, which settles on a place of its own.
            keep_compiled_in(session.environment.checkpoint_directory)
        watch_compile(self._on_compile)
        watch_scaler(self._facts)
        watch_gradients_of_gradients(self._facts)
        # Models call their parts when they are made, to learn a size; that trains nothing.
        watch_optimizers(self._on_first_optimizer)

    def _on_first_optimizer(self) -> None:
        if not self._facts.compiles:
            self._discovery.start()

    def _release(self) -> None:
        """The interpreter's end takes the script's objects apart in the script's order.

        What is kept here would outlive process groups, whose threads then end the process by abort.
        """
        self._discovery.finish()
        self._discovery.forget()
        for root in self._roots:
            root.remove()
            root.recorded = root.wrapper = None
        self._roots.clear()
        self._facts.stepped.clear()
        self._in_force.tuner = None
        self._in_force.fit = None
        self._in_force.agreement = None

    def _say_if_short(self) -> None:
        session, needed = self._session, WARM_UP_STEPS + BASELINE_STEPS
        if not session.optimizes or session.tuning_seconds is not None:
            return
        steps = session.meter.steps
        if not steps and self._explain.lines:
            return  # another framework trains, or what was said is the reason
        seen = f"the run ended after {steps} of the {needed} steps that are measured first"
        self._explain.refused("tuning", seen if steps else "no optimizer of torch made a step")

    def in_child(self) -> None:
        """A process that the script forked trains, if it does, as under python."""
        self._inside = True
        self._discovery.finish()
        self._loaders.stop()

    def _on_loss(self, loss: torch.Tensor) -> None:
        self._session.loss_tensor = loss

    def _on_compile(self) -> None:
        if not self._inside:
            self._facts.compiles = True
            self._discovery.finish()

    def _on_root(self, module: torch.nn.Module) -> Root | None:
        root = root_inside(module, self._in_force, self._before_call)
        root = root or Root(module, self._before_call)
        self._roots.append(root)
        root.failed = self._guardian.call_failed
        root.install()
        return root

    def _before_call(self, root: Root) -> None:
        if self._inside:
            return
        self._inside = True
        try:
            self._preparation.before_call(root)
        finally:
            self._inside = False

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._inside:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._facts.steps_with_closure = self._facts.steps_with_closure or closure is not None
        if not self._facts.optimizers:
            self._preparation.before_first_step(optimizer)
        self._in_force.step_starts(optimizer)
        if optimizer is self._clock.optimizer and not self._facts.steps_with_closure:
            with self._session.meter.paused():
                self._session.meter.optimizer_starts()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._in_force.applied.plan.loss_scale is not None and not self._inside:
            self._guardian.scaled_step_ends(self._in_force.applied.plan.loss_scale)
        if not self._inside:
            self._in_force.step_ends(optimizer)
        self._facts.saw(optimizer)
        if self._inside or not self._clock.ticks(optimizer):
            return
        self._session.meter.step_done()
        if not self._facts.steps_with_closure:
            self._session.meter.optimizer_ends()
        self._inside = True
        try:
            with self._session.meter.paused():
                self._advance(optimizer)
        finally:
            self._inside = False
        self._profile()
        self._session.safe_point()

    def _profile(self) -> None:
        """Last of all, so that none of our own work is in the profile."""
        profiler = self._session.profiler
        said = profiler.step_done(self._session.meter.steps) if profiler is not None else None
        if said is not None:
            self._explain.note("profile", said)

    def _advance(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        steps = session.meter.steps
        if steps == 1:
            use_device(session, device_type_of(optimizer))
            session.phase = WorkerPhase.MEASURING if session.optimizes else WorkerPhase.TRAINING
            session.samples_per_step = self._roots[0].rows if self._roots else None
            if self._in_force.fit is not None and self._roots:
                self._roots[0].asks = True
        if not session.optimizes:
            return
        self._drop_what_is_over(steps)
        if steps == WARM_UP_STEPS:
            self._discovery.finish()
            self._discovery.forget()
            for root in self._roots:
                root.settled, root.asks = True, False
            session.meter.memory.trim()
            session.meter.new_window()
        self._since_baseline(steps - WARM_UP_STEPS - BASELINE_STEPS, optimizer)

    def _drop_what_is_over(self, steps: int) -> None:
        """Once another optimizer is stepped: models that its whole next step did not call."""
        if self._waits_for_calls:
            self._in_force.drop_uncalled()
        self._waits_for_calls = self._clock.fresh and steps > 1
        if self._waits_for_calls:
            for root in self._roots:
                root.called = False

    def _since_baseline(self, since: int, optimizer: torch.optim.Optimizer) -> None:
        if since <= 0:
            self._guardian.first_steps()
        if since > 0:
            self._guardian.step(since)
            self._tuning.compile_when_due()
        elif self._session.known_tuned is not None:
            self._session.phase = WorkerPhase.TRAINING
        elif since == -1 and self._roots:
            self._roots[0].recording = len(self._roots) == 1 or self._in_force.fit is not None
        elif since == 0:
            self._tuning.run(optimizer)
