"""Looks every few hundred steps whether the settings in force still leave the loss what it would be
in the script's own arithmetic.

A look takes a real call's batch: before the call, a part of the batch runs forward as written and
with the settings, without a graph and without dropout. Backward of the script itself then gives the
gradient of the loss by each output. The sum of the products with the differences is how much the
settings change the loss, to first order. In every other look the call itself is made as written, so
that the gradient is taken at both ends of the difference: of a convex loss the one sum is at least
the increase, the other at least the decrease. What changes the loss in three looks of three, in one
direction and beyond chance, is rolled back.
"""

import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gpujob_worker.control.applied_settings import AppliedSettings
from gpujob_worker.inject.call_inputs import CallInputs, tensor_leaves
from gpujob_worker.inject.guards import batch_statistics, probe_refusal, without_dropout
from gpujob_worker.inject.wrapped_module import RecordedCall, Root, RootPlan
from gpujob_worker.probe.side_effects import RandomStates, no_trace
from gpujob_worker.run.session import Session
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import few_rows, short

FIRST_STEPS = 20
BETWEEN_STEPS = 200
# Of the time since the run began.
COST_MAX = 0.005
# Relative to the loss. Rounding alone changes it by 0.3 % and less, in either direction.
CHANGE_MAX = 0.02
# A change this large counts also where a few samples make all of it.
LARGE_CHANGE = 0.2
# What chance does often enough, in its standard deviations.
CHANCE = 3.0
LOSSES_KEPT = 16
LOOKS_NEEDED = 3
# What a look keeps until backward.
KEPT_BYTES_MAX = 64 * 2**20
ROWS_PART = 4
ITEM = "loss check"


@dataclass(slots=True)
class _Look:
    """One call, from before its forward to the end of its step."""

    differences: list[torch.Tensor]
    # Samples that were compared; None: all.
    rows: int | None
    # They are this part of the batch.
    part: float
    # What each sample adds to the change of the loss.
    changes: torch.Tensor | None = None
    loss: torch.Tensor | None = None
    failure: str | None = None
    handles: list[Any] = field(default_factory=list[Any])

    def watch(self, output: Any, loss_now: Callable[[], torch.Tensor | None]) -> None:
        """Adds what each output's difference does to the loss, while backward runs."""
        for leaf, difference in zip(tensor_leaves(output), self.differences, strict=False):
            if leaf.requires_grad and leaf.dim() == difference.dim():
                self.handles.append(leaf.register_hook(self._hook(difference, loss_now)))

    def _hook(
        self, difference: torch.Tensor, loss_now: Callable[[], torch.Tensor | None]
    ) -> Callable[[torch.Tensor], None]:
        def add(gradient: torch.Tensor) -> None:
            try:
                with torch.no_grad():
                    self._add(gradient.detach(), difference)
            except Exception as error:
                self.failure = short(error)
            self.loss = loss_now()

        return add

    def _add(self, gradient: torch.Tensor, difference: torch.Tensor) -> None:
        few = gradient if self.rows is None else gradient.narrow(0, 0, self.rows)
        products = few.double() * difference
        each = products.sum().reshape(1) if self.rows is None else products.flatten(1).sum(1)
        self.changes = each if self.changes is None else self.changes + each

    def found(self, typical_loss: float) -> tuple[float, float]:
        """The change of the loss, and what chance alone makes of it; both relative to the loss."""
        assert self.changes is not None
        assert self.loss is not None
        rows = self.changes.numel()
        chance = float(self.changes.std()) * math.sqrt(rows) if rows > 1 else 0.0
        size = self.part * max(abs(float(self.loss)), typical_loss)
        return _relative(float(self.changes.sum()), size), _relative(chance, size)

    def forget_hooks(self) -> None:
        while self.handles:
            self.handles.pop().remove()


