"""Small probes of forward and backward, to which the memory model is fitted. They leave
no trace.
"""

import torch

from gpujob_worker.device.memory import DeviceMemory, Growth
from gpujob_worker.inject.call_inputs import trainable
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.model import LossBytes, MemoryModel, fit, probe_rows
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.run.failure import is_out_of_memory
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import few_rows

# Two moments of Adam. This is an upper estimate for other optimizers until the first step was
# taken.
OPTIMIZER_STATE_FACTOR = 2
# A cross entropy takes three more of its logits: their logarithms and two gradients. One is to
# spare.
LOSS_OUTPUTS_ASSUMED = 4
# The outputs' gradients, and something computed from outputs that the script still holds.
HELD_OUTPUTS_ASSUMED = 2


class MemoryProbe:
    """Forward and backward on few rows, as the script runs them."""

    def __init__(self, root: Root, recorded: RecordedCall, memory: DeviceMemory) -> None:
        self._root = root
        self._recorded = recorded
        self._memory = memory

    def model(self) -> MemoryModel:
        """Returns a model from probes at up to three sizes. The loss was not run yet, so its memory
        is assumed.
        """
        total = self._recorded.inputs.rows
        assert total is not None
        if self._recorded.whole_only:
            raise ValueError("fewer samples than all of a batch cannot run")
        gradients = gradient_bytes(self._root)
        with no_trace(self._root.module), self._memory.exact():
            self._warm_up()
            self._memory.trim()
            resident = self._memory.current_bytes() + OPTIMIZER_STATE_FACTOR * gradients
            samples = self._samples(total)
        held = fit([(rows, float(sample[0])) for rows, sample in samples])
        peak = fit([(rows, float(sample[1])) for rows, sample in samples])
        outputs = samples[-1][1][2] / samples[-1][0]
        return MemoryModel(
            rows=total,
            resident_bytes=resident,
            gradient_bytes=gradients,
            held=held,
            peak=peak,
            output_bytes_per_row=outputs,
            loss=assumed_loss(outputs * total),
        )

    def _samples(self, total: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Returns two or more probes, with fewer rows if those of `probe_rows` do not fit.

        Raises the error of the smallest probe if that does not fit either.
        """
        wanted = probe_rows(total)
        while True:
            try:
                return [(rows, self._sample(rows)) for rows in wanted]
            except Exception as error:
                fewer = sorted({max(1, rows // 4) for rows in wanted})
                if not is_out_of_memory(error) or len(fewer) < 2:
                    raise
            # The failed run is freed only here, with the error that held it.
            self._memory.trim()
            wanted = fewer

    def _warm_up(self) -> None:
        """Runs once, because libraries initialize themselves in a first call, and that memory
        stays.
        """
        RootProbe(self._root, few_rows(self._recorded, 2)).run(RootPlan())

    def _sample(self, rows: int) -> tuple[int, int, int]:
        """Returns the bytes held after forward, those at the peak, and those of the outputs."""
        probe = RootProbe(self._root, few_rows(self._recorded, rows))
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        growth = Growth(self._memory)
        held: list[int] = []
        result = probe.run(RootPlan(), lambda: held.append(growth.held_bytes()))
        peak = growth.peak_bytes()
        outputs = sum(out.numel() * out.element_size() for out in result.outputs)
        return max(0, *held), peak, outputs


def assumed_loss(output_bytes: float) -> LossBytes:
    return LossBytes(LOSS_OUTPUTS_ASSUMED * output_bytes, HELD_OUTPUTS_ASSUMED * output_bytes)


def gradient_bytes(root: Root) -> int:
    return sum(p.numel() * p.element_size() for p in trainable(root.module))


def present_gradient_bytes(root: Root) -> int:
    gradients = [p.grad for p in trainable(root.module)]
    return sum(g.numel() * g.element_size() for g in gradients if g is not None)
