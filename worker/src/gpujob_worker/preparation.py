"""What must hold from a model's first step on: a memory limit, and settings that are known before.

They are those of an earlier run, or of the model that was trained before (`later_models`).

Both are seen to before the first call of the first root runs; the limit once more before its second
call, when it is known what a step took. Everything else waits for the tuning.
"""

import torch

from gpujob_api.settings import TunedSettings
from gpujob_worker.device import hold_to_limit, use_device
from gpujob_worker.in_force import InForce
from gpujob_worker.inject.root import RecordedCall, Root
from gpujob_worker.session import Session
from gpujob_worker.tune.first_look import trace_refusal
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.loss_memory import LossWatch
from gpujob_worker.tune.memory_fit import MemoryFit
from gpujob_worker.tune.together import communicates, tuner_for
from gpujob_worker.tune.trial import measuring


class Preparation:
    """Applies to a root, before its first call, what cannot wait for a measured step."""

    def __init__(self, session: Session, in_force: InForce) -> None:
        self._session = session
        self._in_force = in_force
        self._done = False

    def again(self) -> None:
        """Another model is trained from now on."""
        self._done = False

    def before_call(self, root: Root) -> None:
        """Raises `MemoryLimitError` where the memory limit cannot be kept."""
        again, self._done = self._done, True
        if again and not (self._in_force.fit is not None and root is self._in_force.roots[0]):
            return
        assert root.recorded is not None
        with self._session.meter.paused(), measuring("memory limit", self._in_force.explanation):
            if again:
                self._fit_again(root, root.recorded)
            else:
                self._prepare(root, root.recorded)

    def before_first_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The known settings that are the optimizer's."""
        known, tuner = self._in_force.known, self._in_force.tuner
        if known is None or tuner is None:
            return
        tuner.adopt_scaling(optimizer)
        tuner.adopt_fused(optimizer, known)
        self._in_force.put(optimizer)
        self._in_force.report()

    def _prepare(self, root: Root, recorded: RecordedCall) -> None:
        session, in_force = self._session, self._in_force
        use_device(session, root.device.type)
        limited = session.environment.memory_limit_bytes is not None
        together = in_force.agreement is not None
        if limited or together or session.known_tuned is not None:
            in_force.run_refusal = trace_refusal(root, recorded, whole=False)
        if together and in_force.run_refusal is None:
            in_force.run_refusal = communicates(root, recorded)
        if limited and in_force.run_refusal is not None:
            text = f"nothing was measured: {in_force.run_refusal}"
            in_force.explanation.refused("memory limit", text)
        if session.known_tuned is not None:
            self._apply_known(root, recorded, session.known_tuned)
        elif limited and in_force.run_refusal is None:
            in_force.tuner = tuner_for(in_force)
            self._fit_limit(root, recorded)
            in_force.put()
            session.meter.memory.reset_peak()

    def _apply_known(self, root: Root, recorded: RecordedCall, tuned: TunedSettings) -> None:
        """Settings of an earlier run: checked for safety, not measured again."""
        session, in_force = self._session, self._in_force
        in_force.tuner = tuner = tuner_for(in_force)
        if in_force.run_refusal is None:
            session.step_flop = step_flop(root, recorded) if in_force.first_shape else None
            tuner.adopt(root, recorded, tuned, keeps_chunk=in_force.keeps_chunk)
        in_force.settle()
        if in_force.agreement is not None:
            session.known_tuned = tuner.applied.tuned()
        scale = tuner.applied.plan.loss_scale
        if scale is not None and session.known_scale is not None:
            scale.resume(session.known_scale)
        limited = (
            session.environment.memory_limit_bytes is not None and in_force.run_refusal is None
        )
        probed = "only memory is probed" if limited else "nothing was probed"
        text = f"settings of {in_force.source} are known; {probed}"
        in_force.explanation.note("tuning", text)
        if limited:
            self._fit_limit(root, recorded)
        in_force.put()
        in_force.report()
        session.tuning_seconds = session.tuning_seconds or 0.0

    def _fit_limit(self, root: Root, recorded: RecordedCall) -> None:
        session, tuner = self._session, self._in_force.tuner
        limit, meter = session.environment.memory_limit_bytes, session.meter
        assert tuner is not None
        assert limit is not None
        self._in_force.fit = fit = MemoryFit(meter.memory, self._in_force.explanation, tuner, limit)
        fit.fit(root, recorded)
        session.needed_bytes = fit.needed_bytes
        fit.watch(root, LossWatch(meter.memory, meter.read_memory))

    def _fit_again(self, root: Root, recorded: RecordedCall) -> None:
        """What the first step took is known now."""
        session, fit = self._session, self._in_force.fit
        assert fit is not None
        session.meter.read_memory()
        hold_to_limit(session)
        fit.refine(root, recorded)
        self._in_force.put()
        session.needed_bytes = fit.needed_bytes
        session.meter.memory.reset_peak()
