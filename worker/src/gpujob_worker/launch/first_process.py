"""Whether this process is the one that a stop of the pod reaches; every process imports this."""

import os

# The process that `gpujob-run` became or started; without it a container's process 1.
ENV_FIRST_PROCESS = "GPUJOB_FIRST_PROCESS"
# `gpujob-run`, where it has stayed to pass a stop on.
ENV_FORWARDER = "GPUJOB_FORWARDER"
# For so long a shell may take to end, once it was asked to.
SHELL_SECONDS_MAX = 1.0


def is_first_process() -> bool:
    return _is_first(os.getpid())


def first_pid() -> int:
    """Of the process that a stop reaches first, whether it has ended or not."""
    return int(os.environ.get(ENV_FIRST_PROCESS) or 1)


def is_started_by_first_process() -> bool:
    """A rank of a launcher that is the job's command, or of a script that starts its own, or what
    a shell runs; then shells in between do not count. Below those that a Python program starts
    there may be many trials, for other purposes each.
    """
    from gpujob_worker.run.process_tree import ancestors, is_shell  # few processes ask

    for pid in ancestors():
        if _is_first(pid):
            return True
        if not (is_shell(pid) and first_is_no_python()):
            return False
    return False


def first_is_no_python() -> bool:
    """Whether it runs, and is a shell or another program that is not Python."""
    from gpujob_worker.run.process_tree import program_of  # few processes ask

    program = program_of(first_pid())
    return bool(program) and not program.startswith(("python", "pypy"))


def end_run() -> None:
    """Asks `gpujob-run` to end what is left of the run, as a stop of the pod would: a shell would
    go on with its next command, so this waits for its end. Without `gpujob-run` nothing can be
    done.
    """
    import signal
    import time

    from gpujob_worker.run.process_tree import ancestors  # few processes ask

    forwarder = int(os.environ.get(ENV_FORWARDER) or 0)
    if forwarder in ancestors():
        os.kill(forwarder, signal.SIGTERM)
        end = time.monotonic() + SHELL_SECONDS_MAX
        # What loses its parent gets `gpujob-run` for one.
        while os.getppid() != forwarder and time.monotonic() < end:
            time.sleep(0.01)


def _is_first(pid: int) -> bool:
    return str(pid) in ("1", os.environ.get(ENV_FIRST_PROCESS))
