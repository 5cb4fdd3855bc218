"""How many processes may load data beside the training process."""

import os

WORKERS_MAX = 4


def workers_wanted() -> int:
    """As many as there are cores to spare beside the training process, at most `WORKERS_MAX`."""
    return min(WORKERS_MAX, len(os.sched_getaffinity(0)) - 1)
