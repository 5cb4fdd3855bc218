"""The one bell that wakes the scheduling loop: urgent at once, the rest when convenient."""

import asyncio


class Dirty:
    """Counts what changed since the last look. For one event loop; not for several threads."""

    def __init__(self) -> None:
        self.urgent = asyncio.Event()
        self.any = asyncio.Event()
        self.count = 0

    def mark(self, *, urgent: bool = True) -> None:
        """Urgent is what a user waits for: a job, a pod, a node. Measurements can wait a little."""
        self.count += 1
        self.any.set()
        if urgent:
            self.urgent.set()

    def take(self) -> int:
        """How many marks there were; everything is clean afterwards."""
        count, self.count = self.count, 0
        self.any.clear()
        self.urgent.clear()
        return count

    async def wait(self, seconds_max: float, settle_seconds: float, soft_seconds: float) -> None:
        """Until something changed and settled, or until `seconds_max` have passed.

        Urgent changes settle for `settle_seconds`, others for `soft_seconds` unless an urgent one
        comes meanwhile: a burst of events costs one cycle.
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
