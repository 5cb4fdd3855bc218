"""What a process takes of a GPU: growth, the context beside torch's own, the allocator's fence."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpujob_worker.device.cuda_context import (
    CONTEXT_BYTES_ASSUMED,
    GPUContext,
    gpu_context,
    limit_allocator,
)
from gpujob_worker.device.memory import CudaMemory, Growth
from tests.harness.fake_nvml import NOT_SUPPORTED, FakeGPU, FakeNvml

MIB = 2**20


class Reserving:
    """torch.cuda's counters: what is reserved is more than what is allocated."""

    def __init__(self) -> None:
        self.reserved, self.allocated = 100, 60
        self.top_reserved, self.top_allocated = 100, 60

    def memory_reserved(self) -> int:
        return self.reserved

    def memory_allocated(self) -> int:
        return self.allocated

    def max_memory_reserved(self) -> int:
        return self.top_reserved

    def max_memory_allocated(self) -> int:
        return self.top_allocated

    def reset_peak_memory_stats(self) -> None: ...

    def empty_cache(self) -> None: ...


def test_growth_on_a_gpu_is_the_larger_of_reserved_and_allocated() -> None:
    cuda = Reserving()
    growth = Growth(CudaMemory(cuda))
    cuda.allocated = cuda.top_allocated = 90
    assert (growth.held_bytes(), growth.peak_bytes()) == (30, 30), "found room in what is reserved"
    cuda.reserved = cuda.top_reserved = 200
    assert (growth.held_bytes(), growth.peak_bytes()) == (100, 100)


def test_the_context_is_what_the_gpu_counts_beside_torchs_own() -> None:
    cuda, gpu = Reserving(), FakeGPU(compute={41: 9 * MIB, 77: 400 * MIB})
    cuda.reserved = cuda.top_reserved = 100 * MIB
    memory = CudaMemory(cuda, GPUContext(FakeNvml(gpu), gpu, pid=77))
    assert memory.context_bytes == 300 * MIB
    assert memory.current_bytes() == memory.peak_bytes() == 400 * MIB
    gpu.compute[77] = 650 * MIB
    cuda.reserved = 200 * MIB
    assert memory.current_bytes() == 500 * MIB, "as measured before"
    assert memory.measure_context() == 450 * MIB, "more kernels were loaded"
    gpu.compute[77] = 210 * MIB
    assert memory.measure_context() == 450 * MIB, "what was needed once is kept free"


def test_in_a_container_the_process_is_known_by_what_it_holds() -> None:
    gpu = FakeGPU(compute={41: 9 * MIB, 9001: 400 * MIB, 9002: 20_000 * MIB})
    context = GPUContext(FakeNvml(gpu), gpu, pid=7)
    assert context.beside_bytes(100 * MIB) == 300 * MIB
    gpu.compute[9003] = 500 * MIB
    assert context.beside_bytes(100 * MIB) is None, "two could be ours"


@pytest.mark.parametrize(
    "gpu",
    [
        FakeGPU(compute={77: None}),
        FakeGPU(),
        FakeGPU(
            compute={77: 400 * MIB}, errors={"nvmlDeviceGetComputeRunningProcesses": NOT_SUPPORTED}
        ),
    ],
)
def test_a_gpu_that_does_not_tell_leaves_an_assumption(gpu: FakeGPU) -> None:
    memory = CudaMemory(Reserving(), GPUContext(FakeNvml(gpu), gpu, pid=77))
    assert memory.context_bytes == CONTEXT_BYTES_ASSUMED
    assert CudaMemory(Reserving()).current_bytes() == 100 + CONTEXT_BYTES_ASSUMED
    assert gpu_context("no such GPU") is None


@pytest.mark.parametrize(
    ("limit", "context", "fraction"),
    [(40, 10, 0.3), (40, 0, 0.4), (500, 10, 1.0), (40, 50, 0.0)],
)
def test_the_allocator_fails_before_the_whole_process_oversteps(
    limit: int, context: int, fraction: float
) -> None:
    class SecondGPU:
        def __init__(self) -> None:
            self.fractions: list[tuple[float, int]] = []

        def current_device(self) -> int:
            return 1

        def get_device_properties(self, device: int) -> Any:
            return SimpleNamespace(total_memory=100 if device == 1 else 7)

        def set_per_process_memory_fraction(self, share: float, device: int) -> None:
            self.fractions.append((share, device))

    cuda = SecondGPU()
    limit_allocator(cuda, limit, lambda: context)
    assert cuda.fractions == [(pytest.approx(fraction), 1)]
