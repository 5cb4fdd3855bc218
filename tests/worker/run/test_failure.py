"""Failures are classified by what really happened, in the libraries' own words."""

import subprocess
from dataclasses import dataclass

import pytest
import torch

from gpujob_api.report import FailureClass
from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.run.failure import RunEnd, classify, end_of, is_interruption, is_out_of_memory
from gpujob_worker.run.graceful_stop import Interrupted

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


WORKER_STOPPED = "DataLoader worker (pid(s) 4, 5) exited unexpectedly"
TERMINATED = "DataLoader worker (pid 4) is killed by signal: Terminated. "


@dataclass
class Rank:
    exitcode: int


class ChildFailedError(Exception):
    """As torch's launcher raises it."""

    def __init__(self, *exit_codes: int) -> None:
        super().__init__("train.py FAILED")
        self.failures = {number: Rank(code) for number, code in enumerate(exit_codes)}


class ProcessException(Exception):  # noqa: N818 - the name in torch
    """As `torch.multiprocessing.spawn` raises it."""

    exit_code = -15


ANY = [
    RuntimeError(WORKER_STOPPED),
    BrokenPipeError(32, "Broken pipe"),
    ConnectionResetError(104, "Connection reset by peer"),
    EOFError(),
    FileNotFoundError(2, "No such file", "/tmp/torch_socket"),
    ValueError("a value"),
    KeyboardInterrupt(),
    SystemExit(1),
    ChildFailedError(1, -15),
]
SIGNALED = [
    RuntimeError(TERMINATED),
    subprocess.CalledProcessError(-15, "train"),
    subprocess.CalledProcessError(143, "train"),
    ChildFailedError(-15, -15),
    ChildFailedError(144, -15),
    ProcessException("process 0 terminated with signal SIGTERM"),
    SystemExit(143),
]


@pytest.mark.parametrize("error", [*ANY, *SIGNALED], ids=repr)
def test_an_error_after_a_stop_is_an_interruption(error: BaseException) -> None:
    assert is_interruption(error, stopped=True)
    end = end_of(error, stopped=True)
    assert end.interrupted
    assert end.failure is None
    assert end.broke_off is not isinstance(error, SystemExit), "such an end has its own code"


@pytest.mark.parametrize("error", SIGNALED, ids=repr)
def test_a_process_that_a_stop_ended_is_one_without_a_stop_of_our_own(error: Exception) -> None:
    assert is_interruption(error, stopped=False)


@pytest.mark.parametrize(
    "error",
    [
        *ANY,
        RuntimeError("DataLoader worker (pid 4) is killed by signal: Killed. "),
        subprocess.CalledProcessError(-9, "train"),
        subprocess.CalledProcessError(0, "train"),
        ChildFailedError(),
        ValueError(TERMINATED),
    ],
    ids=repr,
)
def test_without_a_stop_an_error_is_the_scripts(error: BaseException) -> None:
    assert not is_interruption(error, stopped=False)
    assert end_of(error, stopped=False).failure is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("x"), FailureClass.OUT_OF_MEMORY),
        (CorruptError("step-4"), FailureClass.CHECKPOINT),
    ],
)
def test_what_no_stop_explains_keeps_its_class(error: Exception, kind: FailureClass) -> None:
    failure = end_of(error, stopped=True, used_bytes=5).failure
    assert failure is not None
    assert failure.failure_class is kind


@pytest.mark.parametrize("stopped", [True, False])
def test_a_clean_end_is_one(stopped: bool) -> None:
    assert all(end_of(e, stopped=stopped) == RunEnd(clean=True) for e in (None, SystemExit(0)))
    assert end_of(Interrupted(saved=True), stopped=stopped) == RunEnd(interrupted=True)
