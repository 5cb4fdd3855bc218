"""Applies what must hold from a model's first step: a memory limit, and settings known beforehand.

Known settings come from an earlier run, or from the model that was trained before
(`subsequent_models`).

Both are applied before the first call of the first root runs. The limit is checked for every root,
and before each call of the first steps: once the memory of a step is known, and if more memory is
held than before. Everything else waits for the tuning.
"""

import torch

from gpujob_api.settings import TunedSettings
from gpujob_worker.control.applied_settings import AppliedSettings
from gpujob_worker.control.device import hold_to_limit, use_device
from gpujob_worker.control.distributed_tuning import communicates, refusal_together, tuner_for
from gpujob_worker.control.secondary_modules import SECONDARY_MAX, SecondaryModule
from gpujob_worker.control.sharded_tuning import whole_root
from gpujob_worker.control.tuned_optimizers import OPTIMIZERS_MAX, named, trains
from gpujob_worker.inject.guards import is_fully_sharded
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.memory_limit.loss import LossMemoryWatch
from gpujob_worker.memory_limit.probes import OPTIMIZER_STATE_FACTOR, gradient_bytes
from gpujob_worker.run.session import Session
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.trial import measuring
from gpujob_worker.tune.tuner import FUSED, Tuner

# Calls of a root before which the limit is checked; a loop may make many in one step.
LOOKS_MAX = 64


