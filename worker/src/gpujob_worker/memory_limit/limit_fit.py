"""Keeps a job within its memory limit without trying what might fail.

Before the first step a memory model is fitted to three small probes, with a generous assumption for
the loss. The first step is measured while it runs, and the choice is made again. After the baseline
the prediction is compared with real steps. If the limit cannot be kept, the job ends with a report
of the memory it needs.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpujob_api.quantities import format_memory
from gpujob_worker.device.memory import DeviceMemory
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.choose import MemoryChooser
from gpujob_worker.memory_limit.loss import LossMemoryWatch
from gpujob_worker.memory_limit.model import ALIKE_FRACTION, RESERVE_FRACTION
from gpujob_worker.memory_limit.probes import (
    OPTIMIZER_STATE_FACTOR,
    MemoryProbe,
    gradient_bytes,
    present_gradient_bytes,
)
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.tune.tuner import Tuner

ITEM = "memory limit"
# Settings that could have kept the limit, or were not enough.
_WAYS = ("batch split", "activation checkpointing")
# A peak this far above the limit is no measurement error.
OVERSTEP_FRACTION = 0.05
ROWS_MIN = 4


class MemoryFit:
    """Decides when to choose, what to report, and when the job cannot continue."""

    def __init__(
        self, memory: DeviceMemory, log: DecisionLog, tuner: Tuner, limit_bytes: int
    ) -> None:
        self._memory = memory
        self._log = log
        self._tuner = tuner
        self._limit = limit_bytes
        self._chooser: MemoryChooser | None = None
        self._watch: LossMemoryWatch | None = None
        self._known = self._refined = False
        # The most memory held before a call of the first steps, without gradients.
        self._seen_bytes = 0.0
        # The minimum limit for this job; None while unknown.
        self.needed_bytes: int | None = None
        # The fits of other modules in training, if any.
        self.others: Callable[[], Sequence[MemoryFit]] = lambda: ()
        # A finer split was chosen after real steps took more than was predicted.
        self.chose_finer = False

    def fit(self, root: Root, recorded: RecordedCall, beside_bytes: float = 0.0) -> None:
        """Makes the choice before the first step.

        `beside_bytes` is the memory that other modules will take in addition. Raises
        `MemoryLimitError` if nothing can keep the limit.
        """
        total = recorded.inputs.rows
        if total is None or total < ROWS_MIN:
            self._log.skipped(ITEM, "the call has no batch of four samples to measure")
            return
        self._memory.give_back_early(True)
        plain = MemoryProbe(root, recorded, self._memory).model()
        plain = replace(plain, beside_bytes=beside_bytes)
        self._chooser = MemoryChooser(self._memory, self._log, self._tuner, self._limit, plain)
        self._chooser.others_want_early = lambda: any(fit.wants_early for fit in self.others())
        self._known = self._chooser.keeps_present(root, recorded)
        if self._known:
            self._say_predicted(self._chooser)
        else:
            self._choose(self._chooser, root, recorded)

    def watch(self, root: Root, watch: LossMemoryWatch) -> None:
        """Passes the coming step's loss to `watch`, if there is a model to improve."""
        if self._chooser is not None:
            self._watch = watch
            root.show_outputs(watch.returned)

    def look_again(self, root: Root, recorded: RecordedCall) -> None:
        """Checks again before another call of the first steps, because memory held by then may
        leave less.

        Other modules' graphs, or the graph of a call before, may be held. Raises `MemoryLimitError`
        like `fit`.
        """
        chooser = self._chooser
        if chooser is None or chooser.offloads or self._tuner.recommends:
            return
        self._seen_bytes = max(self._seen_bytes, self._resident_bytes(root))
        resident = self._seen_bytes
        if not self._refined:
            resident += OPTIMIZER_STATE_FACTOR * gradient_bytes(root)
        if not chooser.holds_beside(resident) and recorded.inputs.rows == chooser.plain.rows:
            self._choose(chooser, root, recorded)

    def _resident_bytes(self, root: Root) -> float:
        self._memory.trim()
        return float(self._memory.current_bytes() - present_gradient_bytes(root))

    def refine(self, root: Root, recorded: RecordedCall) -> None:
        """Chooses again after the first step, with the memory of the loss and the resident memory
        between steps.

        Raises `MemoryLimitError` like `fit`.
        """
        root.show_outputs(None)
        chooser, watch, self._watch = self._chooser, self._watch, None
        if chooser is None or watch is None or chooser.offloads or self._tuner.recommends:
            return
        self._refined = True
        # A module that is called more than once in a step has to fit next to the most memory held
        # then.
        resident = max(self._seen_bytes, self._resident_bytes(root))
        gradients = present_gradient_bytes(root)
        chooser.know(watch.found or chooser.plain.loss, resident, gradients)
        if self._known and chooser.keeps_present(root, recorded):
            self._say_predicted(chooser)
        else:
            self._choose(chooser, root, recorded)

    def _choose(self, chooser: MemoryChooser, root: Root, recorded: RecordedCall) -> None:
        chooser.choose(root, recorded)
        self._say_predicted(chooser)
        if not chooser.offloads and self._overstepped(chooser.certain_bytes):
            self._fail(chooser.choice.rows.predicted_bytes, "predicted")

    def _say_predicted(self, chooser: MemoryChooser) -> None:
        known = "" if chooser.plain.loss.measured else ", the loss's part assumed"
        limit = format_memory(self._limit)
        self._log.note(ITEM, f"{chooser.predicted()}{known}; limit {limit}")

    def correct(
        self, root: Root, recorded: RecordedCall, observed_bytes: int, *, ends: bool = True
    ) -> bool:
        """Corrects the model after the baseline, in which real steps took `observed_bytes`.

        The prediction is raised by its error, and the way is chosen again. Returns False if no
        other way is left. If `ends`, that raises `MemoryLimitError`.
        """
        chooser = self._chooser
        if self._tuner.recommends:
            return True
        if chooser is None:
            if ends or observed_bytes <= self._limit:
                self.judge(observed_bytes)
            return observed_bytes <= self._limit
        if observed_bytes <= self._limit:
            self._log.note(ITEM, f"kept: {self._numbers(chooser, observed_bytes)}")
            return True
        if self._gives_back_early(observed_bytes):
            # Returning memory early may be enough, but a run far above its limit does not wait for
            # that.
            if self._overstepped(observed_bytes):
                self._choose_finer(chooser, root, recorded, observed_bytes)
            return True
        return self._choose_finer(chooser, root, recorded, observed_bytes) or self._end(
            observed_bytes, ends=ends
        )

    def _end(self, observed_bytes: int, *, ends: bool) -> bool:
        if ends:
            self.judge(observed_bytes)
        return False

    def _choose_finer(
        self, chooser: MemoryChooser, root: Root, recorded: RecordedCall, observed_bytes: int
    ) -> bool:
        """Returns whether another way takes less than the observed memory."""
        before = chooser.choice.rows
        short = max(0.0, observed_bytes - before.predicted_bytes)
        chooser.raise_by(short)
        chooser.choose(root, recorded)
        as_before = (before.predicted_bytes + short) * (1 - ALIKE_FRACTION)
        less = chooser.choice.rows.predicted_bytes < as_before
        if not less and not chooser.offloads:
            return False
        self.chose_finer = chooser.choice.fits
        numbers = self._numbers(chooser, observed_bytes)
        self._log.note(ITEM, f"{numbers}; {chooser.way()} from now on")
        return True

    def judge(self, observed_bytes: int, *, ends: bool = True) -> None:
        """Reports the memory of real steps, which nothing can reduce.

        Raises `MemoryLimitError` if `ends` and the memory is too far above the limit for a
        measurement error.
        """
        if observed_bytes <= self._limit:
            measured, limit = format_memory(observed_bytes), format_memory(self._limit)
            self._log.note(ITEM, f"kept: {measured} measured, limit {limit}")
            return
        if self._gives_back_early(observed_bytes):
            return
        if ends and self._overstepped(observed_bytes):
            self._fail(observed_bytes, "measured")
        else:
            self._log.skipped(ITEM, self._needs(observed_bytes, "measured"))

    def _gives_back_early(self, observed_bytes: int) -> bool:
        """Returns freed memory early from now on, and returns whether that is new. If so, the limit
        is checked again after some steps.
        """
        if not self._memory.give_back_early(True):
            return False
        measured, limit = format_memory(observed_bytes), format_memory(self._limit)
        self._log.note(
            ITEM,
            f"{measured} measured, limit {limit}; what is freed goes back at once from now on",
        )
        return True

    @property
    def wants_early(self) -> bool:
        """True if freed memory must be returned at once, which applies to the whole process."""
        return self._chooser is not None and self._chooser.wants_early

    @property
    def binds(self) -> bool:
        """Whether the limit forced a change from running the whole batch at once."""
        return self._chooser is not None and self._chooser.binds

    @property
    def not_asked(self) -> str:
        """Why the settings that save memory are not used, if the limit does not bind."""
        limit = format_memory(self._limit)
        if self._chooser is None:
            return f"nothing was measured that speaks for it (limit {limit})"
        return f"memory does not ask for it: {self._chooser.predicted()}, limit {limit}"

    def _numbers(self, chooser: MemoryChooser, observed_bytes: int) -> str:
        measured = f"{format_memory(observed_bytes)} measured"
        return f"{measured}, {chooser.predicted()}; limit {format_memory(self._limit)}"

    def _overstepped(self, taken_bytes: float) -> bool:
        return taken_bytes > self._limit * (1 + OVERSTEP_FRACTION)

    def _fail(self, taken_bytes: float, how: str) -> None:
        text = self._needs(taken_bytes, how)
        self._log.skipped(ITEM, text)
        assert self.needed_bytes is not None
        if not self._tuner.recommends:
            raise MemoryLimitError(text, self.needed_bytes)

    def _needs(self, taken_bytes: float, how: str) -> str:
        # Includes the reserve, so that a job with this limit keeps it.
        self.needed_bytes = needed = int(taken_bytes / (1 - RESERVE_FRACTION)) + 1
        text = f"cannot be kept: {format_memory(int(taken_bytes))} {how}"
        if self._chooser is not None:
            text += f" for {self._chooser.way()}"
        tried = filter(None, map(self._log.line, _WAYS))
        said = "".join(f"; {line}" for line in tried)
        return (
            f"{text}, limit {format_memory(self._limit)}. It needs a limit of "
            f"{needed} bytes ({format_memory(needed)}; gpu.memory), or a smaller batch{said}"
        )
