"""The signal that wakes the scheduling loop: at once for urgent changes, later for others."""

import asyncio


class Dirty:
    """Counts changes since the last look. It belongs to one event loop and is not thread-safe."""

    def __init__(self) -> None:
        self.urgent = asyncio.Event()
        self.any = asyncio.Event()
        self.count = 0

    def mark(self, *, urgent: bool = True) -> None:
        """Marks a change. A job, pod or node is urgent, because a user waits for it. A reading is
        not.
        """
        self.count += 1
        self.any.set()
        if urgent:
            self.urgent.set()

    def take(self) -> int:
        """Returns the number of marks and resets it."""
        count, self.count = self.count, 0
        self.any.clear()
        self.urgent.clear()
        return count

    async def wait(self, seconds_max: float, settle_seconds: float, soft_seconds: float) -> None:
        """Waits until something changed and settled, or until `seconds_max` have passed.

        Urgent changes settle for `settle_seconds`. Others settle for `soft_seconds` unless an
        urgent one comes meanwhile. A burst of events therefore costs one cycle.
        """
        await _wait(self.any, seconds_max)
        if self.any.is_set() and not self.urgent.is_set():
            await _wait(self.urgent, soft_seconds)
        if self.urgent.is_set():
            await asyncio.sleep(settle_seconds)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
