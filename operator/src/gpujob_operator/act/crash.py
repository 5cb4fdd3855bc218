"""A test aid: ends the process hard after its N-th write, as a crash at that moment would."""

import os
from collections.abc import Callable

from gpujob_operator.act.kube import EVENTS, LEASES, TOKEN_REVIEWS, ResourceType

CRASH_EXIT_CODE = 70
# What has no say in where a job stands does not count.
_NOT_COUNTED = frozenset({EVENTS, LEASES, TOKEN_REVIEWS})


class CrashAfterWrites:
    """Give it to `Kube` as `after_write`. Counts what plans write: statuses, pods, profiles."""

    def __init__(self, writes: int, end: Callable[[int], object] = os._exit) -> None:
        self._left = writes
        self._end = end

    def __call__(self, kind: ResourceType) -> None:
        if kind in _NOT_COUNTED:
            return
        self._left -= 1
        if self._left == 0:
            self._end(CRASH_EXIT_CODE)
