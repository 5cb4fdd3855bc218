"""Chooses how a step is made within a memory limit: whole, split, checkpointed or offloaded."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpujob_api.quantities import format_memory
from gpujob_worker.device.memory import DeviceMemory
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.memory_limit.model import (
    ALIKE_FRACTION,
    RESERVE_FRACTION,
    LossBytes,
    MemoryModel,
    Rows,
    least_rows,
    rows_within,
)
from gpujob_worker.memory_limit.probes import OPTIMIZER_STATE_FACTOR, MemoryProbe
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.tune.tuner import Tuner

# A heap that keeps freed blocks often takes this much more than the memory in use.
HEAP_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Choice:
    """A way to make the step, its predicted memory, and whether it keeps the limit."""

    rows: Rows
    checkpointing: bool
    fits: bool


class MemoryChooser:
    """The memory models of one root's step, and the choice based on them."""

    def __init__(
        self,
        memory: DeviceMemory,
        log: DecisionLog,
        tuner: Tuner,
        limit_bytes: int,
        plain: MemoryModel,
    ) -> None:
        self._memory = memory
        self._log = log
        self._tuner = tuner
        self._limit = limit_bytes
        self.plain = plain
        self.offloads = False
        # Whether freed memory must be returned at once, for this root or for another one.
        self.wants_early = False
        self.others_want_early: Callable[[], bool] = lambda: False
        self._checkpointed: MemoryModel | None = None
        whole = Rows(plain.rows, True, plain.predict(plain.rows))
        self.choice = Choice(whole, False, False)

    def know(self, loss: LossBytes, resident_bytes: float, late_gradient_bytes: float) -> None:
        """Sets the memory measured in the first step."""
        self._change(
            loss=loss,
            resident_bytes=resident_bytes,
            late_gradient_bytes=late_gradient_bytes,
            beside_bytes=0.0,
        )

    def holds_beside(self, resident_bytes: float) -> bool:
        """Returns whether the choice fits with this much resident memory, which is the minimum from
        now on.
        """
        if resident_bytes > self.plain.resident_bytes:
            self._change(resident_bytes=resident_bytes)
            rows = self.choice.rows
            predicted = self._model.predict(rows.rows, keeps_chunk=rows.keeps_chunk)
            fits = predicted <= self._limit * (1 - RESERVE_FRACTION)
            rows = replace(rows, predicted_bytes=predicted)
            self.choice = replace(self.choice, rows=rows, fits=fits)
        return self.choice.fits

    def raise_by(self, more_bytes: float) -> None:
        """Raises the prediction by the memory that real steps took above it."""
        self._change(resident_bytes=self.plain.resident_bytes + more_bytes)

    def _change(self, **values: Any) -> None:
        self.plain = replace(self.plain, **values)
        if self._checkpointed is not None:
            self._checkpointed = replace(self._checkpointed, **values)

    @property
    def binds(self) -> bool:
        """True if the limit forced a change from running the whole batch at once."""
        return not (self.choice.fits and self._is_whole())

    @property
    def _model(self) -> MemoryModel:
        model = self._checkpointed if self._tuner.applied.activation_checkpointing else self.plain
        assert model is not None
        return model

    def keeps_present(self, root: Root, recorded: RecordedCall) -> bool:
        """Returns whether the settings of an earlier run, if any, keep the limit of this
        run too.
        """
        plan, checkpoints = self._tuner.applied.plan, self._tuner.applied.activation_checkpointing
        if plan.rows_per_step is None and not checkpoints:
            return False
        if checkpoints:
            self._checkpointed = self._checkpointed or self._measured_checkpointed(root, recorded)
        at_once, keeps = plan.rows_per_step or self.plain.rows, plan.keeps_chunk
        predicted = self._model.predict(at_once, keeps_chunk=keeps)
        rows = Rows(at_once, keeps, predicted)
        self.choice = Choice(rows, checkpoints, predicted <= self._limit * (1 - RESERVE_FRACTION))
        return self.choice.fits

    def choose(self, root: Root, recorded: RecordedCall) -> None:
        """Chooses the first of these that fits: unchanged, split, checkpointed, both.

        If none fits, chooses the one with the least memory.
        """
        self._tuner.whole(root)
        self.choice = (
            self._try(root, recorded, self.plain)
            or self._try_checkpointed(root, recorded)
            or self._least(root, recorded)
        )
        if self.certain_bytes > self._limit:
            self.offloads = self._tuner.offload(root, recorded, self._why(self.plain))
        near = self.choice.rows.predicted_bytes > self._limit * (1 - HEAP_FRACTION)
        self.wants_early = self.binds or near
        self._memory.give_back_early(self.wants_early or self.others_want_early())
        if self.choice.fits and self.binds and not self.choice.checkpointing:
            self._log.skipped("activation checkpointing", "the split keeps the limit alone")

    @property
    def certain_bytes(self) -> float:
        """The lower bound of the choice's memory: no optimizer state, nothing for an
        unknown loss.
        """
        rows = self.choice.rows
        return _certain(self._model).predict(rows.rows, keeps_chunk=rows.keeps_chunk)

    def _try(self, root: Root, recorded: RecordedCall, model: MemoryModel) -> Choice | None:
        rows = rows_within(model, self._limit)
        if rows is None:
            return None
        split = rows.rows < model.rows
        if split and not self._split(root, recorded, model, rows):
            return None
        return Choice(rows, self._tuner.applied.activation_checkpointing, True)

    def _try_checkpointed(self, root: Root, recorded: RecordedCall) -> Choice | None:
        if not self._tuner.activation_checkpointing(root, recorded, self._why(self.plain)):
            return None
        self._checkpointed = self._checkpointed or self._measured_checkpointed(root, recorded)
        return self._try(root, recorded, self._checkpointed)

    def _measured_checkpointed(self, root: Root, recorded: RecordedCall) -> MemoryModel:
        blocks = ActivationCheckpointing(root)
        blocks.enable()
        try:
            model = MemoryProbe(root, recorded, self._memory).model()
        finally:
            blocks.disable()
        plain = self.plain
        return replace(
            model,
            resident_bytes=plain.resident_bytes,
            late_gradient_bytes=plain.late_gradient_bytes,
            beside_bytes=plain.beside_bytes,
            loss=plain.loss,
        )

    def _least(self, root: Root, recorded: RecordedCall) -> Choice:
        """Returns the way with the least memory, because nothing is sure to fit."""
        checkpoints = self._tuner.applied.activation_checkpointing
        finest = least_rows(self.plain)
        splits = finest is not None and self._split(root, recorded, self.plain, finest)
        rows = _least(self.plain, splits)
        if checkpoints:
            assert self._checkpointed is not None
            fewer = _least(self._checkpointed, splits)
            checkpoints = fewer.predicted_bytes < rows.predicted_bytes * (1 - ALIKE_FRACTION)
            rows = fewer if checkpoints else rows
            self._tuner.checkpoint(checkpoints)
        if rows.rows < self._model.rows:
            self._split(root, recorded, self._model, rows)
        elif splits:
            self._tuner.without_split()
        self._say_useless(rows, splits)
        return Choice(rows, checkpoints, False)

    def _say_useless(self, rows: Rows, splits: bool) -> None:
        """Logs ways that are possible and would not help."""
        saved = f"it saves nothing: {format_memory(int(rows.predicted_bytes))} without it"
        if splits and rows.rows == self._model.rows:
            self._log.skipped("batch split", saved)
        allowed = self._checkpointed is not None
        if allowed and not self._tuner.applied.activation_checkpointing:
            self._log.skipped("activation checkpointing", saved)

    def _split(self, root: Root, recorded: RecordedCall, model: MemoryModel, rows: Rows) -> bool:
        why, keeps = self._why(model), rows.keeps_chunk
        return self._tuner.split(root, recorded, rows.rows, why, keeps_chunk=keeps)

    def _is_whole(self) -> bool:
        return self.choice.rows.rows >= self._model.rows and not self.choice.checkpointing

    def _why(self, model: MemoryModel) -> str:
        whole = format_memory(int(model.predict(model.rows)))
        return f"{whole} predicted for {model.rows} at once, limit {format_memory(self._limit)}"

    def way(self) -> str:
        rows, model = self.choice.rows, self._model
        way = f"{model.rows} samples"
        if rows.rows < model.rows:
            way += f" in steps of {rows.rows}"
        return way + (" with activation checkpointing" if self.choice.checkpointing else "")

    def predicted(self) -> str:
        """Returns the prediction for the chosen way and, if that is another one, for the whole
        batch.
        """
        text = f"{format_memory(int(self.choice.rows.predicted_bytes))} predicted for {self.way()}"
        if self._is_whole():
            return text
        rows = self.plain.rows
        whole = format_memory(int(self.plain.predict(rows)))
        return f"{text}, {whole} for {rows} at once"


def _least(model: MemoryModel, splits: bool) -> Rows:
    whole = Rows(model.rows, True, model.predict(model.rows))
    least = least_rows(model) if splits else None
    return whole if least is None or least.predicted_bytes >= whole.predicted_bytes else least


def _certain(model: MemoryModel) -> MemoryModel:
    """Returns the lower bound of a model's memory: no optimizer state, nothing for an
    unknown loss.
    """
    if model.loss.measured:
        return model
    state = OPTIMIZER_STATE_FACTOR * model.gradient_bytes
    outputs = model.output_bytes_per_row * model.rows
    return replace(
        model,
        resident_bytes=model.resident_bytes - state,
        beside_bytes=0.0,
        loss=LossBytes(0.0, -outputs),
    )
