"""The device's state: clock, memory, random numbers, pinned host memory, a graph's capture."""

import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.harness.imitated_gpu.allocator import CachingAllocator
from tests.harness.imitated_gpu.clock import VirtualClock
from tests.harness.imitated_gpu.cost import CostModel, kernel_of

_CAPTURING = "operation not permitted when stream is capturing"


@dataclass(frozen=True, slots=True)
class GpuModel:
    """What is imitated. Picklable: it is sent to the process that trains."""

    name: str = "NVIDIA H100 80GB HBM3"
    memory_bytes: int = 80 * 1024**3
    capability: tuple[int, int] = (9, 0)
    cost: CostModel = field(default_factory=CostModel)


class ImitatedGpu:
    """One device, `cuda:0`, for as long as it is installed."""

    def __init__(self, model: GpuModel) -> None:
        self.model = model
        self.clock = VirtualClock()
        self.allocator = CachingAllocator(model.memory_bytes)
        self.stream = 0
        self.streams_made = 1
        # What an operation of a captured graph does once more; None while nothing is captured.
        self.capture: list[Callable[[], None]] | None = None
        self.launched: list[str] = []
        self._random = torch.Generator().manual_seed(0).get_state()
        self._pinned: dict[int, StorageWeakRef] = {}
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def initialized(self) -> bool:
        return torch.cuda._initialized  # pyright: ignore[reportPrivateUsage]

    def begin(self) -> None:
        """Torch's own code reads it there, to know whether there are random states to keep."""
        torch.cuda._initialized = True  # pyright: ignore[reportPrivateUsage]

    def refuse_in_capture(self) -> None:
        """Raises for what would end the capture of a graph."""
        if self.capture is not None:
            raise RuntimeError(f"CUDA error: {_CAPTURING}")

    def synchronize(self) -> None:
        """The host waits for all that is queued on any stream."""
        self.refuse_in_capture()
        for number in list(self.clock.streams):
            self.clock.wait_until(self.clock.mark(number))

    def wait_for_stream(self) -> None:
        self.refuse_in_capture()
        self.clock.wait_until(self.clock.mark(self.stream))

    def launch(self, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        kernel = kernel_of(func, inputs, outputs)
        self.launched.append(kernel.name)
        del self.launched[:-1000]
        cost = self.model.cost
        self.clock.launch(self.stream, cost.launch_seconds, cost.seconds(kernel))

    def copy(self, size: int, host: torch.Tensor, *, non_blocking: bool) -> None:
        """Between host and device. Only from or to pinned memory does it go on beside the host."""
        cost, pinned = self.model.cost, self.is_pinned(host)
        if not pinned:
            self.refuse_in_capture()
        rate = cost.copy_bytes_per_second if pinned else cost.pageable_bytes_per_second
        self.clock.launch(self.stream, cost.launch_seconds, size / rate)
        if not (pinned and non_blocking):
            self.wait_for_stream()

    def hold(self, tensor: torch.Tensor) -> None:
        """Counts the tensor's storage as allocated until it is freed."""
        self.begin()
        storage = tensor.untyped_storage()
        if storage in self._known or storage.nbytes() == 0:
            return
        block = self.allocator.allocate(storage.nbytes())
        self._known.add(storage)
        weakref.finalize(storage, self.allocator.free, block).atexit = False

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A pinned copy of a host tensor."""
        copy = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor)
        self.pinned(copy)
        return copy

    def pinned(self, tensor: torch.Tensor) -> None:
        """The memory of a new host tensor is pinned."""
        storage = tensor.untyped_storage()
        self.clock.host_works(storage.nbytes() / self.model.cost.pinning_bytes_per_second)
        self._pinned = {at: ref for at, ref in self._pinned.items() if not ref.expired()}
        self._pinned[storage.data_ptr()] = StorageWeakRef(storage)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        found = self._pinned.get(tensor.untyped_storage().data_ptr())
        return found is not None and not found.expired()

    def seed(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed).get_state()

    def random_state(self) -> torch.Tensor:
        return self._random.clone()

    def set_random_state(self, state: torch.Tensor) -> None:
        self._random = state.clone()

    @contextmanager
    def drawing(self) -> Generator[None]:
        """Inside, what torch draws on the CPU comes from the device's generator."""
        host = torch.get_rng_state()
        torch.set_rng_state(self._random)
        try:
            yield
        finally:
            self._random = torch.get_rng_state()
            torch.set_rng_state(host)
