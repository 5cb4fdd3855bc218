"""Keeps a worker with CPU cards on their cores, as a worker with GPUs keeps to its GPUs.

A kubelet gives a container all cores of its node. Without this, jobs on different CPU cards would
slow each other down, and jobs that share one would not.
"""

import os
from collections.abc import Mapping

from gpujob_api.cpu_cards import VISIBLE_DEVICES, cores_of


def keep_to_cores(environment: Mapping[str, str]) -> frozenset[int]:
    """Binds this process to the cores of its CPU cards, and returns them.

    Call it before torch is imported, because torch starts one thread per allowed core. Returns
    nothing if the worker has no CPU card or the system has no affinity.
    """
    if not hasattr(os, "sched_setaffinity"):
        return frozenset()
    cores = cores_of(environment.get(VISIBLE_DEVICES, ""), sorted(os.sched_getaffinity(0)))
    if cores:
        os.sched_setaffinity(0, cores)
    return cores
