"""The tuning of a run, between two of its steps: memory first, then settings for speed."""

import time
from collections.abc import Sequence

import torch

from gpujob_api.settings import Toggle
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.control.tuned_module import TunedModule, names_of
from gpujob_worker.control.tuned_optimizers import OPTIMIZERS_MAX, Optimizer, named
from gpujob_worker.inject.fused_optimizer import COPIES_BYTES, fused_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.flop import forced_float32, step_flop
from gpujob_worker.tune.registry import SETTINGS, apply_settings
from gpujob_worker.tune.tuner import FUSED, Tuner

COMPILE_AFTER_SECONDS = 120.0
# A run that is known to last this long compiles at once, because compiling takes a small part of
# it.
LONG_RUN_SECONDS = 3600.0


class TuningRun:
    """Tries every setting once. Afterwards, the tuner has the choices, which are not
    applied yet.
    """

    def __init__(
        self, session: Session, model: TrainedModel, optimizer: torch.optim.Optimizer | None
    ) -> None:
        """`optimizer` is None for a run that only answers."""
        assert model.first.tuner is not None
        self._session = session
        self._model = model
        self._tuner: Tuner = model.first.tuner
        self._optimizer = optimizer
        self._log = session.log

    def without_root(self, reason: str) -> None:
        self._without_memory(reason)
        self._without_speed(reason)

    def memory_only(self, others: str, reason: str) -> None:
        """Decides about memory for several modules in training that are not measured for speed."""
        self.among_others(self._model.roots[0], others, reason)
        self._without_speed(reason)
        for root in self._model.roots:
            root.forget_call()

    def _without_speed(self, reason: str) -> None:
        for setting in SETTINGS:
            if setting.SAID_WITHOUT_ROOT and not setting.FOR_MEMORY:
                self._log.skipped(setting.ITEM, reason)
        self._fused_optimizers()

    def _without_memory(self, reason: str, *, judged: bool = False) -> None:
        """Logs why settings for memory are skipped. With `judged`, the check of the limit is
        already logged.
        """
        if self._optimizer is None:
            return
        keeps_limit = False
        for setting in SETTINGS:
            if not (setting.FOR_MEMORY and setting.SAID_WITHOUT_ROOT):
                continue
            # Settings that have kept a limit since the first step stay.
            if setting.chosen(self._tuner.applied):
                keeps_limit = True
            else:
                self._log.skipped(setting.ITEM, reason)
        if self._model.first.fit is not None and not (keeps_limit or judged):
            self._model.first.fit.judge(self._session.state.baseline_peak_bytes)

    def among_others(self, root: Root, others: str, reason: str) -> None:
        """Decides about the memory of several modules in training.

        Each has a memory model. The measured memory is their total.
        """
        fit, recorded = self._model.first.fit, root.recorded
        if fit is None or recorded is None:
            self._without_memory(reason)
            return
        name = type(root.module).__name__
        modelled = [other.root for other in self._model.further if other.fit is not None]
        text = f"is of {names_of([root, *modelled])}; what steps took is of all ({name}, {others})"
        self._log.note("memory model", text)
        self._correct_all(fit, root, recorded)
        self._without_memory(reason, judged=True)

    def _correct_all(self, fit: MemoryFit, root: Root, recorded: RecordedCall) -> None:
        """Makes as many modules as needed take less memory. If none can, the run may end."""
        observed, further = self._session.state.baseline_peak_bytes, self._model.further
        settled = fit.correct(root, recorded, observed, ends=not further)
        enough = settled and fit.chose_finer
        for module in further:
            if enough:
                continue
            settled = module.correct(observed) or settled
            enough = module.fit is not None and module.fit.chose_finer
        if further and not settled:
            fit.judge(observed)

    def run(self, root: Root, whole: Root | None = None) -> float | None:
        """Returns when compilation is due on the monotonic clock, or None if it is not.

        `whole` is the copy on which a module that is spread over processes is tried. Raises
        `MemoryLimitError` if the memory limit cannot be kept.
        """
        recorded, tried = root.recorded, whole or root
        assert recorded is not None
        root.stop_recording()
        self._session.state.computes_in_float32(forced_float32(tried))
        self._session.state.counted(step_flop(tried, recorded))
        self._memory(root, recorded)
        if whole is not None:
            return self._speed_of_copy(root, whole, recorded)
        return self._speed(root, recorded, ())

    def _speed_of_copy(self, root: Root, whole: Root, recorded: RecordedCall) -> float | None:
        """Tries settings for speed on a copy. Its gain is not reported, because its calls leave out
        the communication between processes.
        """
        try:
            self._tuner.expects_speed(whole, recorded)
            self._fused_optimizers()
            self._tuner.speed(whole, recorded)
            return self._compile(root, recorded)
        finally:
            apply_settings(whole, None, Applied())
            root.forget_call()

    def run_several(self, others: str, reason: str) -> float | None:
        """Tunes several modules in training: the first is measured, and the others take over what
        is close.

        Closeness is checked on their own calls. `reason` is why nothing else is done about memory.
        """
        model, roots = self._model, self._model.roots
        first, recorded = roots[0], roots[0].recorded
        if recorded is None:
            self.without_root(reason)
            return None
        self.among_others(first, others, reason)
        further = [model.choose_for(root) for root in roots[1:] if root.recorded is not None]
        flop = [step_flop(root, root.recorded) for root in roots if root.recorded is not None]
        times = [root.calls_as_large for root in roots if root.recorded is not None]
        known = [count * one for count, one in zip(times, flop, strict=True) if one is not None]
        self._session.state.computes_in_float32(all(map(forced_float32, roots)))
        self._session.state.counted(sum(known) if len(known) == len(roots) else None)
        return self._speed(first, recorded, further)

    def _speed(
        self, root: Root, recorded: RecordedCall, further: Sequence[TunedModule]
    ) -> float | None:
        apply_settings(root, None, self._tuner.applied)
        calls = [(module, module.root.recorded) for module in further]
        present = [(module, call) for module, call in calls if call is not None]
        try:
            # Measured on copies of parameters, so it depends on nothing and takes little time.
            self._tuner.expects_speed(root, recorded)
            self._fused_optimizers()
            self._tuner.speed(root, recorded)
            due = self._compile(root, recorded)
            together = self._model.consensus is not None
            scale = None if together else self._tuner.applied.plan.loss_scale
            chosen = self._tuner.tuned()
            for module, call in present:
                module.take_over(call, chosen, scale)
                if self._compiles is Toggle.ON:
                    module.choices.compile(module.root, call)
            parts = [(module.root, call, module.choices.applied) for module, call in present]
            fused = self._model.optimizers.fused
            gain = self._tuner.gain(root, recorded, fused, parts)
            self._session.state.gained(self._model.with_further(self._tuner.tuned()), gain)
            return due
        finally:
            self._model.first.put()
            root.forget_call()
            for module, _ in present:
                module.apply()
                module.root.forget_call()

    def _memory(self, root: Root, recorded: RecordedCall) -> None:
        if self._optimizer is None:
            return  # its settings make room for a backward pass
        fit = self._model.first.fit
        if fit is not None:
            fit.correct(root, recorded, self._session.state.baseline_peak_bytes)
        binds = fit is not None and fit.binds
        not_asked = fit.not_asked if fit is not None else "memory does not ask for it: no limit"
        asked = self._session.environment.settings.batch_per_step
        rows = self._tuner.applied.plan.rows_per_step
        if asked is not None and (rows is None or asked < rows):
            self._tuner.split(root, recorded, asked, "as asked for")
        elif rows is None and not binds:
            self._log.skipped("batch split", not_asked)
        self._activation(root, recorded, None if binds else not_asked)
        if not binds:
            self._log.skipped("offload", not_asked)

    def _activation(self, root: Root, recorded: RecordedCall, not_asked: str | None) -> None:
        """Decides about activation checkpointing. `not_asked` is why memory does not require it, or
        None.
        """
        wanted = self._session.environment.settings.activation_checkpointing
        if self._tuner.applied.activation_checkpointing:
            return
        if wanted is Toggle.ON:
            self._tuner.activation_checkpointing(root, recorded, "as asked for")
        elif wanted is Toggle.OFF:
            self._log.skipped("activation checkpointing", "asked not to")
        elif not_asked is not None:
            self._log.skipped("activation checkpointing", not_asked)

    def _fused_optimizers(self) -> None:
        """Decides about each optimizer for itself.

        Processes that decide together choose the kernel for all optimizers that can have it, or for
        none. The processes then step alike.
        """
        if self._optimizer is None:
            return
        others = [one for one in self._model.facts.optimizers if one is not self._optimizer]
        optimizers = [self._optimizer, *others]
        if len(optimizers) > OPTIMIZERS_MAX:
            why = f"{len(optimizers)} optimizers step; up to {OPTIMIZERS_MAX} are looked at"
            self._log.skipped(FUSED, why)
            return
        fused: list[Optimizer] = []
        for optimizer, item in named(optimizers, FUSED):
            if self._tuner.fused_optimizer(optimizer, self._free_bytes, item):
                fused.append(optimizer)
        if self._model.consensus is not None:
            fused = self._all_or_none(optimizers, fused)
        self._model.optimizers.fuse(fused)
        self._tuner.fuse(bool(fused), len(optimizers))

    def _all_or_none(self, optimizers: list[Optimizer], fused: list[Optimizer]) -> list[Optimizer]:
        if all(optimizer in fused or fused_refusal(optimizer) for optimizer in optimizers):
            return fused
        for item in self._log.applied_items(FUSED):
            self._log.skipped(item, "processes take it for all optimizers or for none")
        return []

    @property
    def _free_bytes(self) -> int:
        """The bytes that copies may take between two steps.

        That is what is left of the limit. Without a limit, it is what steps take anyway, so that
        the measured job does not grow.
        """
        limit = self._session.environment.memory_limit_bytes
        held = self._session.meter.memory.allocated_bytes()
        if limit is not None:
            return max(0, limit - held)
        return max(COPIES_BYTES, self._session.state.baseline_peak_bytes - held)

    @property
    def _is_long(self) -> bool:
        """True if the rest of the run is known to be long at the pace of its first steps."""
        state = self._session.state
        if state.steps_total is None or state.baseline is None:
            return False
        rest = max(0, state.steps_total - state.step)
        return rest * state.baseline.step_seconds >= LONG_RUN_SECONDS

    @property
    def _compiles(self) -> Toggle:
        return self._session.environment.settings.compile

    def _others_may_compile(self, root: Root, recorded: RecordedCall) -> bool:
        """Returns whether this process may compile. All that decide together have to be ready
        first.
        """
        consensus = self._model.consensus
        if consensus is None:
            return True
        refusal = self._tuner.compile_refusal(root, recorded)
        if refusal is not None:
            self._log.skipped("compile", refusal)
            return False
        consensus.ready_to_compile()
        return True

    def _compile(self, root: Root, recorded: RecordedCall) -> float | None:
        """Returns when compilation is due, or None if it is not tried later."""
        wanted = self._compiles
        if wanted is Toggle.AUTO and self._session.features.allows("compile"):
            if not self._others_may_compile(root, recorded):
                return None
            if self._is_long:
                return time.monotonic()
            what = "training has" if self._optimizer is not None else "calls have"
            why = f"tried once {what} lasted {COMPILE_AFTER_SECONDS:.0f} s"
            self._log.skipped("compile", why)
            return time.monotonic() + COMPILE_AFTER_SECONDS
        self._tuner.compile(root, recorded)
        return None
