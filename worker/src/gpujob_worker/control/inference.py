"""Recognises a script that only answers, and counts the calls of its model as steps.

Such a script calls a module without gradients or in evaluation mode, and has no optimizer. Once it
makes an optimizer or starts a backward pass, it trains, and its evaluations are no steps.
"""

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import IterableDataset

from gpujob_api.settings import Task
from gpujob_worker.control.own_work import OwnWork
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.answering import AnsweringRoot
from gpujob_worker.inject.discovery import AnswerDiscovery
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.step_clock import StepClock
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.safety_net import SafetyNet
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import hold_to_card

# A script that calls its model once or twice may only determine a size before it trains.
CALLS_TO_RECOGNISE = 3
# Calls after which all modules of the model are met.
WATCHED_STEPS = 2
ROOTS_MAX = 16
# Calls in a pass before anything is expected.
CALLS_MIN = 3
# Batches that a loop may have requested ahead of its calls.
AHEAD_MAX = 2


class ExpectedCalls:
    """How many calls of its model a script makes, from the length of the loader that it iterates.

    Counts the batches of the present pass. A loop that makes one call for each batch makes as many
    calls as its loader has batches.
    """

    def __init__(self) -> None:
        self._passes = self._batches = self._calls_before = 0
        self._length: int | None = None

    def pass_begins(self, loader: Any, calls: int) -> None:
        """Notes a pass over a loader after this number of calls."""
        self._passes += 1
        self._batches, self._calls_before = 0, calls
        self._length = _length(loader)

    def batch_received(self) -> None:
        self._batches += 1

    def total(self, calls: int, *, resumed: bool) -> int | None:
        """Returns the number of calls at the end of the pass, after this number of calls.

        Returns None if it is not known: calls and batches do not alternate, or the pass began
        before the script was resumed in it. Later passes are unknown until they begin.
        """
        made = calls - self._calls_before
        alternate = made >= CALLS_MIN and 0 <= self._batches - made <= AHEAD_MAX
        if self._length is None or not alternate or (resumed and self._passes == 1):
            return None
        return self._calls_before + self._length


def _length(loader: Any) -> int | None:
    """Returns the number of batches. That of a stream is only its author's estimate."""
    if isinstance(loader.dataset, IterableDataset):
        return None
    try:
        return len(loader)
    except Exception:  # a sampler of the script may have no length
        return None


