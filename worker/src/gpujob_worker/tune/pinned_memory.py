"""Puts batches into pinned host memory, from which a GPU copies while it computes. Kept if
measurably faster.

Batches are pinned as the script receives them, so pinning can start and stop with any batch. A
batch that cannot be pinned is passed through unchanged.
"""

from enum import Enum, auto
from typing import Any

from torch.utils.data._utils.pin_memory import pin_memory as pinned

from gpujob_api.settings import OptimizeMode, Toggle
from gpujob_worker.inject.data_loader import pin_refusal
from gpujob_worker.run.meter import Timed
from gpujob_worker.run.session import Session

BEFORE_STEPS = 10
# Steps that are not counted, because pinned memory is allocated for the first batches.
SETTLE_STEPS = 5
TRIAL_STEPS = 20
SHORTER_NEEDED = 1.02
_ITEM = "pinned memory"


class _Phase(Enum):
    BEFORE_TUNING = auto()
    MEASURING_WITHOUT = auto()
    SETTLING = auto()
    MEASURING_WITH = auto()
    KEPT = auto()
    OVER = auto()


_PINS = frozenset((_Phase.SETTLING, _Phase.MEASURING_WITH, _Phase.KEPT))
_STEPS = {
    _Phase.MEASURING_WITHOUT: BEFORE_STEPS,
    _Phase.SETTLING: SETTLE_STEPS,
    _Phase.MEASURING_WITH: TRIAL_STEPS,
}


class PinnedMemory:
    """One trial in a run, only if settings are applied and data loading is not off."""

    def __init__(self, session: Session) -> None:
        self._session = session
        settings = session.environment.settings
        applies = session.optimizes and settings.mode is not OptimizeMode.RECOMMEND
        wanted = settings.data_loading is not Toggle.OFF and session.features.allows("data_loader")
        self._phase = _Phase.BEFORE_TUNING if applies and wanted else _Phase.OVER
        self._began = Timed()
        self._without = 0.0

    def stop(self) -> None:
        """Passes batches through unchanged from now on."""
        self._phase = _Phase.OVER

    def tuned(self) -> None:
        """Called once no other setting changes the steps any more. Nothing is pinned without a
        GPU.
        """
        if self._phase is _Phase.BEFORE_TUNING:
            on_gpu = self._session.meter.events is not None
            self._enter(_Phase.MEASURING_WITHOUT if on_gpu else _Phase.OVER)

    def received(self, batch: Any, *, beside: bool) -> Any:
        """Returns the batch for the script. With `beside`, another data loading setting is on
        trial.
        """
        if self._phase in (_Phase.BEFORE_TUNING, _Phase.OVER):
            return batch
        if beside:
            self._enter(_Phase.MEASURING_WITHOUT)
            return batch
        reason = pin_refusal(batch)
        if reason is not None:
            self._skip(reason)
            return batch
        self._go_on()
        if self._phase not in _PINS:
            return batch
        try:
            return pinned(batch)
        except Exception as error:
            self._skip(f"failed: {type(error).__name__}: {error}"[:160])
            return batch

    def _go_on(self) -> None:
        done = self._session.meter.timed.since(self._began)
        if self._phase not in _STEPS or done.steps < _STEPS[self._phase]:
            return
        seconds, _ = self._session.meter.undisturbed(self._began)
        if self._phase is _Phase.MEASURING_WITHOUT:
            self._without = seconds
            self._enter(_Phase.SETTLING)
        elif self._phase is _Phase.SETTLING:
            self._enter(_Phase.MEASURING_WITH)
        else:
            self._judge(seconds)

    def _judge(self, seconds: float) -> None:
        numbers = f"steps take {seconds:.4f} s with it after {self._without:.4f} s"
        if seconds * SHORTER_NEEDED > self._without:
            self._skip(f"no gain: {numbers}")
            return
        self._session.log.applied(_ITEM, numbers)
        self._enter(_Phase.KEPT)

    def _skip(self, why: str) -> None:
        self._session.log.skipped(_ITEM, why)
        self._enter(_Phase.OVER)

    def _enter(self, phase: _Phase) -> None:
        self._phase, self._began = phase, self._session.meter.timed
