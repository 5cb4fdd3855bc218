"""When the script's data loader gets worker processes: asked for, known, or measured to starve."""

from typing import Any

from gpujob_api.settings import OptimizeMode, Toggle
from gpujob_worker.inject.loaders import (
    add_workers,
    loader_refusal,
    pin_memory,
    redraw_seed,
)
from gpujob_worker.inject.workers import workers_wanted
from gpujob_worker.session import Session
from gpujob_worker.tune.applied import Applied

WAIT_PERCENT_NEEDED = 10.0
_ITEM = "data loading"


class LoaderPolicy:
    """Decides once; carries the decision out before the next pass over each training loader."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workers: int | None = None
        self._seen: set[int] = set()
        self._given: set[int] = set()
        settings = session.environment.settings
        if session.optimizes and settings.mode is not OptimizeMode.RECOMMEND:
            if settings.tuned is not None:
                self._workers = settings.tuned.data_loader_workers
            elif settings.data_loading is Toggle.ON:
                self._workers = workers_wanted()

    def before_pass(self, loader: Any) -> None:
        session = self._session
        if not session.optimizes or not session.switches.data_loader:
            return
        pin_memory(loader)
        if id(loader) in self._given:
            redraw_seed(loader)
        if self._workers is None or id(loader) in self._seen:
            return
        self._seen.add(id(loader))
        if self._workers < 1:
            session.explanation.refused(_ITEM, "no core to spare for worker processes")
            return
        reason = loader_refusal(loader)
        if reason is not None:
            session.explanation.refused(_ITEM, reason)
            return
        add_workers(loader, self._workers)
        self._given.add(id(loader))
        session.explanation.applied(_ITEM, f"{self._workers} worker processes, kept between passes")

    def decide(self, applied: Applied) -> None:
        """After the baseline: workers from the next pass on when the loop starves for data."""
        session = self._session
        settings = session.environment.settings
        wait = session.baseline_wait_percent
        if not session.switches.data_loader or settings.data_loading is Toggle.OFF:
            session.explanation.refused(_ITEM, "switched off")
        elif self._workers is not None:
            applied.loader_workers = self._workers if self._workers > 0 else None
        elif wait is None or wait < WAIT_PERCENT_NEEDED:
            share = 0.0 if wait is None else wait
            session.explanation.refused(
                _ITEM,
                f"{share:.1f} % of the step is spent waiting, below {WAIT_PERCENT_NEEDED:.0f}",
            )
        else:
            self._workers = applied.loader_workers = max(0, workers_wanted()) or None
            text = f"waiting takes {wait:.0f} %: {self._workers or 'no'} workers from the next pass"
            session.explanation.note(_ITEM, text)
