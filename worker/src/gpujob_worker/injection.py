"""Puts the hooks into torch and walks one run through warm-up, baseline, tuning and training.

The first steps run exactly as the script says and are its real steps; tuning happens between two
steps on a recorded batch; what was chosen is in force from the next step on.
"""

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpujob_api.report import WorkerPhase
from gpujob_api.settings import Toggle, TunedSettings
from gpujob_worker.card import card_meter
from gpujob_worker.card_context import card_context, limit_allocator
from gpujob_worker.failure import MemoryLimitError
from gpujob_worker.guardian import Guardian
from gpujob_worker.in_force import InForce
from gpujob_worker.inject.children import in_forked_children
from gpujob_worker.inject.compiling import keep_compiled_in
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.inject.loader_policy import LoaderPolicy
from gpujob_worker.inject.loaders import watch_loaders
from gpujob_worker.inject.optimizers import device_type_of
from gpujob_worker.inject.root import RecordedCall, Root, names_of
from gpujob_worker.inject.script_facts import (
    ScriptFacts,
    watch_backward,
    watch_compile,
    watch_gradients_of_gradients,
    watch_optimizers,
    watch_scaler,
)
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.memory import CudaMemory
from gpujob_worker.session import Session
from gpujob_worker.tune.first_look import trace_refusal
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.loss_memory import LossWatch
from gpujob_worker.tune.memory_fit import MemoryFit
from gpujob_worker.tune.together import communicates, root_inside, tuner_for
from gpujob_worker.tune.trial import short
from gpujob_worker.tune.tuner import Tuner
from gpujob_worker.tuning_pass import TuningPass

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
        self._guardian = Guardian(session, self._in_force)
        self._inside = False
        self._compile_due: float | None = None
        self._prepared = False
        # Why no process may run the module while others do not.
        self._speaks: str | None = None
        self._discovery = Discovery(self._on_root)
        self._loaders = LoaderPolicy(session)
        self._clock = StepClock()
        self._waits_for_calls = False

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

    def _on_device(self, device_type: str) -> None:
        """Once the script has put something on a card; asking earlier would set the card up."""
        meter = self._session.meter
        if device_type == "cuda" and not isinstance(meter.memory, CudaMemory):
            self._session.device = torch.cuda.get_device_name()
            device = torch.cuda.current_device()
            uuid = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
            meter.memory = CudaMemory(torch.cuda, card_context(uuid))
            meter.card = card_meter(uuid)
            self._limit_allocator()

    def _limit_allocator(self) -> None:
        """Again whenever more libraries may have been loaded: they take of the same limit."""
        limit, memory = self._session.environment.memory_limit_bytes, self._session.meter.memory
        if not isinstance(memory, CudaMemory):
            return
        if limit is None or not self._session.optimizes:
            memory.measure_context()
            return
        limit_allocator(torch.cuda, limit, memory.measure_context)

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
        """Before the first call of the first root: what must hold from the first step on.

        Then once more, after its first step, where there is a limit to be kept.
        """
        again = self._prepared
        if self._inside:
            return
        if again and not (self._in_force.fit is not None and root is self._roots[0]):
            return
        self._prepared = True
        assert root.recorded is not None
        self._inside = True
        try:
            with self._session.meter.paused(), self._guarded("memory limit"):
                if again:
                    self._fit_again(root, root.recorded)
                else:
                    self._prepare(root, root.recorded)
        finally:
            self._inside = False

    @contextmanager
    def _guarded(self, item: str) -> Generator[None]:
        """What fails in our own measuring is said, and is not the script's failure."""
        try:
            yield
        except MemoryLimitError:
            raise
        except Exception as error:
            self._explain.refused(item, f"measuring failed: {short(error)}")

    def _fit_again(self, root: Root, recorded: RecordedCall) -> None:
        """What the first step took is known now."""
        assert self._in_force.fit is not None
        self._session.meter.read_memory()
        self._limit_allocator()
        self._in_force.fit.refine(root, recorded)
        self._in_force.put()
        self._session.needed_bytes = self._in_force.fit.needed_bytes
        self._session.meter.memory.reset_peak()

    def _prepare(self, root: Root, recorded: RecordedCall) -> None:
        session = self._session
        self._on_device(root.device.type)
        limited = session.environment.memory_limit_bytes is not None
        together = self._in_force.agreement is not None
        if limited or together or session.known_tuned is not None:
            self._speaks = trace_refusal(root, recorded, whole=False)
        if together and self._speaks is None:
            self._speaks = communicates(root, recorded)
        if limited and self._speaks is not None:
            self._explain.refused("memory limit", f"nothing was measured: {self._speaks}")
        tuned = session.known_tuned
        if tuned is not None:
            self._apply_known(root, recorded, tuned)
        elif limited and self._speaks is None:
            self._in_force.tuner = self._new_tuner()
            self._fit_limit(root, recorded)
            self._in_force.put()
            session.meter.memory.reset_peak()

    def _fit_limit(self, root: Root, recorded: RecordedCall) -> None:
        """Raises `MemoryLimitError` where the memory limit cannot be kept."""
        session, tuner = self._session, self._in_force.tuner
        limit, meter = session.environment.memory_limit_bytes, session.meter
        assert tuner is not None
        assert limit is not None
        self._in_force.fit = fit = MemoryFit(meter.memory, self._explain, tuner, limit)
        fit.fit(root, recorded)
        session.needed_bytes = fit.needed_bytes
        fit.watch(root, LossWatch(meter.memory, meter.read_memory))

    def _apply_known(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Settings of an earlier run: checked for safety, not measured again."""
        self._in_force.tuner = tuner = self._new_tuner()
        if self._speaks is None:
            self._session.step_flop = step_flop(root, recorded)
            tuner.adopt(root, recorded, tuned)
        self._in_force.settle()
        if self._in_force.agreement is not None:
            self._session.known_tuned = tuner.applied.tuned()
        scale = tuner.applied.plan.loss_scale
        if scale is not None and self._session.known_scale is not None:
            scale.resume(self._session.known_scale)
        self._explain.note("tuning", "settings of an earlier run are known; nothing was probed")
        limited = self._session.environment.memory_limit_bytes is not None
        if limited and self._speaks is None:
            self._explain.note(
                "tuning", "settings of an earlier run are known; only memory is probed"
            )
            self._fit_limit(root, recorded)
        self._in_force.put()
        self._session.tuned = tuner.applied.tuned()
        self._session.tuning_seconds = 0.0

    def _new_tuner(self) -> Tuner:
        return tuner_for(self._session, self._facts, self._in_force.agreement)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._inside:
            return
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        self._facts.steps_with_closure = self._facts.steps_with_closure or closure is not None
        if not self._facts.optimizers:
            self._before_first_step(optimizer)
        self._in_force.step_starts(optimizer)
        if optimizer is self._clock.optimizer and not self._facts.steps_with_closure:
            with self._session.meter.paused():
                self._session.meter.optimizer_starts()

    def _before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        if session.known_tuned is None or self._in_force.tuner is None:
            return
        self._in_force.tuner.adopt_scaling(optimizer)
        self._in_force.tuner.adopt_fused(optimizer, session.known_tuned)
        self._in_force.put(optimizer)
        session.tuned = self._in_force.tuner.applied.tuned()

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
            self._on_device(device_type_of(optimizer))
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
            self._compile_when_due()
        elif self._session.known_tuned is not None:
            self._session.phase = WorkerPhase.TRAINING
        elif since == -1 and self._roots:
            self._roots[0].recording = len(self._roots) == 1 or self._in_force.fit is not None
        elif since == 0:
            self._tune(optimizer)

    def _tune(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        self._in_force.tunes(optimizer)
        session.phase = WorkerPhase.TUNING
        session.reporter.wake()
        self._limit_allocator()
        window = session.meter.new_window()
        session.baseline = window.timing(session.samples_per_step)
        session.baseline_wait_percent = window.data_wait_percent
        start = time.monotonic()
        self._in_force.tuner = self._in_force.tuner or self._new_tuner()
        self._in_force.tuner.start()
        tuning = TuningPass(session, self._in_force, optimizer)
        for root in self._roots:
            root.stop_recording()
        reason = self._no_single_root()
        if reason is None:
            with self._guarded("tuning"):
                self._compile_due = tuning.run(self._roots[0])
        elif self._speaks is None and len(self._roots) > 1 and not self._facts.compiles:
            with self._guarded("tuning"):
                tuning.among_others(self._roots[0], names_of(self._roots[1:]), reason)
        else:
            tuning.without_root(reason)
        self._in_force.settle()
        self._in_force.put()
        self._loaders.decide(self._in_force.tuner.applied)
        session.tuning_seconds = time.monotonic() - start
        session.tuned = self._in_force.tuner.applied.tuned()
        session.phase = WorkerPhase.TRAINING
        session.meter.memory.trim()
        session.meter.new_window()

    def _no_single_root(self) -> str | None:
        if self._facts.compiles:
            return "the script compiles its model itself; its graph is left as it is"
        if not self._roots:
            return "no module in training mode was called from outside all others, with gradients"
        if len(self._roots) > 1:
            count, names = len(self._roots), names_of(self._roots)
            return f"{count} modules are trained from outside, one is needed: {names}"
        root = self._roots[0]
        if root.recorded is None:
            return "no call of the module was seen"
        if self._speaks is None and self._in_force.agreement is None:
            self._speaks = trace_refusal(root, root.recorded, whole=True)
        return self._speaks

    def _compile_when_due(self) -> None:
        """The long-running job's compilation: one step to record a batch, then the try."""
        if self._compile_due is None or time.monotonic() < self._compile_due:
            return
        tuner = self._in_force.tuner
        if self._in_force.rolled_back or tuner is None:
            self._compile_due = None
            return
        root = self._roots[0]
        if not root.recording:
            root.recording = True
            return
        self._compile_due = None
        root.stop_recording()
        recorded, root.recorded = root.recorded, None
        if recorded is None:
            return
        # Hooks may have come since the first look.
        reason = probe_refusal(root.module)
        if reason is not None:
            self._explain.refused("compile", reason)
            return
        self._session.meter.new_window()
        with self._guarded("compile"):
            tuner.compile(root, recorded)
        self._in_force.put()
        self._session.tuned = tuner.applied.tuned()
        self._session.meter.new_window()
