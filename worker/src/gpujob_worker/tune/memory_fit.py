"""Fits a job into its memory limit before its first step: at most three small probes, no guess."""

from collections.abc import Callable
from dataclasses import replace

import torch

from gpujob_api.quantities import format_memory
from gpujob_worker.explanation import Explanation
from gpujob_worker.inject.activation import ActivationCheckpointing
from gpujob_worker.inject.root import RecordedCall, Root, RootPlan
from gpujob_worker.inject.trees import trainable
from gpujob_worker.memory import DeviceMemory
from gpujob_worker.tune.memory_model import MemoryModel, fit, measure, rows_within
from gpujob_worker.tune.no_trace import no_trace
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.tuner import Tuner

# Two moments of Adam and the temporaries of its step; an upper estimate for other optimizers.
_OPTIMIZER_STATE_FACTOR = 2
_OPTIMIZER_TEMPORARIES_FACTOR = 1


class MemoryFit:
    """Chooses the rows per step, then activation checkpointing, so that the limit holds."""

    def __init__(self, memory: DeviceMemory, explanation: Explanation, tuner: Tuner) -> None:
        self._memory = memory
        self._explain = explanation
        self._tuner = tuner
        self._model: MemoryModel | None = None

    def fit(self, root: Root, recorded: RecordedCall, limit_bytes: int) -> None:
        total = recorded.inputs.rows
        if total is None or total < 4:
            self._explain.refused(
                "memory limit", "the call has no batch of four samples to measure"
            )
            return
        self._model = model = self.model(root, recorded, total)
        needed = int(model.predict(total))
        text = f"{format_memory(needed)} predicted for {total} samples, limit "
        text += format_memory(limit_bytes)
        self._explain.note("memory limit", text)
        rows = rows_within(model, total, limit_bytes)
        if rows == total:
            return
        why = f"so that {text} holds"
        if rows is not None and self._tuner.split(root, recorded, rows, why):
            return
        if self._tuner.activation_checkpointing(root, recorded, why):
            self._with_checkpointing(root, recorded, total, limit_bytes)
            return
        if not self._tuner.offload(root, recorded, why):
            self._explain.refused("memory limit", f"cannot be kept: {text}")

    def correct(
        self, root: Root, recorded: RecordedCall, observed_bytes: int, limit_bytes: int
    ) -> None:
        """After real steps: the loss and the libraries took memory too, which no probe could see.

        The model is raised by what it fell short of, and the rows are chosen again.
        """
        total = recorded.inputs.rows
        if self._model is None or total is None or observed_bytes <= limit_bytes:
            return
        present = self._tuner.applied.plan.rows_per_step or total
        short = max(0.0, observed_bytes - self._model.predict(present))
        self._model = replace(
            self._model,
            fixed_bytes=self._model.fixed_bytes + short,
            optimizer_bytes=self._model.optimizer_bytes + short,
        )
        text = f"{format_memory(observed_bytes)} measured, limit {format_memory(limit_bytes)}"
        rows = rows_within(self._model, total, limit_bytes)
        if rows is None or rows >= present:
            if not self._tuner.offload(root, recorded, f"so that the limit holds: {text}"):
                self._explain.refused("memory limit", f"cannot be kept: {text}")
            return
        self._explain.note("memory limit", text)
        self._tuner.split(root, recorded, rows, f"so that the limit holds: {text}")

    def _with_checkpointing(
        self, root: Root, recorded: RecordedCall, total: int, limit_bytes: int
    ) -> None:
        blocks = ActivationCheckpointing(root)
        blocks.enable()
        try:
            model = self.model(root, recorded, total)
        finally:
            blocks.disable()
        rows = rows_within(model, total, limit_bytes)
        if rows is None:
            needed = format_memory(int(model.predict(1)))
            if not self._tuner.offload(root, recorded, "one sample alone is too much"):
                self._explain.refused("memory limit", f"one sample alone needs {needed}")
        elif rows < total:
            self._tuner.split(root, recorded, rows, "beside activation checkpointing")

    def model(self, root: Root, recorded: RecordedCall, total: int) -> MemoryModel:
        """Probes at up to three sizes. Bytes are of the whole process on its device."""
        parameters = trainable(root.module)
        size = sum(p.numel() * p.element_size() for p in parameters)
        batched = recorded.inputs.batched()

        def run(rows: int) -> None:
            narrow = RecordedCall(recorded.inputs.narrow(0, rows, batched))
            RootProbe(root, narrow).run(RootPlan())

        with no_trace(root.module):
            run(2)
            resident = self._memory.current_bytes() + (1 + _OPTIMIZER_STATE_FACTOR) * size
            probes = measure(run, self._peak_above_resident, total)
        optimizer = resident + _OPTIMIZER_TEMPORARIES_FACTOR * size
        # A probe's own gradients are part of its peak and of what is resident; count them once.
        return fit([(rows, max(0.0, used - size)) for rows, used in probes], resident, optimizer)

    def _peak_above_resident(self, run: Callable[[], None]) -> float:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self._memory.trim()
        before = self._memory.current_bytes()
        self._memory.reset_peak()
        run()
        return float(self._memory.peak_bytes() - before)
