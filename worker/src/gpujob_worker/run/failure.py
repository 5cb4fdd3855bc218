"""Classifies how a run ended badly: a failure, or an interruption, which is no failure."""

import re
import signal
import traceback
from dataclasses import dataclass
from typing import Any

from gpujob_api.report import Failure, FailureClass
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED
from gpujob_worker.run.graceful_stop import Interrupted, is_launchers_stop

MESSAGE_CHARACTERS_MAX = 1000

# Messages with which libraries report a full GPU or host.
_OUT_OF_MEMORY = re.compile(
    r"out of memory|out_of_memory|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"
    r"|CUSOLVER_STATUS_ALLOC_FAILED|CUSPARSE_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
    r"|DefaultCPUAllocator: (?:can't|not enough)|[Cc]annot allocate memory|[Ff]ailed to allocate"
    r"|unable to allocate|not enough memory|std::bad_alloc"
    r"|NCCL.*(?:[Cc]uda failure 2\b|alloc failed)"
    r"|cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|HIP out of memory|OutOfResources",
    re.IGNORECASE,
)
_TRIED = re.compile(r"[Tt]ried to allocate ([0-9.]+) ?(bytes|[KMGT]i?B)")
_CPU_TRIED = re.compile(r"you tried to allocate ([0-9]+) bytes")
_UNITS = {"bytes": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
_DATA = re.compile(r"DataLoader worker|Caught \w+ in DataLoader|collate|No such file or directory")


# How a stop shows in processes that a script started: in the words of torch's loader, in those of a
# shell, and as an exit code of ours.
_STOPPED = re.compile(r"killed by signal: Terminated|terminated with signal SIGTERM")
_LEFT = (-signal.SIGTERM, EXIT_INTERRUPTED_SAVED, EXIT_INTERRUPTED_UNSAVED)
# A stop explains none of these.
_OF_THEIR_OWN = (FailureClass.OUT_OF_MEMORY, FailureClass.CHECKPOINT)


class MemoryLimitError(MemoryError):
    """The memory limit cannot be kept; `needed_bytes` is the minimum limit."""

    def __init__(self, message: str, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


def classify(
    error: BaseException, used_bytes: int | None = None, predicted_bytes: int | None = None
) -> Failure:
    """Returns the failure for the report.

    `used_bytes` is the memory that the process used before. `predicted_bytes` is the memory that
    the job was found to need.
    """
    message = f"{type(error).__name__}: {_of_rank(error) or error}"
    if is_out_of_memory(error):
        kind = FailureClass.OUT_OF_MEMORY
    elif type(error).__module__.startswith("gpujob_worker.checkpoint"):
        kind = FailureClass.CHECKPOINT
    elif _is_data(error, message):
        kind = FailureClass.DATA
    else:
        kind = FailureClass.USER_ERROR
    needed: int | None = None
    if isinstance(error, MemoryLimitError):
        needed = error.needed_bytes
    elif kind is FailureClass.OUT_OF_MEMORY:
        # A failed allocation reports its own size, which need not be the peak.
        asked = _needed(str(error), used_bytes)
        needed = max(asked or 0, predicted_bytes or 0) or None
    return Failure(kind, message[:MESSAGE_CHARACTERS_MAX], needed)


def _of_rank(error: BaseException) -> str:
    """Returns how the first failed rank of torch's launcher ended, or "". The error itself is a
    table over many lines.
    """
    failures: Any = getattr(error, "failures", None)
    first: Any = getattr(error, "get_first_failure", None)
    if type(error).__name__ != "ChildFailedError" or not failures or first is None:
        return ""
    rank, failure = first()
    script = getattr(error, "name", "")
    return f"{script}: rank {rank} ended with exit code {failure.exitcode}; the log has its error"


def is_interruption(error: BaseException, *, stopped: bool) -> bool:
    """Returns whether a stop caused this end.

    It did if it was requested before the error appeared (`stopped`), or if it ended a process that
    the script had started. Loaders, pipes and connections break off then too.
    """
    if isinstance(error, SystemExit):
        return error.code in _LEFT or (stopped and bool(error.code))
    if classify(error).failure_class in _OF_THEIR_OWN:
        return False
    return stopped or _lost_stopped_process(error)


def _lost_stopped_process(error: BaseException) -> bool:
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"RuntimeError", "ProcessException"} and _STOPPED.search(str(error)):
        return True
    if error.__cause__ is not None and _lost_stopped_process(error.__cause__):
        return True
    # Attributes of errors of subprocess, of torch's spawned processes, and of its launcher's ranks.
    failures: Any = getattr(error, "failures", None)
    ranks: list[Any] = list(failures.values()) if isinstance(failures, dict) else []
    found = [getattr(error, "returncode", None), getattr(error, "exit_code", None)]
    found += [getattr(process, "exitcode", None) for process in (*ranks, *_loaders(error))]
    codes = [code for code in found if isinstance(code, int)]
    return bool(codes) and all(code in _LEFT for code in codes)


def _loaders(error: BaseException) -> list[Any]:
    """Returns the failed processes of a loader that lost one. Torch often does not report the
    signal.
    """
    if not str(error).startswith("DataLoader worker"):
        return []
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    owners = [frame.f_locals.get("self") for frame in frames]
    found = next((w for owner in owners if (w := getattr(owner, "_workers", None))), [])
    return [process for process in found if process.exitcode != 0]


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether memory ran out, by type (MemoryError, torch.OutOfMemoryError) or libraries'
    messages.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, MemoryError) or "OutOfMemoryError" in names:
        return True
    if not isinstance(error, (RuntimeError, OSError)) and "OutOfResources" not in names:
        return False
    return _OUT_OF_MEMORY.search(f"{type(error).__name__}: {error}") is not None


