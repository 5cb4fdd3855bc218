"""Posts Kubernetes events in the background, best effort. An event never delays another write.

The same event about the same object is posted at most once in `REPEAT_SECONDS`. An event that was
not stored may be posted again. All events wait if the API server asks to slow down.
"""

import asyncio
from collections.abc import Awaitable, Callable

from cachetools import TTLCache

from gpujob_operator.client.api_errors import ApiError, Throttled
from gpujob_operator.client.kube import EVENTS, Kube, Manifest
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

QUEUE_MAX = 1000
REPEAT_SECONDS = 300.0
REMEMBERED_MAX = 10_000

# UID of the object, reason, message.
_Key = tuple[str, str, str]


class EventPoster:
    def __init__(
        self,
        kube: Kube,
        metrics: Metrics,
        monotonic: Callable[[], float],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._kube = kube
        self._metrics = metrics
        self._sleep = sleep
        self._queue: asyncio.Queue[Manifest] = asyncio.Queue(QUEUE_MAX)
        self._posted: TTLCache[_Key, None] = TTLCache(
            REMEMBERED_MAX, REPEAT_SECONDS, timer=monotonic
        )

    def post(self, event: Manifest) -> bool:
        """Queues an event. Returns False if it was posted recently or the queue is full."""
        key = _key(event)
        if key in self._posted:
            return False
        if self._queue.full():
            self._metrics.events_lost.labels("queue_full").inc()
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
            self._metrics.events_lost.labels("not_posted").inc()
            self._posted.pop(_key(event), None)
            if isinstance(error, Throttled):
                await self._sleep(error.pause_seconds)


def _key(event: Manifest) -> _Key:
    return (
        str(event.get("involvedObject", {}).get("uid")),
        str(event.get("reason")),
        str(event.get("message")),
    )
