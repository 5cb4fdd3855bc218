"""Puts the hooks into torch and walks one run through warm-up, baseline, tuning and training.

The first steps run exactly as the script says and are its real steps; tuning happens between two
steps on a recorded batch; what was chosen is in force from the next step on.
"""

import functools
import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from gpujob_api.report import WorkerPhase
from gpujob_api.settings import OptimizeMode, Precision, Toggle, TunedSettings
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.loader_policy import LoaderPolicy
from gpujob_worker.inject.loaders import watch_loaders
from gpujob_worker.inject.loss_scale import LossScale
from gpujob_worker.inject.optimizers import use_fused
from gpujob_worker.inject.root import RecordedCall, Root
from gpujob_worker.inject.script_facts import (
    ScriptFacts,
    watch_gradients_of_gradients,
    watch_scaler,
)
from gpujob_worker.memory import CudaMemory, device_memory
from gpujob_worker.session import Session
from gpujob_worker.tune.applied import Applied, put_in_force
from gpujob_worker.tune.memory_fit import MemoryFit
from gpujob_worker.tune.memory_model import divisors
from gpujob_worker.tune.tuner import Tuner

WARM_UP_STEPS = 2
BASELINE_STEPS = 5
CONFIRM_STEPS = 10
SLOWER_ALLOWED = 1.10
LOSS_CHECK_STEPS = 20
COMPILE_AFTER_SECONDS = 120.0
# Items that need one root module and a recorded call of it.
ROOT_ITEMS = (
    "batch split",
    "activation checkpointing",
    "precision",
    "attention kernel",
    "channels_last",
    "convolution autotuning",
    "compile",
)


