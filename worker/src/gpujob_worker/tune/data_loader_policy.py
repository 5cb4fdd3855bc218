"""Decides when the script's data loader gets worker processes, and when it loses them again.

Workers are requested, known from an earlier run, or tried if the loop waits for data. A trial is
kept only if steps get shorter by the clock and wait less; otherwise the current pass ends without
workers.
"""

import weakref
from dataclasses import replace
from typing import Any

from gpujob_api.settings import OptimizeMode, Toggle
from gpujob_worker.inject.data_loader import (
    add_workers,
    go_on_here,
    loader_refusal,
    remove_workers,
)
from gpujob_worker.inject.loader_workers import loaded, workers_wanted
from gpujob_worker.run.meter import Meter, Timed
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.pinned_memory import PinnedMemory

WAIT_PERCENT_NEEDED = 10.0
# Steps with workers that are not counted: the workers start, and prefetched batches are available
# at once.
SETTLE_STEPS = 5
TRIAL_STEPS = 20
# Steps without workers that a trial is compared with; a pass that begins earlier stays unchanged.
BEFORE_STEPS = 10
_ITEM = "data loading"


class LoaderPolicy:
    """Decides once; applies the decision before the next pass over each training loader."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workers: int | None = None
        # By identity, for as long as the script keeps them: a loader may be created for each epoch.
        self._seen: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._given: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self._passes: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trial: _Trial | None = None
        self._pinned = PinnedMemory(session)
        self._judged = False  # and what was measured is said
        self._stopped = False
        self._applied: Applied | None = None
        settings = session.environment.settings
        self._recommends = settings.mode is OptimizeMode.RECOMMEND
        if session.optimizes and not self._recommends:
            if settings.tuned is not None:
                self._workers = settings.tuned.data_loader_workers
            elif settings.data_loading is Toggle.ON:
                self._workers = workers_wanted()

    def stop(self) -> None:
        """For a process that the script forked, which may not be allowed to start other
        processes.
        """
        self._stopped = True
        self._pinned.stop()

    def before_pass(self, loader: Any) -> None:
        session = self._session
        if self._stopped or self._recommends or not session.optimizes:
            return
        if not session.features.allows("data_loader"):
            return
        if self._workers is None or id(loader) in self._seen:
            return
        if self._trial is not None and not self._trial.may_start():
            return
        self._seen[id(loader)] = loader
        if self._workers < 1:
            session.explanation.skipped(_ITEM, "no core to spare for worker processes")
            return
        reason = loader_refusal(loader)
        if reason is not None:
            session.explanation.skipped(_ITEM, reason)
            return
        add_workers(loader, self._workers)
        self._given[id(loader)] = loader
        if self._trial is not None:
            self._trial.starts()
        if not self._judged:
            text = f"{self._workers} worker processes, new ones for each pass"
            session.explanation.applied(_ITEM, text)

    def begun(self, loader: Any, iterator: Any) -> None:
        """A pass over the loader starts; its workers, if added here, may have to end before the
        pass does.
        """
        if id(loader) in self._given:
            self._passes.add(iterator)

    def received(self, batch: Any) -> Any:
        """The batch that the script gets."""
        return self._pinned.received(batch, beside=self._trial is not None)

    def waited(self, seconds: float) -> None:
        """Called after each batch: judges a trial once it was observed for long enough."""
        meter = self._session.meter
        meter.waited(seconds)
        trial = self._trial
        verdict = trial.verdict() if trial is not None else None
        if verdict is None:
            return
        self._trial = None
        self._judged = True
        if verdict.shorter:
            self._session.explanation.note(_ITEM, str(verdict))
        else:
            self._remove_workers(str(verdict))

    def _remove_workers(self, why: str) -> None:
        session = self._session
        for loader in self._given.values():
            remove_workers(loader)
        for iterator in self._passes:
            go_on_here(iterator)
        self._given.clear()
        self._passes.clear()
        self._workers = None
        session.explanation.skipped(_ITEM, f"no gain: {why}")
        if self._applied is not None:
            self._applied.loader_workers = None
        if session.state.tuned is not None:
            session.settings_are(replace(session.state.tuned, data_loader_workers=None))

    def decide(self, applied: Applied) -> None:
        """After the baseline: adds workers from the next pass on if the loop waits for data."""
        session = self._session
        settings = session.environment.settings
        self._pinned.tuned()
        wait = session.state.baseline_wait_percent
        if not session.features.allows("data_loader") or settings.data_loading is Toggle.OFF:
            session.explanation.skipped(_ITEM, "switched off")
        elif self._workers is not None:
            applied.loader_workers = self._workers if self._workers > 0 else None
        elif wait is None or wait < WAIT_PERCENT_NEEDED:
            share = 0.0 if wait is None else wait
            session.explanation.skipped(
                _ITEM,
                f"{share:.1f} % of the step is spent waiting, below {WAIT_PERCENT_NEEDED:.0f}",
            )
        else:
            self._try(applied, wait)

    def _try(self, applied: Applied, wait_percent: float) -> None:
        session, workers, busy = self._session, workers_wanted(), loaded()
        if workers < 1 or busy is not None:
            session.explanation.skipped(_ITEM, busy or "no core to spare for worker processes")
            return
        if self._recommends:
            text = f"{workers} worker processes: waiting takes {wait_percent:.0f} % of a step"
            session.explanation.recommended(_ITEM, text)
            return
        self._workers = applied.loader_workers = workers
        self._applied = applied
        self._trial = _Trial(session.meter)
        text = f"waiting takes {wait_percent:.0f} %: {workers} workers from the next pass, on trial"
        session.explanation.note(_ITEM, text)


class _Verdict:
    """Seconds of a step, and of waiting in it, without and with workers."""

    def __init__(self, before: tuple[float, float], after: tuple[float, float]) -> None:
        self._before, self._after = before, after

    @property
    def shorter(self) -> bool:
        return all(now < then for now, then in zip(self._after, self._before, strict=True))

    def __str__(self) -> str:
        (before, waited), (after, waits) = self._before, self._after
        return (
            f"steps take {after:.4f} s with workers, {waits:.4f} s of it waiting, "
            f"after {before:.4f} s and {waited:.4f} s"
        )


class _Trial:
    """Compares the steps after tuning with those after the workers were added."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._tuned_at = meter.timed
        self._before = (0.0, 0.0)
        self._settled: Timed | None = None
        self._started: Timed | None = None

    def may_start(self) -> bool:
        return self._started is not None or self._steps_since(self._tuned_at) >= BEFORE_STEPS

    def starts(self) -> None:
        if self._started is None:
            self._started = self._meter.timed
            self._before = self._meter.undisturbed(self._tuned_at)

    def verdict(self) -> _Verdict | None:
        """None until enough steps were observed."""
        if self._started is None:
            return None
        if self._settled is None:
            if self._steps_since(self._started) >= SETTLE_STEPS:
                self._settled = self._meter.timed
            return None
        if self._steps_since(self._settled) < TRIAL_STEPS:
            return None
        return _Verdict(self._before, self._meter.undisturbed(self._settled))

    def _steps_since(self, then: Timed) -> int:
        return self._meter.timed.since(then).steps
