"""Puts the hooks into torch and walks one run through warm-up, baseline, tuning and training.

The first steps run exactly as the script says and are its real steps; tuning happens between two
steps on a recorded batch; what was chosen is in force from the next step on. What cannot wait for
that is `startup`, the tuning `schedule`, and what is watched afterwards `rollback_guard`.
"""

import functools
import multiprocessing
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpujob_api.report import WorkerPhase
from gpujob_api.settings import Toggle
from gpujob_worker.control.applied_settings import AppliedSettings
from gpujob_worker.control.device import use_device
from gpujob_worker.control.distributed_tuning import leads_to_roots, root_inside
from gpujob_worker.control.loss_check import LossCheck
from gpujob_worker.control.presence import meet_others, require_all
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.control.schedule import TuningSchedule
from gpujob_worker.control.script_compiling import ScriptCompiling
from gpujob_worker.control.startup import Startup
from gpujob_worker.control.subsequent_models import SubsequentModels
from gpujob_worker.inject.compiling import keep_compiled_in
from gpujob_worker.inject.data_loader import watch_loaders
from gpujob_worker.inject.ddp import past_wrapper, watch_process_group, watch_wrappers
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.fork_hooks import in_forked_children
from gpujob_worker.inject.fused_optimizer import device_of, pickle_as_written
from gpujob_worker.inject.script_facts import (
    ScriptFacts,
    watch_backward,
    watch_compile,
    watch_gradients_of_gradients,
    watch_optimizers,
    watch_scaler,
)
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.inject.wrapped_module import Root, hide_from_script_compiler
from gpujob_worker.run.safety_net import SafetyNet
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.registry import apply_settings

WARM_UP_STEPS = 2
BASELINE_STEPS = 5


def _unchanged(batch: Any) -> Any:
    return batch