class Injection:
    """Everything that is hooked into torch for one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._explain = session.explanation
        self._roots: list[Root] = []
        self._facts = ScriptFacts()
        self._inside = False
        self._tuner: Tuner | None = None
        self._fit: MemoryFit | None = None
        self._applied = Applied()
        self._compile_due: float | None = None
        self._prepared = False
        self._discovery = Discovery(self._on_root)
        self._loaders = LoaderPolicy(session)

    def install(self) -> None:
        session = self._session
        session.torch_version = torch.__version__
        session.device = "cpu"
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        watch_loaders(self._loaders.before_pass, session.meter.waited)
        self._watch_backward()
        if not session.optimizes:
            self._explain.refused("everything", "optimize mode is Off")
            return
        self._watch_compile()
        watch_scaler(self._facts)
        watch_gradients_of_gradients(self._facts)
        self._discovery.start()

    def _on_device(self, device_type: str) -> None:
        """Once the script has put something on a card; asking earlier would set the card up."""
        meter = self._session.meter
        if device_type == "cuda" and not isinstance(meter.memory, CudaMemory):
            self._session.device = torch.cuda.get_device_name()
            meter.memory = device_memory("cuda")
            self._limit_allocator()

    def _limit_allocator(self) -> None:
        limit = self._session.environment.memory_limit_bytes
        if limit is None or not self._session.optimizes:
            return
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))

    def _watch_backward(self) -> None:
        plain = torch.Tensor.backward
        session = self._session

        @functools.wraps(plain)
        def backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if self.numel() == 1:
                session.loss_tensor = self.detach()
            plain(self, *args, **kwargs)

        torch.Tensor.backward = backward  # pyright: ignore[reportAttributeAccessIssue]

    def _watch_compile(self) -> None:
        for owner in (torch, torch.nn.Module):
            plain = owner.compile

            @functools.wraps(plain)
            def compile_(*args: Any, _plain: Any = plain, **kwargs: Any) -> Any:
                if not self._inside:
                    self._facts.compiles = True
                    self._discovery.finish()
                return _plain(*args, **kwargs)

            owner.compile = compile_  # pyright: ignore[reportAttributeAccessIssue]

    def _on_root(self, module: torch.nn.Module) -> Root | None:
        root = Root(module, self._before_call)
        self._roots.append(root)
        root.install()
        return root

    def _before_call(self, root: Root) -> None:
        """Before the first call of the first root: what must hold from the first step on."""
        if self._prepared:
            return
        self._prepared = True
        assert root.recorded is not None
        self._inside = True
        try:
            with self._session.meter.paused():
                self._prepare(root, root.recorded)
        finally:
            self._inside = False

    def _prepare(self, root: Root, recorded: RecordedCall) -> None:
        session = self._session
        self._on_device(root.device.type)
        tuned = session.known_tuned
        if tuned is not None:
            self._apply_known(root, recorded, tuned)
        elif session.environment.memory_limit_bytes is not None:
            limit = session.environment.memory_limit_bytes
            self._tuner = self._new_tuner()
            self._fit = MemoryFit(session.meter.memory, self._explain, self._tuner)
            self._fit.fit(root, recorded, limit)
            self._put_in_force(root, None)

    def _apply_known(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Settings of an earlier run: checked for safety, not measured again."""
        self._tuner = tuner = self._new_tuner()
        tuner.adopt(root, recorded, tuned)
        self._explain.note("tuning", "settings of an earlier run are known; nothing was probed")
        self._put_in_force(root, None)
        self._session.tuned = tuner.applied.tuned()
        self._session.tuning_seconds = 0.0

    def _new_tuner(self) -> Tuner:
        session = self._session
        return Tuner(
            session.environment.settings,
            session.switches,
            self._explain,
            session.tuning_budget_seconds,
            self._facts,
        )

    def _put_in_force(self, root: Root, optimizer: torch.optim.Optimizer | None) -> None:
        assert self._tuner is not None
        if self._session.environment.settings.mode is OptimizeMode.RECOMMEND:
            return
        self._applied = self._tuner.applied
        put_in_force(root, optimizer, self._applied)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._inside:
            return
        if not self._facts.optimizers:
            self._before_first_step(optimizer)
        scale = self._applied.plan.loss_scale
        if scale is not None:
            scale.step_starts(optimizer)

    def _before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        if session.known_tuned is None or self._tuner is None:
            return
        self._tuner.adopt_scaling(optimizer)
        self._tuner.adopt_fused(optimizer, session.known_tuned)
        self._put_in_force(self._roots[0], optimizer)
        session.tuned = self._tuner.applied.tuned()

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if self._applied.plan.loss_scale is not None and not self._inside:
            self._scaled_step_ends(self._applied.plan.loss_scale)
        if optimizer not in self._facts.optimizers:
            self._facts.optimizers.append(optimizer)
        if optimizer is not self._facts.optimizers[0] or self._inside:
            return
        self._session.meter.step_done()
        self._inside = True
        try:
            with self._session.meter.paused():
                self._advance(optimizer)
        finally:
            self._inside = False
        self._session.safe_point()

    def _scaled_step_ends(self, scale: LossScale) -> None:
        skipped = scale.skipped
        scale.step_ends()
        self._session.skipped_steps = scale.skipped
        if scale.skipped > skipped:
            self._explain.note("loss scaling", str(scale))
        if scale.hopeless:
            self._roll_back(self._facts.optimizers[0], f"gradients overflow, {scale}")

    def _advance(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        steps = session.meter.steps
        if steps == 1:
            self._on_device(optimizer.param_groups[0]["params"][0].device.type)
            session.phase = WorkerPhase.MEASURING if session.optimizes else WorkerPhase.TRAINING
            session.samples_per_step = self._roots[0].rows if self._roots else None
        if not session.optimizes:
            return
        if steps == WARM_UP_STEPS:
            self._discovery.finish()
            for root in self._roots:
                root.settled = True
            session.meter.memory.trim()
            session.meter.new_window()
        if session.known_tuned is not None:
            if steps == WARM_UP_STEPS:
                session.phase = WorkerPhase.TRAINING
            return
        if steps == WARM_UP_STEPS + BASELINE_STEPS - 1 and len(self._roots) == 1:
            self._roots[0].recording = True
        elif steps == WARM_UP_STEPS + BASELINE_STEPS:
            self._tune(optimizer)
        elif steps > WARM_UP_STEPS + BASELINE_STEPS:
            self._watch_over(steps, optimizer)

    def _tune(self, optimizer: torch.optim.Optimizer) -> None:
        session = self._session
        session.phase = WorkerPhase.TUNING
        session.reporter.wake()
        window = session.meter.new_window()
        session.baseline = window.timing(session.samples_per_step)
        session.baseline_wait_percent = window.data_wait_percent
        start = time.monotonic()
        self._tuner = self._tuner or self._new_tuner()
        reason = self._no_single_root()
        if reason is not None:
            for item in ROOT_ITEMS:
                self._explain.refused(item, reason)
        else:
            self._tune_root(self._roots[0])
        if len(self._facts.optimizers) == 1:
            self._tuner.fused_optimizer(optimizer)
        if self._roots:
            self._put_in_force(self._roots[0], optimizer)
        self._loaders.decide(self._tuner.applied)
        session.tuning_seconds = time.monotonic() - start
        session.tuned = self._tuner.applied.tuned()
        session.phase = WorkerPhase.TRAINING
        session.meter.memory.trim()
        session.meter.new_window()

    def _no_single_root(self) -> str | None:
        if self._facts.compiles:
            return "the script compiles its model itself; its graph is left as it is"
        if len(self._roots) != 1:
            return f"{len(self._roots)} modules are trained from outside; one is needed"
        if self._roots[0].recorded is None:
            return "no call of the module was seen"
        return None

    def _tune_root(self, root: Root) -> None:
        recorded = root.recorded
        tuner = self._tuner
        assert recorded is not None
        assert tuner is not None
        root.recording = False
        settings = self._session.environment.settings
        limit = self._session.environment.memory_limit_bytes
        peak = self._session.baseline.peak_memory_bytes if self._session.baseline else 0
        if self._fit is not None and limit is not None:
            self._fit.correct(root, recorded, peak, limit)
        if settings.batch_per_step is not None and tuner.applied.plan.rows_per_step is None:
            tuner.split(root, recorded, settings.batch_per_step, "as asked for")
        elif tuner.applied.plan.rows_per_step is None:
            self._explain.refused("batch split", "memory does not ask for it")
        self._activation(root, recorded, tuner)
        put_in_force(root, None, tuner.applied)
        try:
            tuner.speed(root, recorded)
            if settings.compile is Toggle.ON:
                tuner.compile(root, recorded)
            elif settings.compile is Toggle.AUTO and self._session.switches.compile:
                self._compile_due = time.monotonic() + COMPILE_AFTER_SECONDS
                self._explain.refused(
                    "compile", f"tried once training has lasted {COMPILE_AFTER_SECONDS:.0f} s"
                )
            else:
                tuner.compile(root, recorded)
        finally:
            put_in_force(root, None, self._applied)
            root.recorded = None

    def _activation(self, root: Root, recorded: RecordedCall, tuner: Tuner) -> None:
        wanted = self._session.environment.settings.activation_checkpointing
        if tuner.applied.activation_checkpointing:
            return
        if wanted is Toggle.ON:
            tuner.activation_checkpointing(root, recorded, "as asked for")
        else:
            why = "asked not to" if wanted is Toggle.OFF else "memory does not ask for it"
            self._explain.refused("activation checkpointing", why)

    def _watch_over(self, steps: int, optimizer: torch.optim.Optimizer) -> None:
        since = steps - WARM_UP_STEPS - BASELINE_STEPS
        if since == CONFIRM_STEPS:
            self._confirm(optimizer)
        if since % CONFIRM_STEPS == 0:
            self._keep_limit()
        if since % LOSS_CHECK_STEPS == 0:
            self._check_loss(optimizer)
        if self._compile_due is not None and time.monotonic() >= self._compile_due:
            self._compile_now(optimizer)

    def _keep_limit(self) -> None:
        """A split that was not fine enough is made finer; it was shown to be safe already."""
        session = self._session
        limit, rows = session.environment.memory_limit_bytes, self._applied.plan.rows_per_step
        session.meter.read_memory()
        if limit is None or rows is None or session.meter.window.peak_memory_bytes <= limit:
            return
        assert self._tuner is not None
        finer = next((n for n in divisors(rows) if n <= rows // 2), None)
        if finer is None:
            self._explain.refused("memory limit", "cannot be kept by splitting")
            return
        self._tuner.applied.plan = replace(self._tuner.applied.plan, rows_per_step=finer)
        self._explain.applied("batch split", f"steps of {finer}: {rows} did not keep the limit")
        self._put_in_force(self._roots[0], None)
        session.tuned = self._tuner.applied.tuned()
        session.meter.memory.trim()
        session.meter.new_window()

    def _confirm(self, optimizer: torch.optim.Optimizer) -> None:
        """What was chosen for speed alone must not make the real steps slower."""
        now = self._session.meter.window.timing(None)
        before = self._session.baseline
        if now is None or before is None or self._asked_for():
            return
        if now.step_seconds > before.step_seconds * SLOWER_ALLOWED:
            what = f"steps took {now.step_seconds:.4f} s after {before.step_seconds:.4f} s"
            self._roll_back(optimizer, what)

    def _asked_for(self) -> bool:
        settings, applied = self._session.environment.settings, self._applied
        forced = settings.compile is Toggle.ON or settings.precision is not Precision.AUTO
        trades = applied.plan.rows_per_step is not None or applied.activation_checkpointing
        sped_up = applied.plan.autocast is not None or applied.plan.compiled is not None
        return forced or trades or not sped_up

    def _check_loss(self, optimizer: torch.optim.Optimizer) -> None:
        if self._applied == Applied() or self._session.loss_tensor is None:
            return
        if not math.isfinite(float(self._session.loss_tensor)):
            self._roll_back(optimizer, "the loss is not finite any more")

    def _roll_back(self, optimizer: torch.optim.Optimizer, why: str) -> None:
        if self._applied.fused:
            use_fused(optimizer, False)
        self._applied = Applied(loader_workers=self._applied.loader_workers)
        if self._roots:
            put_in_force(self._roots[0], None, self._applied)
        self._explain.note("roll-back", f"to plain settings: {why}")
        self._session.tuned = self._applied.tuned()
        self._session.meter.new_window()

    def _compile_now(self, optimizer: torch.optim.Optimizer) -> None:
        """The long-running job's compilation: one step to record a batch, then the try."""
        root = self._roots[0]
        if not root.recording:
            root.recording = True
            return
        self._compile_due = None
        root.recording = False
        recorded, root.recorded = root.recorded, None
        if recorded is None or self._tuner is None:
            return
        self._session.meter.new_window()
        self._tuner.compile(root, recorded)
        self._put_in_force(root, optimizer)
        self._session.tuned = self._tuner.applied.tuned()
        self._session.meter.new_window()
