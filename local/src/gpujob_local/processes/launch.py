"""Becomes a command that dies with its parent: `launch.py PARENT_PID CORES COMMAND...`.

`processes.py` and the process nodes run it as a script (with `-I -S`, so it starts in some 20 ms).
Between fork and exec of the parent, the same Python code might deadlock if the parent has threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_PARENT_GONE = 137
# The exit code of a container runtime that cannot execute the command.
EXIT_START_ERROR = 128
# The worker's name for the process that a stop of the container reaches. A process node has no
# process 1 of each container.
FIRST_PROCESS = "GPUJOB_FIRST_PROCESS"


def main(arguments: list[str]) -> int:
    """Becomes the command. CORES is a comma list of processor numbers, or '-' for all. Returns only
    on failure.
    """
    parent, cores, *command = arguments
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        return EXIT_PARENT_GONE
    if cores != "-":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    # An ignored signal stays ignored through exec. The interpreter ignores two. A shell that
    # started the local cluster in the background ignores others (SIGINT, SIGQUIT, SIGHUP).
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    if FIRST_PROCESS in os.environ:
        os.environ[FIRST_PROCESS] = str(os.getpid())
    try:
        os.execvp(command[0], command)  # noqa: S606 - becoming the command is the purpose
    except OSError as error:
        sys.stderr.write(f"cannot execute {command[0]}: {error.strerror}\n")
        return EXIT_START_ERROR


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
