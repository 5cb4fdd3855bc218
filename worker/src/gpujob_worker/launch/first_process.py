"""Whether this process is the one that a stop of the pod reaches; every process imports this."""

import os

# The process that `gpujob-run` became; in a container it is process 1 as well.
ENV_FIRST_PROCESS = "GPUJOB_FIRST_PROCESS"


def is_first_process() -> bool:
    return str(os.getpid()) in ("1", os.environ.get(ENV_FIRST_PROCESS))
