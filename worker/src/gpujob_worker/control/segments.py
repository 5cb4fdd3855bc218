"""Looks once whether the allocator's segments are in pieces; then the next process expands them.

They cannot be had in a process that uses the GPU already. What is found is reported with the other
settings; the next attempt begins with it (`device.segments`), and looks again.
"""

import os

from gpujob_api.settings import OptimizeMode
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.device.memory import CudaMemory
from gpujob_worker.device.segments import Unused, segments_in_force, segments_refusal
from gpujob_worker.run.session import Session
from gpujob_worker.tune.registry import setting_called

# After the settings were applied: as many steps as show a script's sizes.
AFTER_STEPS = 50


class SegmentsCheck:
    """Called after each step; reads counters of the allocator, in one step."""

    def __init__(self, session: Session, model: TrainedModel) -> None:
        self._session = session
        self._model = model
        self._setting = setting_called("expandable_segments")

    def step(self, since: int) -> None:
        """`since` counts the steps after the settings were applied."""
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
