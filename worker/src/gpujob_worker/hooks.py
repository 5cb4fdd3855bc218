"""Puts the hooks into torch: what the script does is passed on to the parts that decide.

- a module is called without gradients, and there is no optimizer: `inference` counts its calls;
- an optimizer is made, a module is called: `module_watch` finds the model in training;
- a backward pass starts: `loss_check` compares its loss;
- an optimizer steps: `phases` walks the model through warm-up, baseline, tuning and training;
- a pass over a loader begins: `data_loader_policy` sets its workers.
"""

import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpujob_api.settings import Task, Toggle
from gpujob_worker.control.inference import Inference
from gpujob_worker.control.loss_check import LossCheck
from gpujob_worker.control.module_watch import ModuleWatch
from gpujob_worker.control.own_work import OwnWork
from gpujob_worker.control.phases import MEASURED_STEPS, Phases
from gpujob_worker.control.presence import meet_others
from gpujob_worker.control.rollback_guard import RollbackGuard
from gpujob_worker.control.schedule import TuningSchedule
from gpujob_worker.control.startup import Startup
from gpujob_worker.control.subsequent_models import SubsequentModels
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.compiling import keep_compiled_in
from gpujob_worker.inject.data_loader import watch_loaders
from gpujob_worker.inject.ddp import watch_process_group, watch_wrappers
from gpujob_worker.inject.fork_hooks import in_forked_children
from gpujob_worker.inject.fused_optimizer import pickle_as_written
from gpujob_worker.inject.script_facts import (
    ScriptFacts,
    watch_backward,
    watch_compile,
    watch_gradients_of_gradients,
    watch_optimizers,
    watch_scaler,
)
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.inject.wrapped_module import hide_from_script_compiler
from gpujob_worker.run.safety_net import SafetyNet
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_card
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.data_loader_policy import LoaderPolicy
from gpujob_worker.tune.registry import apply_settings


