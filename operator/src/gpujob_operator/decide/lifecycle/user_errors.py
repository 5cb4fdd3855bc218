"""Errors that would recur at once: of a command that cannot run, and of a script that fails to
begin.

A worker reports the class of the errors that it sees. It cannot see a script that ends before it
imports a training library, nor a command that is not Python. The container's exit code and the last
lines of its log show these errors.
"""

import re
from collections.abc import Iterator
from itertools import islice

from gpujob_operator.decide.lifecycle.transient import is_denied
from gpujob_operator.decide.model.snapshot import PodView

LINE_CHARACTERS_MAX = 300
# The error is the log's last line, except for what shells and libraries print at their end.
LINES_MAX = 4
# Exit codes of a shell, and of `gpujob-run`, for a command.
_NO_COMMAND = {
    126: "a command cannot be executed (is it a program, and may the container's user run it?)",
    127: "a command was not found (is it in the image, and in its PATH?)",
}
# The last line of a traceback for a mistake in the script, or for a file that is missing where it
# runs.
_EXCEPTION = re.compile(
    r"^(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|NameError"
    r"|UnboundLocalError|AttributeError|TypeError|PermissionError|NotADirectoryError"
    r"|IsADirectoryError)\b"
)
_ANY_EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception|Interrupt|Exit)(?::|$)")
_NO_FILE = re.compile(r"^FileNotFoundError: .*: '(?!/)")
_COMMAND_LINE = re.compile(
    r"can't open file '|: No module named |^(?:[\w./ -]+: )?error: (?:unrecognized arguments"
    r"|the following arguments are required|argument |one of the arguments|ambiguous option)"
    r"|^Error: (?:No such option|Missing |Invalid value|Got unexpected|Unrecognized )"
    r"|(?:unrecognized|unknown|invalid) option\b|FATAL Flags parsing error|No such option: "
)
# A program of another architecture, a script whose first line names no program (as with Windows'
# line ends), a library that the image lacks, or a volume that is mounted read-only.
_IMAGE = re.compile(
    r"exec format error|^exec \S+: (?:no such file or directory|permission denied)"
    r"|exec user process caused|error while loading shared libraries|Read-only file system"
)
# The image, its torch or the cluster's runtime class is wrong. The next node would fail alike.
_NO_CUDA = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
    r"|no CUDA-capable device is detected|torch\.cuda\.is_available\(\) is False"
    r"|libcuda\.so\S*: cannot open shared object|CUDA driver version is insufficient"
    r"|no kernel image is available for execution|NVIDIA driver on your system is too old"
)
_GPU_MEMORY = re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED")
# A launcher's own traceback after that of the process that it started.
_LAUNCHERS_ERROR = re.compile(r"^[\w.]*(?:CalledProcessError|ChildFailedError):", re.MULTILINE)
# Lines of launchers (torchrun, DeepSpeed, Lightning) about a process that they started.
_LAUNCHERS_LINE = re.compile(
    r"torch/distributed/elastic/|SignalException: Process \d+ got signal|\[launch\.py:\d+"
    r"|^\[rank: \d+\] Child process with PID"
)
_TRACEBACK = "Traceback (most recent call last):"


def user_error_in(pod: PodView) -> str:
    """Returns the line with the error, or the exit code in words, or "" if it is none of these.

    A report has more detail than the log, except about a command that did not run.
    """
    if pod.exit_code in _NO_COMMAND:
        said = last_line(pod.termination_text)
        return f"{_NO_COMMAND[pod.exit_code]}{f': {said}' if said else ''}"
    for line in islice(_lines_from_the_end(pod.termination_text), LINES_MAX):
        if _names_error(line):
            return line
        if _ANY_EXCEPTION.match(line):
            # Errors before this one were caught.
            return ""
    return ""


def lacks_gpu_memory(message: str) -> bool:
    """Returns whether a script ended for lack of GPU memory, by the last line of its traceback."""
    return _GPU_MEMORY.search(message) is not None


def lacks_relative_file(message: str) -> bool:
    """Returns whether a file is missing whose path depends on the script's working directory."""
    return _NO_FILE.search(message) is not None


def last_line(text: str) -> str:
    """Returns the last line that has text, before what a launcher adds, or "" if it is all of a
    launcher.
    """
    return next(_lines_from_the_end(text), "")


def last_exception(text: str) -> str:
    """Returns the last line if a traceback ends with it, or ""."""
    line = last_line(text)
    return line if _ANY_EXCEPTION.match(line) is not None else ""


def _lines_from_the_end(text: str) -> Iterator[str]:
    lines = (line.strip() for line in reversed(_without_launchers(text).splitlines()))
    return (
        line[:LINE_CHARACTERS_MAX]
        for line in lines
        if any(map(str.isalnum, line)) and _LAUNCHERS_LINE.search(line) is None
    )


def _without_launchers(text: str) -> str:
    """Returns the text before a launcher's own traceback."""
    found = _LAUNCHERS_ERROR.search(text)
    return text if found is None else text[: found.start()].rpartition(_TRACEBACK)[0]


def _names_error(line: str) -> bool:
    kinds = (_EXCEPTION, _NO_FILE, _COMMAND_LINE, _IMAGE, _NO_CUDA)
    return is_denied(line) or any(one.search(line) for one in kinds)
