"""Agents that come before this process can admit any wait, if they ask to, and are not refused.

Who is refused tries again each second. A thousand agents then take all the time of a process that
has just begun, which it needs to take the Lease and to list the nodes: it would begin later, or not
at all. An agent asks by the header `Prefer: wait=SECONDS` (RFC 7240).
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress

# However long an agent would wait.
WAIT_SECONDS_MAX = 10.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


def preferred_wait_seconds(header: str) -> float:
    """Of a header `Prefer`, at most `WAIT_SECONDS_MAX`; 0 without a wait in it."""
    found = _WAIT.search(header)
    return min(float(found[1]), WAIT_SECONDS_MAX) if found is not None else 0.0


class WaitingAgents:
    """Those of one process, until it `may_admit` for the first time. Afterwards nobody waits: if it
    leads no more, another process does, and an agent is to look for that one.
    """

    def __init__(self, may_admit: Callable[[], bool]) -> None:
        self._may_admit = may_admit
        self._turned = asyncio.Event()
        self.waiting = 0

    def look_again(self) -> None:
        """Call it when this process begins to lead, and when the nodes are listed."""
        if self._may_admit():
            self._turned.set()

    async def wait(self, seconds: float) -> None:
        """Returns once this process admits agents or has done so, and after so many seconds."""
        if self._turned.is_set() or self._may_admit():
            return
        self.waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._turned.wait()
        finally:
            self.waiting -= 1
