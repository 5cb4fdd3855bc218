"""Posts Kubernetes events in the background, best effort. An event never delays another write.

The same event about the same object is posted at most once in `REPEAT_SECONDS`.
"""

import asyncio
from collections.abc import Callable

from cachetools import TTLCache

from gpujob_operator.act.kube import EVENTS, ApiError, Kube, Manifest
from gpujob_operator.logs import Log

log = Log(__name__)

QUEUE_MAX = 1000
REPEAT_SECONDS = 300.0
REMEMBERED_MAX = 10_000


class EventPoster:
    def __init__(self, kube: Kube, monotonic: Callable[[], float]) -> None:
        self._kube = kube
        self._queue: asyncio.Queue[Manifest] = asyncio.Queue(QUEUE_MAX)
        self._posted: TTLCache[tuple[str, str, str], None] = TTLCache(
            REMEMBERED_MAX, REPEAT_SECONDS, timer=monotonic
        )
        self.dropped = 0

    def post(self, event: Manifest) -> bool:
        """Queues an event. Returns False if it was posted recently or the queue is full."""
        key = (
            str(event.get("involvedObject", {}).get("uid")),
            str(event.get("reason")),
            str(event.get("message")),
        )
        if key in self._posted:
            return False
        if self._queue.full():
            self.dropped += 1
            return False
        self._posted[key] = None
        self._queue.put_nowait(event)
        return True

    async def run(self) -> None:
        """Posts until cancelled."""
        while True:
            await self._post_one(await self._queue.get())
            self._queue.task_done()

    async def flush(self, seconds: float) -> None:
        """Waits a limited time for queued events to be posted."""
        try:
            async with asyncio.timeout(seconds):
                await self._queue.join()
        except TimeoutError:
            log.warning("events not posted", count=self._queue.qsize())

    async def _post_one(self, event: Manifest) -> None:
        try:
            await self._kube.create(EVENTS, event, event["metadata"]["namespace"])
        except ApiError as error:
            log.warning("event not posted", reason=event.get("reason"), error=str(error))
