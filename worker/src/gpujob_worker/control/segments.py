"""Checks once whether the allocator's memory is fragmented. The next process then uses expandable
segments.

A process that already uses the GPU cannot switch to them. The finding is reported with the other
settings. The next attempt begins with it (`device.segments`) and checks again.
"""

import os

from gpujob_api.settings import OptimizeMode
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.device.memory import CudaMemory
from gpujob_worker.device.segments import Unused, segments_in_force, segments_refusal
from gpujob_worker.run.session import Session
from gpujob_worker.tune.registry import setting_called

# Steps after the settings were applied, enough to show a script's sizes.
AFTER_STEPS = 50


class SegmentsCheck:
    """Called after each step. Reads counters of the allocator in one step only."""

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._setting = setting_called("expandable_segments")

    def step(self, since: int) -> None:
        """Called after each step. `since` counts the steps after the settings were applied."""
        memory = self._session.meter.memory
        if since != AFTER_STEPS or not isinstance(memory, CudaMemory):
            return
        self._session.meter.read_memory()
        self._judge(self._unused(memory))

    def _unused(self, memory: CudaMemory) -> Unused:
        window, beside = self._session.meter.window, memory.context_bytes
        allocated = max(
            window.forward_backward_bytes, window.optimizer_bytes, memory.allocated_peak_bytes()
        )
        return Unused(memory.current_bytes() - beside, allocated - beside)

    def _judge(self, unused: Unused) -> None:
        said, item = self._session.log, self._setting.ITEM
        if segments_in_force(os.environ):
            if unused.is_large:
                said.skipped(item, f"from the next start on: with them {unused}")
            self._want(not unused.is_large)
            return
        reason = self._refusal()
        if reason is None and not unused.is_large:
            reason = str(unused)
        if reason is not None:
            said.skipped(item, reason)
        elif self._session.environment.settings.mode is OptimizeMode.RECOMMEND:
            said.recommended(item, str(unused))
        else:
            said.note(item, f"from the next start on: {unused}")
            self._want(True)

    def _refusal(self) -> str | None:
        if not self._session.features.allows(self._setting.NAME):
            return "switched off"
        return segments_refusal(os.environ)

    def _want(self, wanted: bool) -> None:
        tuner = self._model.first.tuner
        if tuner is not None and tuner.applied.expandable_segments != wanted:
            tuner.applied.expandable_segments = wanted
            self._model.report()
