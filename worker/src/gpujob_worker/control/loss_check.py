"""Checks every few hundred steps whether the applied settings change the loss.

The reference is the loss in the script's own arithmetic. A look uses a real call's batch. Before
the call, a part of the batch runs forward as written and with the settings, without a graph and
without dropout. The script's own backward then gives the gradient of the loss by each output. The
sum of the products with the differences is the change of the loss, to first order.

In every other look the call itself is made as written, so that the gradient is taken at both ends
of the difference. For a convex loss, one sum is at least the increase and the other at least the
decrease. Settings are rolled back if three looks of three show a change in one direction and beyond
chance.
"""

import statistics
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from gpujob_worker.control.loss_look import Look
from gpujob_worker.control.output_sample import difference, samples_within
from gpujob_worker.control.rollback_guard import CONFIRM_STEPS
from gpujob_worker.control.sharded_tuning import (
    gathered_root,
    lack_of_memory,
    moved,
    sharded_root,
)
from gpujob_worker.control.trained_model import TrainedModel
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.guards import batch_statistics, probe_refusal, without_dropout
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.unsharded import nothing_gathered
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.side_effects import RandomStates, no_trace
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.session import Session
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import few_rows, short

FIRST_STEPS = 20
BETWEEN_STEPS = 200
# Maximum part of the time since the run began.
COST_MAX = 0.005
# Relative to the loss. Rounding alone changes it by at most 0.3 % in either direction.
CHANGE_MAX = 0.02
# A change this large also counts if a few samples make up all of it.
LARGE_CHANGE = 0.2
# Changes within this many standard deviations are frequent by chance.
CHANCE = 3.0
LOSSES_KEPT = 16
LOOKS_NEEDED = 3
# Maximum memory that a look keeps until backward.
KEPT_BYTES_MAX = 64 * 2**20
ROWS_PART = 4
# Seconds for all processes to gather. They come from the same step, so one that is later than this
# is not waited for.
GATHER_SECONDS = 20.0
ITEM = "loss check"


@dataclass(slots=True)
class _Looks:
    """The looks at one module so far."""

    changes: list[float] = field(default_factory=list[float])
    sizes: deque[float] = field(default_factory=lambda: deque[float](maxlen=LOSSES_KEPT))
    # The call of the next look is made as written.
    as_written: bool = False
    refused: bool = False
    # A part of the batch shows nothing.
    whole_only: bool = False