class LossCheck:
    """Looks at the first root while settings that change digits are in force."""

    def __init__(
        self,
        session: Session,
        in_force: AppliedSettings,
        roll_back: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._in_force = in_force
        self._roll_back = roll_back
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._longest = 0.0
        self._count = 0
        self.again()

    def again(self) -> None:
        """Starts over: another model trains, or other settings are in force."""
        self._due = FIRST_STEPS
        self._look: _Look | None = None
        self._changes: list[float] = []
        self._sizes: deque[float] = deque(maxlen=LOSSES_KEPT)
        self._loss: torch.Tensor | None = None
        self._as_written = self._refused = False

    def saw_loss(self, loss: torch.Tensor) -> None:
        """The script starts a backward pass from it."""
        if self._look is not None:
            self._loss = loss

    def step(self, since: int) -> None:
        """`since` counts the steps after the settings were applied."""
        look, self._look = self._look, None
        if look is not None:
            self._judge(look, since)
        root = self._root()
        if root is None or self._refused:
            return
        if since < self._due or not self._affordable():
            return
        refusal = self._refusal(root)
        if refusal is not None:
            self._skip(refusal)
            return
        root.check = self._begin

    def _root(self) -> Root | None:
        """The root of whose digits something was changed."""
        in_force = self._in_force
        root = in_force.roots[0] if in_force.roots else None
        changed = root is not None and root.plan.arithmetic() != RootPlan()
        return root if changed and not in_force.rolled_back else None

    def _refusal(self, root: Root) -> str | None:
        """Hooks may have come since the first look at the module."""
        agreement = self._in_force.agreement
        if agreement is not None and not agreement.leads:
            return "the first process looks"
        return self._in_force.run_refusal or probe_refusal(root.module)

    def _affordable(self) -> bool:
        """One more look of the longest kind stays within the part of the run that looks may take.

        The first may take two steps.
        """
        expected = self._longest or 2 * self._session.meter.timed.per_step()[0]
        return self._spent + expected <= COST_MAX * (self._clock() - self._began)

    def _begin(self, inputs: CallInputs) -> tuple[bool, Callable[[Any], None]] | None:
        """Before a real call of the root."""
        root = self._root()
        if root is None:
            return None
        try:
            with self._session.meter.paused():
                start = self._now(root)
                self._look = self._differences(root, inputs)
                took = self._now(root) - start + self._step_as_written
        except Exception as error:
            self._skip(f"a look failed: {short(error)}")
            return None
        self._spent += took
        self._longest = max(self._longest, took)
        return (self._as_written, self._watch) if self._look is not None else None

    @property
    def _step_as_written(self) -> float:
        """Seconds that a step takes as written, if the one that is looked at is."""
        baseline = self._session.state.baseline
        return baseline.step_seconds if self._as_written and baseline is not None else 0.0

    def _watch(self, output: Any) -> None:
        """After the call."""
        try:
            if self._look is not None:
                self._look.watch(output, lambda: self._loss)
        except Exception as error:
            self._skip(f"a look failed: {short(error)}")

    def _differences(self, root: Root, inputs: CallInputs) -> _Look | None:
        call = RecordedCall(inputs.detached(), whole_only=not inputs.divisible)
        rows = None if call.whole_only or batch_statistics(root.module) else inputs.rows
        if rows is not None:
            most = root.plan.rows_per_step or rows
            call = few_rows(call, max(1, min(most, -(-rows // ROWS_PART))))
        taken = call.inputs.rows if rows is not None else None
        plan = root.plan.arithmetic()
        with no_trace(root.module), without_dropout():
            before = RandomStates()
            probe = RootProbe(root, call)
            ours = probe.outputs(plan)
            if before.drawn:
                self._skip("forward draws random numbers, which differ by type")
                return None
            written = probe.outputs(RootPlan())
        kept = sum(8 * output.numel() for output in ours)
        if kept > KEPT_BYTES_MAX:
            self._skip(f"outputs of {taken or 'all'} samples take more than {KEPT_BYTES_MAX} bytes")
            return None
        differences = [_difference(one, other) for one, other in zip(ours, written, strict=True)]
        part = taken / rows if taken is not None and rows else 1.0
        return _Look(differences, taken, part)

    def _judge(self, look: _Look, since: int) -> None:
        look.forget_hooks()
        self._due = since + BETWEEN_STEPS
        loss, self._loss = look.loss, None
        if loss is None or look.changes is None:
            self._skip(look.failure or "no backward from a single loss was seen")
            return
        with self._session.meter.paused():
            self._sizes.append(abs(float(loss)))
            # A loss that passes through zero has the size of the losses near it.
            change, chance = look.found(statistics.median(self._sizes))
        self._count += 1
        self._note(since, change)
        counts = abs(change) > CHANGE_MAX and abs(change) > CHANCE * chance
        if counts or abs(change) > LARGE_CHANGE:
            self._suspect(change, since)
        else:
            self._changes.clear()
            self._as_written = not self._as_written

    def _suspect(self, change: float, since: int) -> None:
        """Asked again at once, of other batches."""
        self._due = since
        if any((change > 0) != (before > 0) for before in self._changes):
            self._changes.clear()
        self._changes.append(change)
        if len(self._changes) < LOOKS_NEEDED:
            return
        typical = statistics.median(self._changes)
        self._changes.clear()
        text = f"in {LOOKS_NEEDED} looks of {LOOKS_NEEDED} it changes the loss by "
        text += f"{100 * typical:.2g} %, {100 * CHANGE_MAX:.0f} % are allowed"
        self._roll_back(text)

    def _note(self, since: int, change: float) -> None:
        whole = max(self._clock() - self._began, 1e-9)
        text = (
            f"the loss differs by {100 * change:.2g} % from that of the script's own arithmetic, "
            f"{since} steps after tuning; looks so far: {self._count}, "
            f"{100 * self._spent / whole:.2f} % of the run's time"
        )
        self._session.explanation.note(ITEM, text, aloud=False)

    def _skip(self, why: str) -> None:
        self._refused = True
        self._session.explanation.skipped(ITEM, why, aloud=False)

    def _now(self, root: Root) -> float:
        """Work that was queued before is not the look's."""
        if root.device.type == "cuda":
            torch.cuda.synchronize(root.device)
        return self._clock()


def _difference(ours: torch.Tensor, written: torch.Tensor) -> torch.Tensor:
    if not ours.is_floating_point() or ours.shape != written.shape:
        return torch.zeros_like(ours, dtype=torch.float64)
    return ours.double() - written.double()


def _relative(change: float, loss: float) -> float:
    """Infinite where it is not finite, or where there was no loss to change."""
    if not math.isfinite(change):
        return math.inf
    return change / abs(loss) if loss else math.copysign(math.inf, change) if change else 0.0
