"""Applies what must hold from a model's first step: a memory limit, and known settings.

Known settings come from an earlier run, or from the model that was trained before
(`subsequent_models`).

Both are applied before the first call of the first root. The limit is checked for every root and
before each call of the first steps: once the memory of a step is known, and if more memory is held
than before. Everything else waits for the tuning.
"""

import torch

from gpujob_api.settings import TunedSettings
from gpujob_worker.control.distributed_tuning import communicates, refusal_together, tuner_for
from gpujob_worker.control.sharded_tuning import whole_root
from gpujob_worker.control.shared_decisions import settle_known
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.control.tuned_module import FURTHER_MAX, TunedModule
from gpujob_worker.control.tuned_optimizers import OPTIMIZERS_MAX, named, trains
from gpujob_worker.inject.guards import is_fully_sharded
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.memory_limit.loss import LossMemoryWatch
from gpujob_worker.memory_limit.probes import OPTIMIZER_STATE_FACTOR, gradient_bytes
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_limit, use_device
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.trial import measuring
from gpujob_worker.tune.tuner import FUSED, Tuner

# Calls of a root before which the limit is checked. A loop may make many calls in one step.
LOOKS_MAX = 64


class Startup:
    """Applies to a root, before its first call, what cannot wait for a measured step."""

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._done = self._stepped = self._refined = False
        self._looks = 0

    def again(self) -> None:
        """Starts over for another model."""
        self._done = self._stepped = self._refined = False
        self._looks = 0

    def stepped(self) -> None:
        """Called when the first step has ended."""
        self._stepped = True

    def wrapped(self, module: torch.nn.Module) -> None:
        """Takes back what this process decided on a call before the script wraps the module in
        DistributedDataParallel.

        Other processes may not have made such a call, and all decide together from now on.
        """
        parts = set(module.modules())
        called = [root for root in self._model.roots if root.module in parts]
        for root in called:
            self._model.drop(root)
        if called and not self._model.roots:
            self._model.renew()
            self.again()

    def before_call(self, root: Root) -> None:
        """Prepares a call of the root. Raises `MemoryLimitError` if the memory limit cannot be
        kept.
        """
        model = self._model
        again, self._done = self._done, True
        limited = self._session.environment.memory_limit_bytes is not None
        is_first = root is model.first.root
        if again and not limited and not is_first:
            self._start_further(root)
        if again and (not limited or self._looks >= LOOKS_MAX):
            return
        self._looks += 1
        # Asks again until the first steps were seen.
        root.ask_before_next_call(limited)
        assert root.recorded is not None
        with self._session.meter.paused():
            if again and not is_first:
                self._limit_further(root, root.recorded)
                return
            with measuring("memory limit", model.log):
                if not again:
                    self._prepare(root, root.recorded)
                elif model.first.fit is not None:
                    self._fit_again(root, root.recorded)

    def adopt(self, root: Root, recorded: RecordedCall) -> None:
        """Applies the settings of an earlier run to a module that only answers, before one of its
        calls.
        """
        known = self._session.state.known_tuned
        assert known is not None
        with measuring("tuning", self._model.log):
            if root is not self._model.first.root:
                self._start_further(root)
                return
            self._model.first.refuse(trace_refusal(root, recorded, whole=False))
            self._apply_known(root, recorded, known)

    def before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies the known settings of the optimizer."""
        known, tuner = self._model.known, self._model.first.tuner
        if known is None or tuner is None:
            return
        tuner.adopt_scaling(optimizer)
        self._adopt_fused(optimizer, known, tuner, [])
        self._model.apply(optimizer)
        self._model.report()

    def before_first_step_of_another(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies the known settings of another optimizer, within the steps in which it would have
        been measured.
        """
        model = self._model
        known, tuner = model.known, model.first.tuner
        # A script may keep optimizers of models that it trained before.
        before = [one for one in model.facts.optimizers if trains(one, model.roots)]
        if known is None or tuner is None or model.rolled_back:
            return
        if len(before) >= min(OPTIMIZERS_MAX, known.optimizers_judged):
            return  # the kernel was never compared in this one
        self._adopt_fused(optimizer, known, tuner, before)
        model.apply()
        model.report()

    def _adopt_fused(
        self,
        optimizer: torch.optim.Optimizer,
        known: TunedSettings,
        tuner: Tuner,
        before: list[torch.optim.Optimizer],
    ) -> None:
        """Adopts the fused kernel. `before` are the optimizers of this model that have stepped."""
        _, item = named([*before, optimizer], FUSED)[-1]
        fused = self._model.optimizers.fused
        if tuner.adopt_fused(optimizer, known, item):
            fused.append(optimizer)
        self._model.optimizers.fuse(fused)
        tuner.fuse(bool(fused), known.optimizers_judged)

    def _prepare(self, root: Root, recorded: RecordedCall) -> None:
        session, model = self._session, self._model
        use_device(session, root.device)
        limited = session.environment.memory_limit_bytes is not None
        together = model.consensus is not None
        if limited or together or session.state.known_tuned is not None:
            model.first.refuse(trace_refusal(root, recorded, whole=False))
        if together and model.first.refusal is None and not is_fully_sharded(root.module):
            model.first.refuse(communicates(root, recorded))
        if limited and model.first.refusal is not None:
            text = f"nothing was measured: {model.first.refusal}"
            model.log.skipped("memory limit", text)
        if session.state.known_tuned is not None:
            self._apply_known(root, recorded, session.state.known_tuned)
        elif limited and model.first.refusal is None:
            model.first.use(tuner_for(model))
            self._fit_limit(root, recorded)
            model.apply()
            session.meter.memory.reset_peak()

    def _apply_known(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Applies settings of an earlier run, which are checked for safety and not measured
        again.
        """
        session, model = self._session, self._model
        tuner = model.first.use(tuner_for(model))
        with whole_root(model, "known", recorded) as whole:
            if model.first.refusal is None:
                flop = step_flop(whole or root, recorded) if model.first_shape else None
                session.state.counted(flop)
                chunk = model.keeps_chunk
                tuner.adopt(root, recorded, tuned, keeps_chunk=chunk, whole=whole)
        settle_known(model, model.first)
        if model.consensus is not None:
            session.state.start_with(tuner.tuned())
        scale = tuner.applied.plan.loss_scale
        if scale is not None and session.state.known_scale is not None:
            scale.resume(session.state.known_scale)
        limited = session.environment.memory_limit_bytes is not None and model.first.refusal is None
        probed = "only memory is probed" if limited else "nothing was probed"
        text = f"settings of {model.source} are known; {probed}"
        model.log.note("tuning", text)
        if limited:
            self._fit_limit(root, recorded)
        model.apply()
        model.report()
        session.state.tuning_took(0.0)

    def _fit_limit(self, root: Root, recorded: RecordedCall) -> None:
        session, tuner = self._session, self._model.first.tuner
        limit, meter = session.environment.memory_limit_bytes, session.meter
        assert tuner is not None
        assert limit is not None
        fit = MemoryFit(meter.memory, self._model.log, tuner, limit)
        self._model.first.keep_limit_by(fit)
        fit.others = lambda: [other for other in self._model.fits if other is not fit]
        fit.fit(root, recorded)
        session.state.needs(fit.needed_bytes)
        fit.watch(root, LossMemoryWatch(meter.memory, meter.read_memory))

    def _fit_again(self, root: Root, recorded: RecordedCall) -> None:
        session, fit = self._session, self._model.first.fit
        assert fit is not None
        refines = self._stepped and not self._refined
        self._refined = self._refined or refines
        session.meter.read_memory()
        hold_to_limit(session)
        _look_again(fit, root, recorded, refines=refines)
        self._model.apply()
        session.state.needs(fit.needed_bytes)
        session.meter.memory.reset_peak()

    def _start_further(self, root: Root) -> None:
        """Applies known settings to a module other than the first, before its first call.

        If several processes decide together, all check it before this call.
        """
        known, recorded = self._session.state.known_tuned, root.recorded
        together = self._model.consensus is not None
        if recorded is None or (known is None and not together):
            return
        if len(self._model.further) >= FURTHER_MAX:
            return
        module = self._model.choose_for(root)
        with self._session.meter.paused():
            with measuring("settings for speed", module.log):
                module.refuse("looking at it failed")
                refusal = trace_refusal(root, recorded, whole=False)
                if together:
                    refusal = refusal or refusal_together(root, recorded)
                module.refuse(refusal)
                if refusal is None:
                    self._take_over(module, recorded)
                else:
                    module.log.skipped("settings for speed", refusal)
            if known is not None:
                settle_known(self._model, module)
        module.apply()

    def _take_over(self, module: TunedModule, recorded: RecordedCall) -> None:
        """Takes over the known settings. The module's call may be run."""
        known = self._session.state.known_tuned
        if known is not None:
            module.take_over(recorded, known, self._model.shared_scale)
            module.choices.adopt_compiled(module.root, recorded, known, compares=True)

    def _limit_further(self, root: Root, recorded: RecordedCall) -> None:
        """Splits a module other than the first and recomputes it according to its own memory
        model.
        """
        session, model = self._session, self._model
        session.meter.read_memory()
        hold_to_limit(session)
        module = model.module_of(root)
        try:
            if module.tuner is None:
                self._fit_further(model.choose_for(root), recorded)
            elif module.fit is not None:
                refines = module.refine(stepped=self._stepped)
                with measuring("memory limit", module.log):
                    _look_again(module.fit, root, recorded, refines=refines)
        finally:
            self._note_needed(module)
        module.apply()
        session.meter.memory.reset_peak()

    def _fit_further(self, module: TunedModule, recorded: RecordedCall) -> None:
        session, model, root = self._session, self._model, module.root
        limit = session.environment.memory_limit_bytes
        assert limit is not None
        module.refuse(self._further_refusal(root, recorded))
        if module.refusal is not None:
            module.log.skipped("memory limit", f"nothing was measured: {module.refusal}")
            return
        self._take_over(module, recorded)
        fit = MemoryFit(session.meter.memory, module.log, module.choices, limit)
        module.keep_limit_by(fit)
        fit.others = lambda: [other for other in model.fits if other is not fit]
        with measuring("memory limit", module.log):
            fit.fit(root, recorded, self._others_bytes(root))
        fit.watch(root, LossMemoryWatch(session.meter.memory, session.meter.read_memory))

    def _further_refusal(self, root: Root, recorded: RecordedCall) -> str | None:
        if self._model.consensus is not None:
            return "several processes look at the first module only"
        return trace_refusal(root, recorded, whole=False)

    def _others_bytes(self, root: Root) -> float:
        """Returns the bytes of gradients and optimizer state of roots called before; 0 once a step
        has ended.
        """
        others = [other for other in self._model.roots if other is not root]
        taken = sum(gradient_bytes(other) for other in others)
        return 0.0 if self._stepped else float((1 + OPTIMIZER_STATE_FACTOR) * taken)

    def _note_needed(self, module: TunedModule) -> None:
        """Reports the required limit, even for a module because of which the run ends."""
        needed = module.fit.needed_bytes if module.fit is not None else None
        if needed is not None:
            self._session.state.needs(max(self._session.state.needed_bytes or 0, needed))


def _look_again(fit: MemoryFit, root: Root, recorded: RecordedCall, *, refines: bool) -> None:
    """Checks the limit again, because the memory of the first step is known now, or more memory is
    held than before the first call.
    """
    if refines:
        fit.refine(root, recorded)
    else:
        fit.look_again(root, recorded)
