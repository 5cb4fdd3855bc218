"""Processes of a data loader, kept from a stop that is not theirs.

A launcher such as torchrun sends SIGTERM to its rank's whole process group. The rank makes one more
step for the others of its gang, and needs its batches; without their processes the loader raises.
"""

import contextlib
import functools
import os
from typing import Any


def keep_from_group_signals(worker_module: Any) -> None:
    """In a rank that a launcher started: forked loader processes are a group of their own.

    Their parent still ends them, and they end by themselves when it is gone.
    """
    plain = worker_module._worker_loop

    @functools.wraps(plain)
    def _worker_loop(*arguments: Any, **keywords: Any) -> Any:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        return plain(*arguments, **keywords)

    worker_module._worker_loop = _worker_loop
