"""Becomes a command that dies with its parent: `launch.py PARENT_PID CORES COMMAND...`.

Run as a script by `processes.py` and the process nodes (with `-I -S`, so it starts in some 20 ms).
Done here and not between fork and exec of the parent, where Python code may deadlock when the
parent has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_PARENT_GONE = 137
# What a container runtime says when it cannot execute the command.
EXIT_START_ERROR = 128


def main(arguments: list[str]) -> int:
    """CORES is a comma list of processor numbers, or '-' for all. Returns only on failure."""
    parent, cores, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return EXIT_PARENT_GONE
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    # A signal that is ignored stays so through exec. The interpreter ignores two; whoever started
    # the local cluster in the background left others so (SIGINT, SIGQUIT, SIGHUP).
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as error:
        sys.stderr.write(f"cannot execute {command[0]}: {error.strerror}\n")
        return EXIT_START_ERROR


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