class Inference:
    """Watches calls from the import of torch on, until the script trains."""

    def __init__(
        self,
        session: Session,
        model: TrainedModel,
        net: SafetyNet,
        own_work: OwnWork,
        *,
        call_failed: Callable[[Exception], None],
        stepped: Callable[[], None],
        trained: Callable[[], None],
        adopt: Callable[[Root, RecordedCall], None],
    ) -> None:
        """`stepped` is called after each call that counts as a step. `trained` is called when the
        script turns out to train after all. `adopt` applies known settings.
        """
        self._session = session
        self._model = model
        self._guard = net.guard
        self._own_work = own_work
        self._call_failed = call_failed
        self._stepped = stepped
        self._trained = trained
        self._adopt = adopt
        self._task = session.environment.settings.task
        self._clock = StepClock[AnsweringRoot]()
        self._roots: list[AnsweringRoot] = []
        self._discovery = self._new_discovery()
        # Calls since the discovery began.
        self._watched = 0
        self._active = False
        self._expected = ExpectedCalls()

    @property
    def stated(self) -> bool:
        """Whether the user stated that the script only answers."""
        return self._task is Task.INFERENCE

    @property
    def recognised(self) -> bool:
        return self._session.state.task is Task.INFERENCE

    @property
    def calls(self) -> int:
        """Calls that were seen before the script was recognised."""
        return max((root.answered for root in self._roots), default=0)

    def start(self) -> None:
        # Daemons are workers of a loader or a pool, which belong to a library.
        other = self._task in (Task.TRAINING, Task.SERVING)
        if not other and not multiprocessing.current_process().daemon:
            self._active = True
            self._discovery.start()

    def batch_received(self) -> None:
        """Called when the script gets a batch of a loader."""
        self._expected.batch_received()

    def pass_begins(self, loader: Any) -> None:
        """Called when a pass over a loader begins. The loop may call other modules than before."""
        if self._active:
            calls = self._session.state.step if self.recognised else self.calls
            self._expected.pass_begins(loader, calls)
        if self._active and not self._discovery.active and len(self._roots) < ROOTS_MAX:
            self._discovery.forget()
            self._discovery = self._new_discovery()
            self._watched = 0
            self._discovery.start()

    def compiles(self) -> None:
        """Called when code that the script compiled is about to be compiled. The watch would become
        a part of it.
        """
        self._discovery.finish()

    def trains(self) -> None:
        """Called when the script makes an optimizer, steps it, or starts a backward pass."""
        if not self._active or self.stated or self._own_work.under_way:
            return
        recognised = self.recognised
        self.stop()
        if recognised:
            self._session.state.trains_after_all()
            self._trained()
            self._session.log.note("task", "it trains; calls of a model are no steps from now on")

    def stop(self) -> None:
        """Returns to the script's own calls."""
        self._active = False
        self._discovery.finish()
        known = self._model.roots
        for root in self._roots:
            if root in known:
                self._model.drop(root)
            else:
                root.remove()
        self.forget()

    def forget(self) -> None:
        """Drops all references to the script's objects."""
        self._discovery.finish()
        self._discovery.forget()
        self._roots.clear()

    def _new_discovery(self) -> AnswerDiscovery:
        return AnswerDiscovery(self._guard(self._on_root), self._roots)

    def _on_root(self, module: torch.nn.Module) -> AnsweringRoot | None:
        """Called when the script calls a module for the first time, from outside all others."""
        if self._own_work.under_way or not self._active or len(self._roots) >= ROOTS_MAX:
            return None

        def nested() -> bool:
            return any(other.inside for other in self._roots)

        guard = self._guard
        before, after, known = guard(self._before), guard(self._after), guard(self._adopt_known)
        root = AnsweringRoot(module, nested, before, after, known)
        self._roots.append(root)
        if self.recognised and self._watched < WATCHED_STEPS and not self._model.steps:
            self._meet(root)
        root.install(self._guard(self._call_failed))
        root.let_go()
        return root

    def _before(self, root: AnsweringRoot) -> None:
        calls = self._session.calls
        if not self._active or self._own_work.under_way or calls.returns:
            return
        if not self.recognised:
            calls.before_call()
        # A resumed run goes on in the middle, with the settings of the run before.
        known = self.stated or self._session.state.resumed_from_step is not None
        if known and not self.recognised:
            self._recognise(root, 0)
        if self.recognised:
            self._session.meter.call_starts()

    def _adopt_known(self, root: Root) -> None:
        """Applies the settings of an earlier run, before the call that was just recorded."""
        meter = self._session.meter
        assert root.recorded is not None
        with self._own_work.doing(), meter.paused(), torch.inference_mode(False):
            self._adopt(root, root.recorded)
        meter.call_starts()

    def _after(self, root: AnsweringRoot, samples: int | None, output: Any) -> None:
        if not self._active or self._own_work.under_way or self._session.calls.returns:
            return
        if not self.recognised:
            if root.answered < CALLS_TO_RECOGNISE:
                return
            if self._session.is_beside_training:
                self.stop()
                return
            self._recognise(root, root.answered - 1)
        if not self._clock.ticks(root):
            return
        session = self._session
        session.meter.call_ends(samples)
        session.meter.step_done()
        resumed = session.state.resumed_from_step is not None
        total = self._expected.total(session.state.step, resumed=resumed)
        session.state.expect_calls(total)
        hold_to_card(session)
        self._watched += 1
        if self._watched >= WATCHED_STEPS:
            self._discovery.finish()
        self._stepped()
        session.calls.answered(output)

    def _recognise(self, root: AnsweringRoot, calls_before: int) -> None:
        session = self._session
        session.start()
        session.state.answers(calls_before)
        for met in (root, *(other for other in self._roots if other is not root)):
            self._meet(met)
        if not session.stop.listens and session.listens_to_stops:
            session.listen_for_stop()

    def _meet(self, root: AnsweringRoot) -> None:
        self._model.meet(root)
        if self._session.state.known_tuned is not None and self._session.optimizes:
            root.ask_before_next_call()