class Startup:
    """Applies to a root, before its first call, what cannot wait for a measured step."""

    def __init__(self, session: Session, in_force: AppliedSettings) -> None:
        self._session = session
        self._in_force = in_force
        self._done = self._stepped = self._refined = False
        self._looks = 0

    def again(self) -> None:
        """Starts over: another model is trained from now on."""
        self._done = self._stepped = self._refined = False
        self._looks = 0

    def stepped(self) -> None:
        """The first step has ended."""
        self._stepped = True

    def wrapped(self, module: torch.nn.Module) -> None:
        """The script puts the module into DistributedDataParallel: what this process decided on a
        call before is taken back. Others may not have made one, and all decide together next.
        """
        parts = set(module.modules())
        called = [root for root in self._in_force.roots if root.module in parts]
        for root in called:
            self._in_force.drop(root)
        if called and not self._in_force.roots:
            self._in_force.renew()
            self.again()

    def before_call(self, root: Root) -> None:
        """Raises `MemoryLimitError` if the memory limit cannot be kept."""
        in_force = self._in_force
        again, self._done = self._done, True
        limited = self._session.environment.memory_limit_bytes is not None
        if again and not limited and root is not in_force.roots[0]:
            self._start_beside(root)
        if again and (not limited or self._looks >= LOOKS_MAX):
            return
        self._looks += 1
        # Until the injection has seen the first steps.
        root.asks = limited
        assert root.recorded is not None
        with self._session.meter.paused():
            if again and root is not in_force.roots[0]:
                self._beside(root, root.recorded)
                return
            with measuring("memory limit", in_force.explanation):
                if not again:
                    self._prepare(root, root.recorded)
                elif in_force.fit is not None:
                    self._fit_again(root, root.recorded)

    def before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies the known settings of the optimizer."""
        known, tuner = self._in_force.known, self._in_force.tuner
        if known is None or tuner is None:
            return
        tuner.adopt_scaling(optimizer)
        self._adopt_fused(optimizer, known, tuner, [])
        self._in_force.apply(optimizer)
        self._in_force.report()

    def before_first_step_beside(self, optimizer: torch.optim.Optimizer) -> None:
        """The same for another optimizer, within the steps in which it would have been measured."""
        in_force = self._in_force
        known, tuner = in_force.known, in_force.tuner
        # A script may keep optimizers of models that it has trained before.
        before = [one for one in in_force.facts.optimizers if trains(one, in_force.roots)]
        if known is None or tuner is None or in_force.rolled_back:
            return
        if len(before) >= min(OPTIMIZERS_MAX, known.optimizers_judged):
            return  # in this one the kernel was never compared
        self._adopt_fused(optimizer, known, tuner, before)
        in_force.apply()
        in_force.report()

    def _adopt_fused(
        self,
        optimizer: torch.optim.Optimizer,
        known: TunedSettings,
        tuner: Tuner,
        before: list[torch.optim.Optimizer],
    ) -> None:
        """`before`: the optimizers of this model that have stepped."""
        _, item = named([*before, optimizer], FUSED)[-1]
        fused = self._in_force.optimizers.fused
        if tuner.adopt_fused(optimizer, known, item):
            fused.append(optimizer)
        self._in_force.optimizers.fuse(fused)
        tuner.fuse(bool(fused), known.optimizers_judged)

    def _prepare(self, root: Root, recorded: RecordedCall) -> None:
        session, in_force = self._session, self._in_force
        use_device(session, root.device)
        limited = session.environment.memory_limit_bytes is not None
        together = in_force.agreement is not None
        if limited or together or session.state.known_tuned is not None:
            in_force.refuse_runs(trace_refusal(root, recorded, whole=False))
        if together and in_force.run_refusal is None and not is_fully_sharded(root.module):
            in_force.refuse_runs(communicates(root, recorded))
        if limited and in_force.run_refusal is not None:
            text = f"nothing was measured: {in_force.run_refusal}"
            in_force.explanation.skipped("memory limit", text)
        if session.state.known_tuned is not None:
            self._apply_known(root, recorded, session.state.known_tuned)
        elif limited and in_force.run_refusal is None:
            in_force.use(tuner_for(in_force))
            self._fit_limit(root, recorded)
            in_force.apply()
            session.meter.memory.reset_peak()

    def _apply_known(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Applies settings of an earlier run: checked for safety, not measured again."""
        session, in_force = self._session, self._in_force
        tuner = in_force.use(tuner_for(in_force))
        with whole_root(in_force, "known", recorded) as whole:
            if in_force.run_refusal is None:
                flop = step_flop(whole or root, recorded) if in_force.first_shape else None
                session.state.counted(flop)
                chunk = in_force.keeps_chunk
                tuner.adopt(root, recorded, tuned, keeps_chunk=chunk, whole=whole)
        in_force.settle_known()
        if in_force.agreement is not None:
            session.state.start_with(tuner.tuned())
        scale = tuner.applied.plan.loss_scale
        if scale is not None and session.state.known_scale is not None:
            scale.resume(session.state.known_scale)
        limited = (
            session.environment.memory_limit_bytes is not None and in_force.run_refusal is None
        )
        probed = "only memory is probed" if limited else "nothing was probed"
        text = f"settings of {in_force.source} are known; {probed}"
        in_force.explanation.note("tuning", text)
        if limited:
            self._fit_limit(root, recorded)
        in_force.apply()
        in_force.report()
        session.state.tuning_took(0.0)

    def _fit_limit(self, root: Root, recorded: RecordedCall) -> None:
        session, tuner = self._session, self._in_force.tuner
        limit, meter = session.environment.memory_limit_bytes, session.meter
        assert tuner is not None
        assert limit is not None
        fit = MemoryFit(meter.memory, self._in_force.explanation, tuner, limit)
        self._in_force.keep_limit_by(fit)
        fit.others = lambda: [other for other in self._in_force.fits if other is not fit]
        fit.fit(root, recorded)
        session.state.needs(fit.needed_bytes)
        fit.watch(root, LossMemoryWatch(meter.memory, meter.read_memory))

    def _fit_again(self, root: Root, recorded: RecordedCall) -> None:
        session, fit = self._session, self._in_force.fit
        assert fit is not None
        refines = self._stepped and not self._refined
        self._refined = self._refined or refines
        session.meter.read_memory()
        hold_to_limit(session)
        _look_again(fit, root, recorded, refines=refines)
        self._in_force.apply()
        session.state.needs(fit.needed_bytes)
        session.meter.memory.reset_peak()

    def _start_beside(self, root: Root) -> None:
        """Applies known settings to a root other than the first, before its first call. Where
        several processes decide together, all look at it before this call.
        """
        known, recorded = self._session.state.known_tuned, root.recorded
        together = self._in_force.agreement is not None
        if recorded is None or (known is None and not together):
            return
        if len(self._in_force.beside) >= SECONDARY_MAX:
            return
        found = self._in_force.find_beside(root)
        with self._session.meter.paused():
            with measuring("settings for speed", found.explanation):
                found.run_refusal = "looking at it failed"
                refusal = trace_refusal(root, recorded, whole=False)
                if together:
                    refusal = refusal or refusal_together(root, recorded)
                found.run_refusal = refusal
                if refusal is None:
                    self._take_over(found, recorded)
                else:
                    found.explanation.skipped("settings for speed", refusal)
            if known is not None:
                self._in_force.settle_known_beside(found)
        found.put()

    def _take_over(self, found: SecondaryModule, recorded: RecordedCall) -> None:
        """The call may be run."""
        known = self._session.state.known_tuned
        if known is not None:
            found.take_over(recorded, known, self._in_force.shared_scale)
            found.tuner.adopt_compiled(found.root, recorded, known, compares=True)

    def _beside(self, root: Root, recorded: RecordedCall) -> None:
        """Handles a root other than the first: split and recomputed by its own memory model."""
        session, in_force = self._session, self._in_force
        session.meter.read_memory()
        hold_to_limit(session)
        found = next((other for other in in_force.beside if other.root is root), None)
        try:
            if found is None:
                found = self._meet(root, recorded)
            elif found.fit is not None:
                refines, found.refined = self._stepped and not found.refined, self._stepped
                with measuring("memory limit", found.explanation):
                    _look_again(found.fit, root, recorded, refines=refines)
        finally:
            self._note_needed(root)
        found.put()
        session.meter.memory.reset_peak()

    def _meet(self, root: Root, recorded: RecordedCall) -> SecondaryModule:
        session, in_force = self._session, self._in_force
        limit = session.environment.memory_limit_bytes
        assert limit is not None
        found = in_force.find_beside(root)
        said = found.explanation
        reason = self._beside_refusal(root, recorded)
        if reason is not None:
            found.run_refusal = reason
            said.skipped("memory limit", f"nothing was measured: {reason}")
            return found
        self._take_over(found, recorded)
        found.fit = fit = MemoryFit(session.meter.memory, said, found.tuner, limit)
        fit.others = lambda: [other for other in in_force.fits if other is not fit]
        with measuring("memory limit", said):
            fit.fit(root, recorded, self._others_bytes(root))
        fit.watch(root, LossMemoryWatch(session.meter.memory, session.meter.read_memory))
        return found

    def _beside_refusal(self, root: Root, recorded: RecordedCall) -> str | None:
        if self._in_force.agreement is not None:
            return "several processes look at the first module only"
        return trace_refusal(root, recorded, whole=False)

    def _others_bytes(self, root: Root) -> float:
        """Gradients and optimizer state of roots that were called before, until a step
        has ended.
        """
        others = [other for other in self._in_force.roots if other is not root]
        taken = sum(gradient_bytes(other) for other in others)
        return 0.0 if self._stepped else float((1 + OPTIMIZER_STATE_FACTOR) * taken)

    def _note_needed(self, root: Root) -> None:
        """Notes the required limit, also for a root because of which the run ends."""
        found = next(other for other in self._in_force.beside if other.root is root)
        needed = found.fit.needed_bytes if found.fit is not None else None
        if needed is not None:
            self._session.state.needs(max(self._session.state.needed_bytes or 0, needed))


def _look_again(fit: MemoryFit, root: Root, recorded: RecordedCall, *, refines: bool) -> None:
    """Checks again: the memory of the first step is known now, or more is held than before the
    first call.
    """
    if refines:
        fit.refine(root, recorded)
    else:
        fit.look_again(root, recorded)
