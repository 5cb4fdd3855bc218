"""Errors that would come again at once: of a command that cannot run, and of a script that does not
begin.

A worker names the class of the errors that it sees. It sees none of a script that ends before it
imports a training library, nor of a command that is no Python. Of these the container's exit code
and the last lines of its log tell.
"""

import re
from collections.abc import Iterator
from itertools import islice

from gpujob_operator.decide.model.snapshot import PodView

LINE_CHARACTERS_MAX = 300
# The error is the log's last line, but for what shells and libraries say at their end.
LINES_MAX = 4
# What a shell says of a command, and `gpujob-run` of its own.
_NO_COMMAND = {
    126: "a command cannot be executed (is it a program, and may the container's user run it?)",
    127: "a command was not found (is it in the image, and in its PATH?)",
}
# The last line of a traceback: of a mistake in the script, or of a file that is not where it runs.
_EXCEPTION = re.compile(
    r"^(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|TabError|NameError"
    r"|UnboundLocalError|AttributeError|TypeError|PermissionError|NotADirectoryError)\b"
)
_ANY_EXCEPTION = re.compile(r"^[\w.]+(?:Error|Exception|Interrupt|Exit)(?::|$)")
_NO_FILE = re.compile(r"^FileNotFoundError: .*: '(?!/)")
_COMMAND_LINE = re.compile(
    r"can't open file '|: No module named |^(?:[\w./ -]+: )?error: (?:unrecognized arguments"
    r"|the following arguments are required|argument |one of the arguments|ambiguous option)"
    r"|^Error: (?:No such option|Missing |Invalid value|Got unexpected|Unrecognized )"
    r"|(?:unrecognized|unknown|invalid) option\b|FATAL Flags parsing error"
)
# The image, its torch or the cluster's runtime class: the next node would say the same.
_NO_CUDA = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
    r"|no CUDA-capable device is detected|torch\.cuda\.is_available\(\) is False"
    r"|libcuda\.so\S*: cannot open shared object|CUDA driver version is insufficient"
    r"|no kernel image is available for execution"
)


def user_error_in(pod: PodView) -> str:
    """The line that names the error, or the exit code in words; "" where it is none of these.

    A report tells more than the log; only of a command that did not run it does not.
    """
    if pod.exit_code in _NO_COMMAND:
        said = next(_lines_from_the_end(pod.termination_text), "")
        return f"{_NO_COMMAND[pod.exit_code]}{f': {said}' if said else ''}"
    for line in islice(_lines_from_the_end(pod.termination_text), LINES_MAX):
        if _names_error(line):
            return line
        if _ANY_EXCEPTION.match(line):
            # What stands before it was caught.
            return ""
    return ""


def lacks_relative_file(message: str) -> bool:
    """Whether a file is missing whose path depends on the directory in which the script runs."""
    return _NO_FILE.search(message) is not None


def last_line(text: str) -> str:
    """The last line that says something."""
    return next(_lines_from_the_end(text), "")


def _lines_from_the_end(text: str) -> Iterator[str]:
    lines = (line.strip() for line in reversed(text.splitlines()))
    return (line[:LINE_CHARACTERS_MAX] for line in lines if line)


def _names_error(line: str) -> bool:
    return any(one.search(line) for one in (_EXCEPTION, _NO_FILE, _COMMAND_LINE, _NO_CUDA))