def _is_data(error: BaseException, message: str) -> bool:
    if isinstance(error, (FileNotFoundError, IsADirectoryError, EOFError, UnicodeDecodeError)):
        return True
    return isinstance(error, RuntimeError) and _DATA.search(message) is not None


def _needed(message: str, used_bytes: int | None) -> int | None:
    """Returns the memory held before plus the failed allocation, or None if the message has no
    size.
    """
    match = _TRIED.search(message) or _CPU_TRIED.search(message)
    if match is None:
        return None
    unit = match[2] if match.re is _TRIED else "bytes"
    asked = float(match[1]) * _UNITS.get(unit if unit == "bytes" else unit[0], 1)
    return int(asked) + (used_bytes or 0)


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended. With `broke_off`, a stop ended the script with an error, which chose no exit
    code.
    """

    clean: bool = False
    interrupted: bool = False
    broke_off: bool = False
    note: str = ""
    failure: Failure | None = None


def end_of(
    error: BaseException | None,
    *,
    stopped: bool,
    used_bytes: int | None = None,
    predicted_bytes: int | None = None,
) -> RunEnd:
    """Returns how the run ended.

    `stopped` means that a stop was requested and handled when the error appeared. Bytes are those
    of `classify`.
    """
    if error is None or (isinstance(error, SystemExit) and not error.code):
        return RunEnd(clean=True)
    if isinstance(error, Interrupted):
        return RunEnd(interrupted=True)
    if is_launchers_stop(error):
        return RunEnd(interrupted=True, note="the launcher was asked to stop")
    if is_interruption(error, stopped=stopped):
        if isinstance(error, SystemExit):
            return RunEnd(interrupted=True, note=_exit_in_words(error))
        text = f"the script broke off with {type(error).__name__}: {error}"
        return RunEnd(interrupted=True, broke_off=True, note=text[:MESSAGE_CHARACTERS_MAX])
    if isinstance(error, SystemExit):
        text = _exit_in_words(error)
        return RunEnd(failure=Failure(FailureClass.USER_ERROR, text[:MESSAGE_CHARACTERS_MAX]))
    return RunEnd(failure=classify(error, used_bytes, predicted_bytes))


def _exit_in_words(error: SystemExit) -> str:
    if isinstance(error.code, str):
        return f"the script ended with: {error.code}"
    words = getattr(error, "words", "")
    return f"the script ended with exit code {error.code}{f': {words}' if words else ''}"
