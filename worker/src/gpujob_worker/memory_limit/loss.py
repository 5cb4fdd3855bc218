"""Measures the memory of the loss in a real step, from the model's return until backward reaches
it.

The loss is the script's own code. It cannot be run for a probe, but its memory can be read while
the script runs it.
"""

from collections.abc import Callable
from typing import Any

import torch

from gpujob_worker.device.memory import DeviceMemory, Growth
from gpujob_worker.inject.call_inputs import differentiable_leaves
from gpujob_worker.memory_limit.model import LossBytes


class LossMemoryWatch:
    """Watches one call's outputs. `found` stays None if a second call came before backward."""

    def __init__(self, memory: DeviceMemory, before_reset: Callable[[], None]) -> None:
        self._memory = memory
        self._before_reset = before_reset
        self._growth: Growth | None = None
        self._waiting = 0
        self.found: LossBytes | None = None

    def returned(self, output: Any) -> None:
        """Called when the root has returned. From here on, memory is the loss's."""
        if self._growth is not None:
            # A second call before the first one's backward would make its graph count as the loss.
            self._waiting = 0
            return
        leaves = differentiable_leaves(output)
        self._waiting = len(leaves)
        for leaf in leaves:
            leaf.register_hook(self._arrived)
        self._before_reset()
        self._growth = Growth(self._memory)

    def _arrived(self, gradient: torch.Tensor) -> None:
        """Called when backward has reached an output. The last one ends the watch."""
        del gradient
        if self._growth is None or not self._waiting:
            return
        self._waiting -= 1
        peak = float(self._growth.peak_bytes())
        self.found = LossBytes(peak, float(self._growth.held_bytes()), measured=True)
