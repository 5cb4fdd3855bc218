"""Failures are classified by what really happened, in the libraries' own words."""

import pytest
import torch

from gpujob_api.report import FailureClass
from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.run.failure import classify, is_out_of_memory

OUT_OF_MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB",
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "Triton Error [CUDA]: out of memory",
    "NCCL error: unhandled cuda error, NCCL version 2.21.5\nCuda failure 2 'out of memory'",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: "
    "you tried to allocate 400000000000000 bytes. Error code 12 (Cannot allocate memory)",
    "DefaultCPUAllocator: not enough memory: you tried to allocate 64 bytes.",
    "HIP out of memory. Tried to allocate 20.00 MiB",
]


@pytest.mark.parametrize("message", OUT_OF_MEMORY)
def test_every_real_message_is_recognized(message: str) -> None:
    assert classify(RuntimeError(message)).failure_class is FailureClass.OUT_OF_MEMORY


def test_types_are_recognized() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("x"))
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))


def test_what_is_needed_is_what_was_held_and_asked() -> None:
    failure = classify(RuntimeError(OUT_OF_MEMORY[0]), used_bytes=10 * 2**30)
    assert failure.needed_bytes == 12 * 2**30
    assert classify(RuntimeError(OUT_OF_MEMORY[7]), 5).needed_bytes == 400000000000000 + 5
    assert classify(RuntimeError(OUT_OF_MEMORY[1]), 5).needed_bytes is None


def test_a_real_allocation_that_cannot_be() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(10**15)
    failure = classify(caught.value, used_bytes=0)
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert failure.needed_bytes == 4 * 10**15


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("out of memory is a nice film"), FailureClass.USER_ERROR),
        (KeyError("label"), FailureClass.USER_ERROR),
        (RuntimeError("shape mismatch"), FailureClass.USER_ERROR),
        (FileNotFoundError(2, "No such file", "data.bin"), FailureClass.DATA),
        (
            RuntimeError("DataLoader worker (pid 4) is killed by signal: Bus error"),
            FailureClass.DATA,
        ),
        (CorruptError("step-4"), FailureClass.CHECKPOINT),
    ],
)
def test_other_failures(error: Exception, expected: FailureClass) -> None:
    assert classify(error).failure_class is expected


def test_long_messages_are_cut() -> None:
    assert len(classify(ValueError("x" * 10_000)).message) == 1000
