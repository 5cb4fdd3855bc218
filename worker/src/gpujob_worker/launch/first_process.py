"""Detects whether a stop of the pod reaches this process. Every process of a run imports this."""

import os

# The process that `gpujob-run` became or started. Without it, it is a container's process 1.
ENV_FIRST_PROCESS = "GPUJOB_FIRST_PROCESS"
# The process of `gpujob-run`, if it stays to forward a stop.
ENV_FORWARDER = "GPUJOB_FORWARDER"
# Seconds that a shell may take to end after a stop.
SHELL_SECONDS_MAX = 1.0


def is_first_process() -> bool:
    return _is_first(os.getpid())


def first_pid() -> int:
    """Returns the process that a stop reaches first, even if it has ended."""
    return int(os.environ.get(ENV_FIRST_PROCESS) or 1)


def is_started_by_first_process() -> bool:
    """Returns whether the job's launcher, script or shell started this process.

    It may be a rank of a launcher, or of a script that starts its own ranks. If the job's command
    is a shell, shells in between do not count. Processes that a Python program starts further below
    do not qualify, because they may be many trials, each for another purpose.
    """
    from gpujob_worker.run.process_tree import ancestors, is_shell  # few processes need it

    for pid in ancestors():
        if _is_first(pid):
            return True
        if not (is_shell(pid) and first_is_no_python()):
            return False
    return False


def is_rank_of_first_process() -> bool:
    """Returns whether this process is a rank that torch's launcher, as the first process, started.

    Processes that a rank starts have the same variables, and another parent.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ and is_started_by_first_process()


def first_is_no_python() -> bool:
    """Returns whether the first process runs and is a shell or another program that is
    not Python.
    """
    from gpujob_worker.run.process_tree import program_of  # few processes need it

    program = program_of(first_pid())
    return bool(program) and not program.startswith(("python", "pypy"))


def end_run() -> None:
    """Makes `gpujob-run` end the rest of the run, as a stop of the pod would.

    A shell would continue with its next command, so this waits for its end. Without `gpujob-run`
    nothing happens.
    """
    import signal
    import time

    from gpujob_worker.run.process_tree import ancestors  # few processes need it

    forwarder = int(os.environ.get(ENV_FORWARDER) or 0)
    if forwarder in ancestors():
        os.kill(forwarder, signal.SIGTERM)
        end = time.monotonic() + SHELL_SECONDS_MAX
        # A process that loses its parent becomes a child of `gpujob-run`.
        while os.getppid() != forwarder and time.monotonic() < end:
            time.sleep(0.01)


def _is_first(pid: int) -> bool:
    return str(pid) in ("1", os.environ.get(ENV_FIRST_PROCESS))