class LossCheck:
    """Looks at the modules in turn while settings that change digits are applied."""

    def __init__(
        self,
        session: Session,
        model: TrainedModel,
        roll_back: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._model = model
        self._roll_back = roll_back
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._longest = 0.0
        self._count = 0
        # Number of looks at a sharded module that were planned, and the seconds of the last
        # gathering.
        self._planned = 0
        self._gathering = 0.0
        self.again()

    def again(self) -> None:
        """Starts over for another model or for other settings."""
        self._due = FIRST_STEPS
        self._look: Look | None = None
        self._looks: weakref.WeakKeyDictionary[Root, _Looks] = weakref.WeakKeyDictionary()
        self._loss: torch.Tensor | None = None
        # The module of the current or next look, its copy if it is sharded, and the module whose
        # turn is next.
        self._root: Root | None = None
        self._whole: Root | None = None
        self._turn = 0

    def saw_loss(self, loss: torch.Tensor) -> None:
        """Called when the script starts a backward pass from the loss."""
        if self._look is not None:
            self._loss = loss

    def step(self, since: int) -> None:
        """Called after each step. `since` counts the steps after the settings were applied."""
        look = self._look
        if look is not None and not look.ends_with_step():
            return
        self._look = None
        if look is not None and self._root is not None:
            self._judge(self._root, look, since)
        self._root = root = self._next()
        if root is None:
            self._whole = None
        if root is not None and sharded_root(self._model) is root:
            self._step_sharded(root, since)
        elif root is not None and self._looks_now(root, since):
            root.check_next_call(self._begin)

    def _looks_now(self, root: Root, since: int) -> bool:
        if since < self._due or not self._affordable():
            return False
        refusal = self._refusal(root)
        if refusal is not None:
            self._skip(root, refusal)
        return refusal is None

    def _step_sharded(self, root: Root, since: int) -> None:
        """The first process decides when to look. All processes then gather the module, and the
        first one looks.
        """
        consensus = self._model.consensus
        assert consensus is not None
        if since % CONFIRM_STEPS:
            return
        if consensus.look_due(self._planned, since):
            self._planned += 1
            fits = lack_of_memory(root) is None
            if consensus.agree("look", yes=fits, seconds=GATHER_SECONDS):
                self._gather(root, keeps=consensus.leads)
            else:
                self._skip(root, "not all processes gather the module for it")
        elif consensus.leads and not self._of(root).refused and self._looks_now(root, since):
            consensus.plan_look(self._planned, since)

    def _gather(self, root: Root, *, keeps: bool) -> None:
        with self._session.meter.paused():
            start = self._now(root)
            whole = gathered_root(root)
            self._gathering = self._now(root) - start
        if keeps:
            self._whole = whole
            root.check_next_call(self._begin)

    def _of(self, root: Root) -> _Looks:
        return self._looks.setdefault(root, _Looks())

    def _next(self) -> Root | None:
        """Returns the next root among those whose digits the settings change. A suspected root
        comes first.
        """
        if self._model.rolled_back:
            return None
        changed = [root for root in self._model.roots if self._may_change(root)]
        sharded = sharded_root(self._model)
        if sharded is not None:
            # All processes take part in the first process's looks, whatever their own refusals are.
            return sharded if sharded.plan.arithmetic() != RootPlan() else None
        suspected = [root for root in changed if self._of(root).changes]
        return (suspected or [changed[self._turn % len(changed)]])[0] if changed else None

    def _may_change(self, root: Root) -> bool:
        return root.plan.arithmetic() != RootPlan() and not self._of(root).refused

    def _refusal(self, root: Root) -> str | None:
        """Returns why the module must not be looked at. Hooks may have been added since the first
        look.
        """
        consensus = self._model.consensus
        if consensus is not None and not consensus.leads:
            return "the first process looks"
        return self._model.first.refusal or probe_refusal(root.module)

    def _affordable(self) -> bool:
        """Returns whether another look of the longest kind stays within the allowed part of the
        run.

        The first look is expected to take two steps.
        """
        expected = self._longest or 2 * self._session.meter.timed.per_step()[0]
        return self._spent + expected <= COST_MAX * (self._clock() - self._began)

    def _begin(self, inputs: CallInputs) -> tuple[bool, Callable[[Any], None]] | None:
        """Called before a real call of the root."""
        root = self._root
        if root is None or self._model.rolled_back or not self._may_change(root):
            return None
        as_written = self._of(root).as_written
        try:
            with self._session.meter.paused():
                start = self._now(root)
                with self._tried(root) as tried:
                    self._look = self._differences(root, tried, inputs)
                took = self._now(root) - start + self._gathering
        except Exception as error:
            self._skip(root, f"a look failed: {short(error)}")
            return None
        baseline = self._session.state.baseline
        took += baseline.step_seconds if as_written and baseline is not None else 0.0
        self._spent += took
        self._longest = max(self._longest, took)
        return (as_written, self._watch) if self._look is not None else None

    @contextmanager
    def _tried(self, root: Root) -> Generator[Root]:
        """Yields the root itself, or the root of its copy, which ends with this look."""
        whole, self._whole = self._whole, None
        if whole is None:
            yield root
            return
        with nothing_gathered(root.module):
            yield whole

    def _watch(self, output: Any) -> None:
        """Called after the call."""
        try:
            if self._look is not None:
                self._look.watch(output, lambda: self._loss)
        except Exception as error:
            assert self._root is not None
            self._skip(self._root, f"a look failed: {short(error)}")

    def _differences(self, root: Root, tried: Root, inputs: CallInputs) -> Look | None:
        """Returns a look at the call, or None. `tried` is the root or a root of its copy."""
        call = RecordedCall(inputs.detached(), whole_only=not inputs.divisible)
        whole_only = call.whole_only or self._of(root).whole_only or batch_statistics(root.module)
        total = None if whole_only else inputs.rows
        if total is None:
            return self._compared(root, tried, call, None, None)
        most = root.plan.rows_per_step or total
        rows = max(1, min(most, -(-total // ROWS_PART)))
        look = self._compared(root, tried, few_rows(call, rows), rows, total)
        if look is None or any(sample.rows is not None for sample in look.samples):
            return look
        # A module that returns only its loss shows nothing on a part of the batch.
        return self._compared(root, tried, call, None, None)

    def _compared(
        self, root: Root, tried: Root, call: RecordedCall, rows: int | None, total: int | None
    ) -> Look | None:
        """Compares the first `rows` of the batch's `total` rows, or the whole batch if both are
        None.
        """
        plan = moved(root.plan.arithmetic(), root.module, tried.module)
        with no_trace(tried.module), without_dropout():
            before = RandomStates()
            probe = RootProbe(tried, call)
            outputs = probe.outputs(plan)
            if before.drawn:
                self._skip(root, "forward draws random numbers, which differ by type")
                return None
            samples = samples_within(
                outputs, KEPT_BYTES_MAX, rows=rows, total=total, turn=self._count
            )
            ours = [sample.of(output) for sample, output in zip(samples, outputs, strict=True)]
            # Only one of the two whole outputs is in memory at a time.
            del outputs
            written = probe.outputs(RootPlan())
        both = zip(samples, ours, written, strict=True)
        return Look(
            samples, [difference(*each) for each in both], rows / total if rows and total else 1.0
        )

    def _judge(self, root: Root, look: Look, since: int) -> None:
        look.forget_hooks()
        self._due = since + BETWEEN_STEPS
        loss, self._loss = look.loss, None
        looks = self._of(root)
        if look.part < 1.0 and not look.seen and look.failure is None:
            # Autograd finds no way from the loss of compiled code to its logits. A part of the
            # batch would show its own loss only, so the next look uses the whole.
            looks.whole_only, self._due = True, since
            return
        if loss is None or not look.seen:
            self._skip(root, look.failure or "no backward from a single loss was seen")
            return
        with self._session.meter.paused():
            looks.sizes.append(abs(float(loss)))
            # A loss that passes through zero is measured by the losses near it.
            change, chance = look.found(statistics.median(looks.sizes))
        self._count += 1
        self._note(root, since, change)
        counts = abs(change) > CHANGE_MAX and abs(change) > CHANCE * chance
        if counts or abs(change) > LARGE_CHANGE:
            self._suspect(looks, change, since)
            return
        looks.changes.clear()
        looks.as_written = not looks.as_written
        self._turn += not looks.as_written

    def _suspect(self, looks: _Looks, change: float, since: int) -> None:
        """Looks again at once, on other batches, until enough looks agree."""
        self._due = since
        if any((change > 0) != (before > 0) for before in looks.changes):
            looks.changes.clear()
        looks.changes.append(change)
        if len(looks.changes) < LOOKS_NEEDED:
            return
        typical = statistics.median(looks.changes)
        looks.changes.clear()
        text = f"in {LOOKS_NEEDED} looks of {LOOKS_NEEDED} it changes the loss by "
        text += f"{100 * typical:.2g} %, {100 * CHANGE_MAX:.0f} % are allowed"
        self._roll_back(text)

    def _note(self, root: Root, since: int, change: float) -> None:
        whole = max(self._clock() - self._began, 1e-9)
        text = (
            f"the loss differs by {100 * change:.2g} % from that of the script's own arithmetic, "
            f"{since} steps after tuning; looks so far: {self._count}, "
            f"{100 * self._spent / whole:.2f} % of the run's time"
        )
        self._log(root).note(ITEM, text, aloud=False)

    def _skip(self, root: Root, why: str) -> None:
        self._of(root).refused, self._whole = True, None
        self._log(root).skipped(ITEM, why, aloud=False)

    def _log(self, root: Root) -> DecisionLog:
        further = (module for module in self._model.modules[1:] if module.root is root)
        module = next(further, None)
        return module.log if module is not None else self._session.log

    def _now(self, root: Root) -> float:
        """Returns the time after queued work is done, so that it does not count as the look's."""
        if root.device.type == "cuda":
            torch.cuda.synchronize(root.device)
        return self._clock()