class Hooks:
    """Everything that is hooked into torch for one session."""

    def __init__(
        self, session: Session, net: SafetyNet, again_in_child: Callable[[], "Hooks"]
    ) -> None:
        self._session = session
        self._net = net
        self._again_in_child = again_in_child
        # In a process that was forked off: these hooks are dead, and others may take their place.
        self._in_child = False
        self._explain = session.explanation
        self._facts = ScriptFacts(
            processes=session.world_size,
            memory_limited=session.environment.memory_limit_bytes is not None,
        )
        self._in_force = AppliedSettings(session, self._facts)
        self._roots = self._in_force.roots
        self._preparation = Startup(session, self._in_force)
        self._loaders = LoaderPolicy(session)
        self._guardian = guardian = RollbackGuard(session, self._in_force)
        self._tuning = TuningSchedule(session, self._in_force, self._loaders, guardian.compiled)
        self._loss_check = LossCheck(session, self._in_force, self._guardian.loss_changed)
        self._discovery = self._new_discovery(())
        self._later = SubsequentModels(session, self._in_force)
        # The step after which the model in training began, and steps made since roots are watched.
        self._began_at = self._watched_steps = 0
        self._clock = StepClock()
        self._waits_for_calls = False
        # Backward passes of the first step.
        self._losses = 0
        # Our own work is under way; what torch calls us for meanwhile is not the script's.
        self._inside = False

    def install(self) -> None:
        session, settings, guard = (
            self._session,
            self._session.environment.settings,
            self._net.guard,
        )
        session.state.runs_on("cpu", torch.__version__)
        session.at_end(self._say_if_short, self._release)
        self._net.when_cut(self._take_off)
        in_forked_children(self.in_child)
        session.begin_in_child = guard(self._train_in_child)
        register_optimizer_step_pre_hook(guard(self._before_step))
        register_optimizer_step_post_hook(guard(self._after_step))
        loaders = self._loaders
        watch_loaders(
            guard(loaders.before_pass),
            guard(loaders.begun),
            guard(loaders.before_batch),
            guard(loaders.received, _unchanged),
            guard(loaders.waited),
        )
        watch_backward(guard(self._on_loss))
        watch_process_group(guard(lambda: meet_others(session, self._facts)))
        watch_wrappers(guard(self._preparation.wrapped))
        if not session.optimizes:
            why = session.why_only_measures or "optimize mode is Off"
            # A process that only imports torch does not say it; one that trains does at its end.
            self._explain.skipped("everything", why, aloud=False)
            return
        if session.features.allows("compile") and settings.compile is not Toggle.OFF:
            # Before torch's compiler is imported, which settles on a place of its own.
            keep_compiled_in(session.environment.checkpoint_directory)
        hide_from_script_compiler()
        compiling = ScriptCompiling(self._in_force, lambda: self._discovery, lambda: self._inside)
        watch_compile(guard(compiling.module), guard(compiling.starts), guard(compiling.ends))
        watch_scaler(self._facts)
        watch_gradients_of_gradients(self._facts)
        pickle_as_written()
        # Models call their parts when they are made, to learn a size; that trains nothing.
        watch_optimizers(guard(self._on_optimizer))

    @property
    def _steps(self) -> int:
        """Steps of the model in training."""
        return self._session.meter.steps - self._began_at

    def _on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """The script makes an optimizer: what is called from now on may be its model."""
        if self._in_child:
            self._train_in_child(optimizer)
        if self._inside:
            return
        self._later.made(optimizer)
        if not self._session.meter.steps or self._later.watches:
            self._watch_roots()

    def _watch_roots(self) -> None:
        if self._facts.compiles or self._discovery.active:
            return
        self._discovery = self._new_discovery(self._roots)
        self._watched_steps = 0
        for root in self._roots:
            root.settled = False
        self._discovery.start()

    def _roots_are_known(self) -> None:
        self._discovery.finish()
        self._discovery.forget()
        for root in self._roots:
            root.settled = True

    def _release(self) -> None:
        """The interpreter's end takes the script's objects apart in the script's order.

        What is kept here would outlive process groups, whose threads then end the process by abort.
        """
        self._discovery.finish()
        self._discovery.forget()
        self._in_force.release()

    def _say_if_short(self) -> None:
        session, needed = self._session, WARM_UP_STEPS + BASELINE_STEPS
        if not session.optimizes or session.state.tuning_seconds is not None or session.launches:
            return
        steps = self._steps
        if not steps and self._explain.lines:
            return  # another framework trains, or what was said is the reason
        whose = "the last model" if self._began_at else "the run"
        seen = f"{whose} ended after {steps} of the {needed} steps that are measured first"
        if steps >= needed:  # nothing was measured: other settings are known, or the hooks are off
            seen = f"{steps} steps were made, and nothing that could be tuned was called in them"
        self._explain.skipped("tuning", seen if steps else "no optimizer of torch made a step")

    def in_child(self) -> None:
        """In a process that the script forked: a loader's, or one that will train by itself."""
        self._inside = self._in_child = True
        self._discovery.finish()
        self._loaders.stop()

    def _train_in_child(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Hooks of its own, once, for a child that trains. What a library's children do is its."""
        if multiprocessing.current_process().daemon:
            return
        self._in_child = False
        for root in (*self._roots, *self._in_force.frozen.roots):
            apply_settings(root, None, Applied())
            root.remove()
        hooks = self._again_in_child()
        if optimizer is not None:
            hooks._on_optimizer(optimizer)

    def _take_off(self) -> None:
        """Something of ours failed. Others that train with this process keep what is in force, so
        it stays here too."""
        self._discovery.finish()
        self._loaders.stop()
        for root in (*self._roots, *self._in_force.frozen.roots):
            root.asks = root.recording = False
            if self._in_force.agreement is None:
                self._in_force.take_off(root)

    def _on_loss(self, loss: torch.Tensor, unscaled: torch.Tensor) -> None:
        if self._in_child:
            self._train_in_child()
        if not self._inside:
            self._losses += 1
            self._session.state.saw_pass(unscaled)
            self._loss_check.saw_loss(loss)

    def _new_discovery(self, known: Sequence[Root]) -> Discovery:
        guard = self._net.guard
        leads = guard(functools.partial(leads_to_roots, in_force=self._in_force))
        return Discovery(guard(self._on_root), known, guard(self._on_frozen), leads)

    def _on_frozen(self, module: torch.nn.Module) -> Root | None:
        return None if self._inside else self._in_force.met_frozen(module)

    def _on_root(self, module: torch.nn.Module) -> Root | None:
        if self._inside or past_wrapper(module):
            return None
        if not module.training and not self._later.steps(module):
            return None  # a teacher that is not frozen
        self._session.start()
        if not self._roots:
            require_all(self._session)
        if self._steps and self._later.watches:
            with self._session.meter.paused():
                over = self._later.is_over(warm=self._steps >= WARM_UP_STEPS)
                if over:
                    self._begin_again()
        if self._steps >= WARM_UP_STEPS:
            return None  # trained beside the present one, and as written
        before_call = self._net.guard(self._before_call)
        root = root_inside(module, self._in_force, before_call) or Root(module, before_call)
        self._roots.append(root)
        root.failed = self._net.guard(self._guardian.call_failed)
        root.install()
        root.let_go()
        return root

    def _begin_again(self) -> None:
        self._later.begin()
        # It may hold the model before.
        self._discovery.forget()
        self._preparation.again()
        self._guardian.again()
        self._loss_check.again()
        self._began_at = self._session.meter.steps
        self._losses = 0

    def _before_call(self, root: Root) -> None:
        if self._inside:
            return
        self._inside = True
        start = time.monotonic()
        try:
            self._later.before_call(root)
            self._preparation.before_call(root)
        finally:
            self._inside = False
            self._later.spent(time.monotonic() - start)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._inside:
            return
        self._session.start()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._facts.steps_with_closure = self._facts.steps_with_closure or closure is not None
        if self._later.waits or not self._facts.has_seen(optimizer):
            self._before_first_step(optimizer)
        self._in_force.step_starts(optimizer)
        if optimizer is self._clock.optimizer and not self._facts.steps_with_closure:
            with self._session.meter.paused():
                self._session.meter.optimizer_starts()

    def _before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._session.meter.steps and self._later.watches:
            self._watch_roots()
        elif self._session.meter.steps and self._later.passes(optimizer):
            self._guardian.again()
            return
        if self._in_force.optimizers.first is not None:
            if self._steps < WARM_UP_STEPS + BASELINE_STEPS:
                self._preparation.before_first_step_beside(optimizer)
            return
        if self._in_force.script_compiles:
            self._later.unseen()
        if self._later.suits(optimizer):
            self._preparation.before_first_step(optimizer)
            self._later.stepped()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._in_force.applied.plan.loss_scale is not None and not self._inside:
            self._guardian.scaled_step_ends(self._in_force.applied.plan.loss_scale)
        if not self._inside:
            self._in_force.step_ends(optimizer)
        self._facts.saw(optimizer)
        self._count_watched()
        if self._inside or not self._clock.ticks(optimizer):
            return
        self._session.meter.step_done()
        if not self._facts.steps_with_closure:
            self._session.meter.optimizer_ends()
        self._inside = True
        try:
            # A script may step its optimizer in inference mode, in which no graph is made.
            with self._session.meter.paused(), torch.inference_mode(mode=False):
                self._advance(optimizer)
        finally:
            self._inside = False
        self._profile()
        self._session.safe_point()

    def _count_watched(self) -> None:
        """Models that follow show themselves in the first steps of a new optimizer, or are none."""
        if self._discovery.active and self._steps >= WARM_UP_STEPS:
            self._watched_steps += 1
            if self._watched_steps >= WARM_UP_STEPS:
                self._roots_are_known()

    def _profile(self) -> None:
        """Last of all, so that none of our own work is in the profile."""
        profiler = self._session.profiler
        said = profiler.step_done(self._session.meter.steps) if profiler is not None else None
        if said is not None:
            self._explain.note("profile", said)

    def _advance(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        steps = self._steps
        if steps == 1:
            use_device(session, device_of(optimizer))
            measures = session.optimizes and not self._in_force.whose
            session.state.enter(WorkerPhase.MEASURING if measures else WorkerPhase.TRAINING)
            self._count_samples()
            self._preparation.stepped()
            if self._in_force.fit is not None and self._roots:
                self._roots[0].asks = True
        if steps == 1 and session.listens_to_stops and not session.stop.listens:
            session.listen_for_stop()
        if not session.optimizes:
            return
        self._drop_what_is_over(session.meter.steps)
        if steps == WARM_UP_STEPS:
            self._roots_are_known()
            self._later.warm()
            for root in self._roots:
                root.asks = False
            session.meter.memory.trim()
            session.meter.new_window()
        self._since_baseline(steps - WARM_UP_STEPS - BASELINE_STEPS, optimizer)

    def _count_samples(self) -> None:
        state, first = self._session.state, self._roots[0] if self._roots else None
        alone = first is not None and len(self._roots) == 1
        samples = first.samples(self._losses if alone else 0) if first else None
        self._session.takes_samples(samples)
        state.makes_calls(first.calls_as_large if first is not None and alone else 1.0)

    def _drop_what_is_over(self, steps: int) -> None:
        """Once another optimizer is stepped: models that its whole next step did not call."""
        if self._waits_for_calls:
            self._in_force.drop_uncalled()
            if not self._roots and self._later.watches:
                self._watch_roots()
        self._waits_for_calls = self._clock.fresh and steps > 1
        if self._waits_for_calls:
            for root in self._roots:
                root.called = False

    def _since_baseline(self, since: int, optimizer: torch.optim.Optimizer) -> None:
        if since <= 0:
            self._guardian.first_steps()
        if since > 0:
            self._guardian.step(since)
            self._loss_check.step(since)
            self._tuning.compile_when_due(since)
        elif self._session.state.known_tuned is not None:
            self._session.state.enter(WorkerPhase.TRAINING)
        elif since == -1 and self._roots:
            self._in_force.record()
        elif since == 0:
            self._tuning.run(optimizer)
