"""A test aid that kills the process after its N-th write, like a crash at that point."""

import os
from collections.abc import Callable

from gpujob_operator.client.kube import EVENTS, LEASES, TOKEN_REVIEWS, ResourceType

CRASH_EXIT_CODE = 70
# Writes that do not change a job's state are not counted.
_NOT_COUNTED = frozenset({EVENTS, LEASES, TOKEN_REVIEWS})


class CrashAfterWrites:
    """Counts the writes of a plan: statuses, pods and profiles. Pass it to `Kube` as
    `after_write`.
    """

    def __init__(self, writes: int, end: Callable[[int], object] = os._exit) -> None:
        self._left = writes
        self._end = end

    def __call__(self, kind: ResourceType) -> None:
        if kind in _NOT_COUNTED:
            return
        self._left -= 1
        if self._left == 0:
            self._end(CRASH_EXIT_CODE)
