"""Decides when worker processes start and stop producing the batches of the script's data loaders.

The user may request workers, or an earlier run may have found their number. Otherwise workers are
tried if the loop waits for data once the other settings are applied. Their number is the one at
which the step no longer waits. A trial begins and ends in the middle of a pass. It is kept only if
steps get shorter by the clock and wait less. If steps still wait, a second, larger number is tried.
"""

import weakref
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from gpujob_api.settings import OptimizeMode, Toggle
from gpujob_worker.inject.loader_refusal import loader_refusal, own_draws_refusal
from gpujob_worker.inject.loader_workers import (
    UNMEASURED_MAX,
    busy_cores,
    workers_that_fit,
    workers_wanted,
)
from gpujob_worker.inject.worker_batches import PREFETCH_FACTOR, LoaderFacts, WorkerBatches
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.loader_trial import LoaderTrial, StepTimes, TrialVerdict
from gpujob_worker.tune.pinned_memory import PinnedMemory

WAIT_PERCENT_NEEDED = 10.0
_ITEM = "data loading"
_ADVICE = "data format"
_OWN_WORKERS = "num_workers"
_LOADER = "_gpujob_loader"


class LoaderPolicy:
    """Decides once, and applies the decision to each pass over a loader from its second
    batch on.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._workers: int | None = None
        # One entry per loader, because a script may make a loader for each pass.
        self._facts: weakref.WeakKeyDictionary[Any, LoaderFacts] = weakref.WeakKeyDictionary()
        self._sources: weakref.WeakSet[WorkerBatches] = weakref.WeakSet()
        # Loaders whose persistent workers are gone, with the seed of those workers. The next pass
        # starts new workers from that seed.
        self._renewed: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        # Workers that draw random numbers can only be added at the start of a pass.
        self._next_workers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._trial: LoaderTrial | None = None
        self._latest: LoaderFacts | None = None
        self._generator: torch.Generator | None = None
        self._batch_bytes = 0
        self._pinned = PinnedMemory(session)
        self._judged = False  # The trial is over and its measurement is logged.
        self._stopped = False
        self._applied: Applied | None = None
        settings = session.environment.settings
        self._recommends = settings.mode is OptimizeMode.RECOMMEND
        self._allowed = session.features.allows("data_loader")
        if session.optimizes and not self._recommends and self._allowed:
            if settings.tuned is not None:
                self._workers = settings.tuned.data_loader_workers
            elif settings.data_loading is Toggle.ON:
                self._workers = min(UNMEASURED_MAX, workers_wanted())

    def stop(self) -> None:
        """Stops starting workers, for a process that the script forked: it may not be allowed to
        start other processes.
        """
        self._stopped = True
        self._pinned.stop()

    def before_pass(self, loader: Any) -> None:
        """Gives a loader with own workers more of them, once a trial has kept them and compared
        their batches.
        """
        facts = self._facts.get(loader)
        more = self._judged and self._workers is not None and not self._stopped
        more = more and loader.num_workers > 0
        if more and facts is not None and facts.compared and facts.refusal is None:
            loader.num_workers = max(loader.num_workers, self._workers or 0)
        asked = self._next_workers.pop(loader, None)
        if asked is not None and not self._stopped:
            loader.num_workers = asked
            if loader._iterator is not None:
                self._renew(loader, loader._iterator)
        if loader in self._renewed and loader._iterator is None:
            self._generator = loader.generator
            loader.generator = torch.Generator().manual_seed(self._renewed[loader])

    def _renew(self, loader: Any, iterator: Any) -> None:
        """Makes the next pass start new persistent workers."""
        loader._iterator = None
        self._renewed[loader] = int(iterator._base_seed)

    def begun(self, loader: Any, iterator: Any) -> None:
        """Called when a pass over the loader starts."""
        if loader in self._renewed and loader._iterator is iterator:
            # Without the renewal, the script's workers would keep their seed and not draw from its
            # generator.
            del self._renewed[loader]
            loader.generator = self._generator
        setattr(iterator, _LOADER, loader)

    def before_batch(self, iterator: Any) -> None:
        """Called when the script requests a batch."""
        self._look_at(iterator)
        self._session.meter.wait_starts()

    def _look_at(self, iterator: Any) -> None:
        if self._stopped or not self._workers or isinstance(iterator._next_data, WorkerBatches):
            return
        # Reading a single batch is not worth starting processes. The first batch has drawn the
        # order.
        if iterator._num_yielded < 1 or not (self._trial is None or self._trial.may_start):
            return
        loader = getattr(iterator, _LOADER, None)
        if loader is not None:
            with self._session.meter.paused():
                self._take_over(loader, iterator)

    def _take_over(self, loader: Any, iterator: Any) -> None:
        facts = self._facts.get(loader)
        if facts is None:
            facts = self._facts[loader] = LoaderFacts(refusal=loader_refusal(loader))
            if facts.refusal is not None and not self._is_given_more(loader, facts.refusal):
                self._session.log.skipped(_ITEM, facts.refusal)
        workers = self._workers or 0
        if facts.refusal is not None:
            self._end_trial_with(facts.refusal, iterator._num_workers)
            return
        if self._trial is None:
            workers = min(workers, workers_that_fit(self._batch_bytes, PREFETCH_FACTOR))
        if workers < 1:
            facts.refusal = "its batches do not fit into shared memory"
            self._session.log.skipped(_ITEM, facts.refusal)
        if iterator._num_workers >= workers:
            return
        source = WorkerBatches(iterator, loader, workers, facts, self._session.meter.paused)
        iterator._next_data = source
        if iterator._num_workers > 0 and loader.persistent_workers:
            self._renew(loader, iterator)
        self._sources.add(source)
        self._latest = facts
        if self._trial is not None:
            self._trial.starts(workers)
        if not self._judged:
            own = f", after {iterator._num_workers} of its own" if iterator._num_workers else ""
            text = f"{_named(workers)}{own}, new for each pass"
            self._session.log.applied(_ITEM, text)

    def _is_given_more(self, loader: Any, refusal: str) -> bool:
        """Returns whether the loader gets more workers although samples draw other random numbers
        then.

        Only an explicit request by the user permits that.
        """
        asked = self._session.environment.settings.data_loading is Toggle.ON
        if not asked or refusal != own_draws_refusal(loader):
            return False
        own, fit = loader.num_workers, workers_that_fit(self._batch_bytes, loader.prefetch_factor)
        workers = min(self._workers or 0, fit)
        if workers <= own:
            return False
        self._next_workers[loader] = workers
        text = (
            f"asked for, {_named(workers)} instead of {own} of its own, from the next pass on; what"
            " they draw at random is other numbers, of the same distribution"
        )
        self._session.log.applied(_ITEM, text)
        return True

    def _end_trial_with(self, refusal: str, own: int) -> None:
        """Ends the trial, unless the workers of another loader are on trial."""
        trial = self._trial
        if trial is not None and not trial.has_started:
            self._judged = True
            workers = self._workers or 0
            self._remove_workers(refusal)
            if own and trial.found_before is not None:
                self._advise_more(trial.found_before, own, workers)

    def _advise_more(self, now: StepTimes, own: int, workers: int) -> None:
        """Recommends more workers in the script, which draw other random numbers."""
        text = (
            f"{workers} in the script instead of {own}: waiting takes {now.wait_percent:.0f} % of a"
            " step. What workers draw at random is other numbers then, of the same distribution"
        )
        self._session.log.recommended(_OWN_WORKERS, text)

    def received(self, batch: Any) -> Any:
        """Returns the batch for the script."""
        unmeasured = self._trial is None and self._workers and not self._batch_bytes
        if unmeasured or (self._trial is not None and self._trial.measures_before):
            self._batch_bytes = max(self._batch_bytes, _bytes_of(batch))
        return self._pinned.received(batch, beside=self._trial is not None)

    def waited(self, iterator: Any, seconds: float) -> None:
        """Called after each batch; begins a trial and judges it once enough steps were timed."""
        self._session.meter.waited(seconds)
        if self._latest is not None and self._latest.refusal is not None:
            why, self._latest = self._latest.refusal, None
            self._remove_workers(why)
        trial = self._trial
        if trial is None:
            return
        before = trial.before()
        if before is not None:
            self._begin_trial(iterator, before)
        verdict = trial.verdict()
        if verdict is not None and not self._tries_more(trial, verdict):
            self._trial, self._judged = None, True
            self._judge(trial.best)

    def _judge(self, verdict: TrialVerdict) -> None:
        if verdict.shorter:
            self._resize(verdict.workers)
            one = "; one process loads, for what a batch draws varies" if self._varies else ""
            self._session.log.note(_ITEM, f"{verdict}{one}")
        else:
            self._remove_workers(f"no gain: {verdict}")
        self._advise(verdict.after, self._workers or 0)

    def _tries_more(self, trial: LoaderTrial, verdict: TrialVerdict) -> bool:
        """If steps still wait for the workers, tries as many as keep up according to the
        measurement.
        """
        waits = verdict.after.wait_percent
        if waits < WAIT_PERCENT_NEEDED or self._varies or not trial.may_try_more:
            return False
        workers = self._that_can_be(verdict.after.workers_needed(verdict.workers))
        if workers <= verdict.workers or busy_cores() is not None:
            return False
        with self._session.meter.paused():
            self._resize(workers)
        trial.starts(workers)
        text = f"waiting takes {waits:.0f} % with {_named(verdict.workers)}: {workers} on trial"
        self._session.log.note(_ITEM, text)
        return True

    @property
    def _varies(self) -> bool:
        """True if what a batch draws varies, so that only one process can load."""
        return self._latest is not None and self._latest.varies

    def _that_can_be(self, workers: int) -> int:
        fit = workers_that_fit(self._batch_bytes, PREFETCH_FACTOR)
        return min(workers, workers_wanted(), fit)

    def _resize(self, workers: int) -> None:
        if workers != self._workers:
            self._workers = workers
            for source in self._sources:
                source.resize(workers)
            self._settle(workers)

    def _begin_trial(self, iterator: Any, before: StepTimes) -> None:
        session, own = self._session, iterator._num_workers
        busy = busy_cores()
        workers = self._that_can_be(max(own + 1, before.workers_needed(own)))
        if before.wait_percent < WAIT_PERCENT_NEEDED:
            self._trial = None
            session.log.skipped(_ITEM, _too_little(before.wait_percent))
        elif busy is not None or workers <= own:
            self._trial = None
            session.log.skipped(_ITEM, busy or _no_more(own))
            self._advise(before, own)
        else:
            self._workers = workers
            self._settle(workers)
            text = f"waiting takes {before.wait_percent:.0f} %: {_named(workers)}, on trial"
            session.log.note(_ITEM, text)

    def _advise(self, now: StepTimes, workers: int) -> None:
        """Recommends a faster data format, only if no more processes can be added."""
        if now.wait_percent < WAIT_PERCENT_NEEDED:
            return
        needed, cores = now.workers_needed(workers), workers_wanted()
        if needed <= cores:
            return
        loading, samples = now.loading_seconds(workers), self._session.state.samples_per_step
        each = f", {1000 * loading / samples:.2f} ms a sample" if samples else ""
        text = (
            f"waiting takes {now.wait_percent:.0f} % of a step, {now.seconds:.4f} s; its batches"
            f" take {loading:.4f} s of a core{each}; {needed} processes would keep up and there are"
            f" cores for {cores}: samples that are stored decoded, or are decoded on the GPU"
            " (NVIDIA DALI), load faster"
        )
        self._session.log.recommended(_ADVICE, text)

    def _remove_workers(self, why: str) -> None:
        for source in self._sources:
            source.withdraw()
        self._sources.clear()
        self._workers = self._trial = None
        self._session.log.skipped(_ITEM, why)
        self._settle(None)

    def _settle(self, workers: int | None) -> None:
        """Sets the number of workers that this run reports and the next run begins with."""
        session = self._session
        if self._applied is not None:
            self._applied.loader_workers = workers
        if session.state.tuned is not None:
            session.settings_are(replace(session.state.tuned, data_loader_workers=workers))

    def decide(self, applied: Applied) -> None:
        """Called after the other settings are applied, because workers have to feed the steps as
        they are then.
        """
        session = self._session
        settings = session.environment.settings
        self._pinned.tuned()
        wait = session.state.baseline_wait_percent or 0.0
        if not self._allowed or settings.data_loading is Toggle.OFF:
            session.log.skipped(_ITEM, "switched off")
        elif self._workers is not None:
            applied.loader_workers = self._workers if self._workers > 0 else None
            if self._workers < 1:
                session.log.skipped(_ITEM, _no_more(0))
        elif self._recommends:
            self._recommend(wait)
        elif not self._judged:
            if wait < WAIT_PERCENT_NEEDED:
                session.log.skipped(_ITEM, _too_little(wait))
            self._applied = applied
            self._trial = LoaderTrial(session.meter)

    def _recommend(self, wait_percent: float) -> None:
        workers, busy = min(UNMEASURED_MAX, workers_wanted()), busy_cores()
        log = self._session.log
        if wait_percent < WAIT_PERCENT_NEEDED:
            log.skipped(_ITEM, _too_little(wait_percent))
        elif workers < 1 or busy is not None:
            log.skipped(_ITEM, busy or _no_more(0))
        else:
            text = f"{_named(workers)}: waiting takes {wait_percent:.0f} % of a step"
            log.recommended(_ITEM, text)


def _named(workers: int) -> str:
    return f"{workers} worker process{'es' if workers != 1 else ''}"


def _too_little(wait_percent: float) -> str:
    return f"{wait_percent:.1f} % of the step is spent waiting, below {WAIT_PERCENT_NEEDED:.0f} %"


def _no_more(own: int) -> str:
    beside = f" beside {own} of its own" if own else ""
    return f"no core to spare for worker processes{beside}"


def _bytes_of(batch: Any) -> int:
    leaves = pytree.tree_leaves(batch)
    return sum(leaf.nbytes for leaf in leaves if isinstance(leaf, torch.Tensor))
