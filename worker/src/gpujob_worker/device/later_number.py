"""Reads a number from the device without waiting for it.

It is not in `step_events`, because that is imported before torch.
"""

import torch

from gpujob_worker.device.step_events import DeviceEvents


class LaterNumber:
    """A tensor's single number as it is now, available on the host once the device has
    computed it.
    """

    def __init__(self, tensor: torch.Tensor, events: DeviceEvents | None) -> None:
        self._events = events
        self._host, self._mark = tensor, None
        if events is not None and tensor.is_cuda:
            self._host = torch.empty((), dtype=tensor.dtype, pin_memory=True)
            self._host.copy_(tensor.detach().reshape(()), non_blocking=True)
            self._mark = events.mark()

    @property
    def ready(self) -> bool:
        return self._events is None or self._mark is None or self._events.happened(self._mark)

    def value(self) -> float:
        return float(self._host)
