"""Whether this process is the one that a stop of the pod reaches; every process imports this."""

import os

# The process that `gpujob-run` became; in a container it is process 1 as well.
ENV_FIRST_PROCESS = "GPUJOB_FIRST_PROCESS"


def is_first_process() -> bool:
    return _is_first(os.getpid())


def is_started_by_first_process() -> bool:
    """A rank of a launcher that is the job's command, or of a script that starts its own."""
    return _is_first(os.getppid())


def _is_first(pid: int) -> bool:
    return str(pid) in ("1", os.environ.get(ENV_FIRST_PROCESS))