class ScriptCompiling:
    """Handles code that the script compiles itself: its model, whose graph is left alone, or
    functions. Called when the script compiles something, and around each compilation.
    """

    def __init__(
        self,
        model: TrainedModel,
        module_watch: ModuleWatch,
        inference: Inference,
        own_work: OwnWork,
    ) -> None:
        self._model = model
        self._inference = inference
        self._module_watch = module_watch
        self._own_work = own_work

    def module(self) -> None:
        """Called when the script compiles a module that is trained."""
        if not self._own_work.under_way:
            self._model.facts.compiles = True
            self._module_watch.discovery.finish()

    def starts(self) -> None:
        """Called when a function that the script compiled, or a module that is not trained, is
        called.

        It may compute the model's call or a part of it. Before models are known, only later calls
        show that.
        """
        facts, roots = self._model.facts, self._model.roots
        compiles_ours = any(root.plan.compiles for root in roots)
        if self._own_work.under_way or facts.compiles or compiles_ours:
            return
        facts.compiles_functions = True
        self._inference.compiles()
        if any(root.inside for root in roots):
            self.module()
        elif self._module_watch.discovery.active:
            self._module_watch.discovery.pause()

    def ends(self) -> None:
        self._module_watch.discovery.resume()


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
        # True in a forked process. These hooks are off there, and others may take their place.
        self._in_child = False
        self._own_work = OwnWork()
        self._facts = ScriptFacts(
            processes=session.world_size,
            memory_limited=session.environment.memory_limit_bytes is not None,
        )
        self._model = model = TrainedModel(session, self._facts)
        self._clock = StepClock[torch.optim.Optimizer]()
        self._startup = Startup(session, model)
        self._loaders = LoaderPolicy(session)
        self._rollback_guard = RollbackGuard(session, model)
        self._loss_check = LossCheck(session, model, self._rollback_guard.loss_changed)
        self._subsequent_models = SubsequentModels(session, model)
        self._module_watch = ModuleWatch(
            session,
            model,
            net,
            self._own_work,
            startup=self._startup,
            rollback_guard=self._rollback_guard,
            loss_check=self._loss_check,
            subsequent_models=self._subsequent_models,
        )
        self._phases = Phases(
            session,
            model,
            self._clock,
            startup=self._startup,
            schedule=TuningSchedule(session, model, self._loaders, self._rollback_guard.compiled),
            rollback_guard=self._rollback_guard,
            loss_check=self._loss_check,
            module_watch=self._module_watch,
            subsequent_models=self._subsequent_models,
        )
        self._inference = Inference(
            session,
            model,
            net,
            self._own_work,
            call_failed=self._rollback_guard.call_failed,
            stepped=self._after_call,
            trained=self._begin_training,
            adopt=self._startup.adopt,
        )

    def install(self) -> None:
        session, guard = self._session, self._net.guard
        settings = session.environment.settings
        session.state.runs_on("cpu", torch.__version__)
        session.at_end(self._say_if_short, self._release)
        self._net.when_cut(self._take_off)
        in_forked_children(self.in_child)
        session.begin_in_child = guard(self._train_in_child)
        session.when_serving(guard(self._serve))
        if not self._inference.stated:
            self._watch_training()
        loaders = self._loaders
        watch_loaders(
            guard(self._before_pass),
            guard(loaders.begun),
            guard(self._before_batch),
            guard(self._received, _unchanged),
            guard(loaders.waited),
        )
        watch_process_group(guard(lambda: meet_others(session, self._facts)))
        watch_wrappers(guard(self._startup.wrapped))
        if session.listens_to_stops:
            hide_from_script_compiler()
            self._inference.start()
        if not session.optimizes:
            why = session.why_only_measures or "optimize mode is Off"
            # A process that only imports torch does not log it. One that trains logs it at its end.
            session.log.skipped("everything", why, aloud=False)
            return
        if session.features.allows("compile") and settings.compile is not Toggle.OFF:
            # Called before torch's compiler is imported, which then fixes its own folder.
            keep_compiled_in(session.environment.checkpoint_directory)
        compiling = ScriptCompiling(
            self._model, self._module_watch, self._inference, self._own_work
        )
        watch_compile(guard(compiling.module), guard(compiling.starts), guard(compiling.ends))
        watch_scaler(self._facts)
        watch_gradients_of_gradients(self._facts)
        pickle_as_written()

    def _watch_training(self) -> None:
        guard = self._net.guard
        register_optimizer_step_pre_hook(guard(self._before_step))
        register_optimizer_step_post_hook(guard(self._after_step))
        watch_backward(guard(self._on_loss))
        if self._session.listens_to_stops:
            # Calls before an optimizer exists train nothing. Models call their parts when they are
            # made, to determine a size.
            watch_optimizers(guard(self._on_optimizer))

    def _before_pass(self, loader: Any) -> None:
        self._loaders.before_pass(loader)
        if not self._own_work.under_way:
            self._inference.pass_begins(loader)

    def _before_batch(self, iterator: Any) -> None:
        self._loaders.before_batch(iterator)
        # An evaluation has no other parts. Threads that fetch ahead are none of its parts.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and not self._own_work.under_way:
            self._session.life_sign.seen()
            if self._session.yielding.seconds is not None:
                self._yield()

    def _received(self, batch: Any) -> Any:
        if not self._own_work.under_way:
            self._inference.batch_received()
        return self._loaders.received(batch)

    def _on_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Called when the script makes an optimizer. The modules that it calls next may be its
        model.
        """
        if self._in_child:
            self._train_in_child(optimizer)
        if self._own_work.under_way:
            return
        self._inference.trains()
        if not self._session.optimizes:
            return
        self._subsequent_models.made(optimizer)
        if not self._session.meter.steps or self._subsequent_models.watches:
            self._module_watch.start()

    def _on_loss(self, loss: torch.Tensor, unscaled: torch.Tensor) -> None:
        if self._in_child:
            self._train_in_child()
        if not self._own_work.under_way:
            self._inference.trains()
            self._model.saw_backward()
            self._session.state.saw_pass(unscaled)
            self._loss_check.saw_loss(loss)
            self._part_ends()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._own_work.under_way:
            return
        self._inference.trains()
        self._session.start()
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._facts.steps_with_closure = self._facts.steps_with_closure or closure is not None
        if self._subsequent_models.waits or not self._facts.has_seen(optimizer):
            self._before_first_step(optimizer)
        self._model.step_starts(optimizer)
        if optimizer is self._clock.optimizer and not self._facts.steps_with_closure:
            with self._session.meter.paused():
                self._session.meter.optimizer_starts()

    def _before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._session.meter.steps and self._subsequent_models.watches:
            self._module_watch.start()
        elif self._session.meter.steps and self._subsequent_models.passes(optimizer):
            self._rollback_guard.again()
            return
        if self._model.optimizers.first is not None:
            if self._model.steps < MEASURED_STEPS:
                self._startup.before_first_step_of_another(optimizer)
            return
        if self._model.script_compiles:
            self._subsequent_models.unseen()
        if self._subsequent_models.suits(optimizer):
            self._startup.before_first_step(optimizer)
            self._subsequent_models.stepped()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        scale = self._model.first.applied.plan.loss_scale
        if not self._own_work.under_way:
            if scale is not None:
                self._rollback_guard.scaled_step_ends(scale)
            self._model.step_ends(optimizer)
        self._facts.saw(optimizer)
        self._module_watch.step_done()
        if self._own_work.under_way or not self._clock.ticks(optimizer):
            return
        self._session.meter.step_done()
        hold_to_card(self._session)
        if not self._facts.steps_with_closure:
            self._session.meter.optimizer_ends()
        # A script may step its optimizer in inference mode, in which autograd makes no graph.
        with (
            self._own_work.doing(),
            self._session.meter.paused(),
            torch.inference_mode(mode=False),
        ):
            self._phases.after_step(optimizer)
        self._part_ends()
        self._profile()
        self._session.safe_point()

    def _begin_training(self) -> None:
        """Called when a script turns out to train whose calls were steps until now."""
        self._model.renew()
        self._startup.again()
        self._rollback_guard.again()
        self._loss_check.again()

    def _after_call(self) -> None:
        """Called after each call of a model that only answers."""
        with (
            self._own_work.doing(),
            self._session.meter.paused(),
            torch.inference_mode(mode=False),
        ):
            self._phases.after_step(None)
        self._part_ends()
        self._profile()
        self._session.safe_point()

    def _part_ends(self) -> None:
        self._session.life_sign.seen()
        self._yield()

    def _yield(self) -> None:
        """Leaves the GPU to a service on it, unless nothing of the script may be changed."""
        if self._session.listens_to_stops:
            self._session.yielding.boundary()

    def _profile(self) -> None:
        """Called last, so that none of our own work is in the profile."""
        profiler = self._session.profiler
        text = profiler.step_done(self._session.meter.steps) if profiler is not None else None
        if text is not None:
            self._session.log.note("profile", text)

    def in_child(self) -> None:
        """Called in a process that the script forked: a loader's, or one that will train
        separately.
        """
        self._own_work.under_way = self._in_child = True
        self._inference.stop()
        self._module_watch.discovery.finish()
        self._loaders.stop()

    def _serve(self) -> None:
        """Called when the script answers requests. Nothing of it is tuned by these hooks then."""
        self._own_work.under_way = True
        self._inference.stop()
        self._module_watch.discovery.finish()
        self._loaders.stop()

    def _train_in_child(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Installs fresh hooks in a forked child that trains. Daemonic children belong to a library
        and are left alone.
        """
        if multiprocessing.current_process().daemon:
            return
        self._in_child = False
        for root in self._model.all_roots:
            apply_settings(root, None, Applied())
            root.remove()
        hooks = self._again_in_child()
        if optimizer is not None:
            hooks._on_optimizer(optimizer)

    def _take_off(self) -> None:
        """Called after an error of the worker. Processes that train together keep the applied
        settings, so this one does too.
        """
        self._module_watch.discovery.finish()
        self._inference.forget()
        self._loaders.stop()
        for root in self._model.all_roots:
            root.ask_before_next_call(False)
            root.stop_recording()
        if self._model.consensus is None:
            self._model.take_off(self._model.all_roots)

    def _release(self) -> None:
        """Drops references to the script's objects before the interpreter takes them apart in the
        script's order.

        Objects kept here would outlive process groups, whose threads then end the process by abort.
        """
        self._module_watch.forget()
        self._inference.forget()
        self._model.release()

    def _say_if_short(self) -> None:
        session, log = self._session, self._session.log
        if not session.optimizes or session.state.tuning_seconds is not None or session.launches:
            return
        if session.state.task is Task.SERVING:
            return
        steps = self._model.steps
        if not steps and log.lines:
            return  # another framework trains, or the log has the reason
        what = "calls" if self._inference.recognised else "steps"
        whose = "the last model" if self._model.steps_before else "the run"
        seen = f"{whose} ended after {steps} of the {MEASURED_STEPS} {what} that are measured first"
        if steps >= MEASURED_STEPS:  # other settings are known, or the hooks are off
            seen = f"{steps} {what} were made, and nothing that could be tuned was called in them"
        if not steps and self._inference.calls:
            seen = "no optimizer of torch made a step, and too few calls of a model were made"
        elif not steps:
            seen = "no optimizer of torch made a step"
        log.skipped("tuning", seen)
