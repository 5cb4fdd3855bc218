"""List-and-watch of Pods, Nodes and PersistentVolumes into the cache, without end.

kopf follows the project's own kinds (`handlers`). A stream that ends or breaks is continued from
its last resourceVersion, however long the API server is overloaded (429) or unreachable. If that
version is too old (410), or the stream was silent for longer than the bookmark interval allows,
everything is listed again. While a new leader lists every kind, a watch that needs a list uses that
one, so that ten thousand objects are not requested twice.

Pods and nodes of the whole cluster are followed, and most of them are not managed. An event takes a
fraction of the CPU time here that it takes in kopf, which has a queue and a task for every object
and remembers each.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial

from gpujob_operator.client.api_errors import (
    ApiError,
    Gone,
    Silent,
    Throttled,
    TooLarge,
    Unavailable,
)
from gpujob_operator.client.kube import NODES, PODS, VOLUMES, Kube, ResourceType
from gpujob_operator.client.retry import asked_seconds
from gpujob_operator.decide.model.backoff import backoff_seconds
from gpujob_operator.jitter import jittered
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.unreadable import BadLine
from gpujob_operator.read.shapes import mapping, text
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

BACKOFF_SECONDS = 0.2
BACKOFF_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class WatchedKind:
    kind: Kind
    resource: ResourceType


# No decision waits for a list of volumes. A refusal shows what is unknown about a volume.
VOLUMES_WATCHED = WatchedKind(Kind.VOLUME, VOLUMES)
# All pods, not only workers, because resources that other pods request on managed nodes are not
# free.
PODS_WATCHED = WatchedKind(Kind.POD, PODS)
# All nodes, not only managed ones, because a watch that selects by label reports a node that loses
# the label as deleted, although it is there and its pods run.
NODES_WATCHED = WatchedKind(Kind.NODE, NODES)
# All kinds that are followed without kopf.
FOLLOWED = (VOLUMES_WATCHED, PODS_WATCHED, NODES_WATCHED)

_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class Watch:
    """One list-and-watch. `alive_at` is the monotonic time of the last sign of life.

    `listed` is True once a complete list has arrived.
    """

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        metrics: Metrics,
        watched: WatchedKind,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._metrics = metrics
        self._watched = watched
        self._sleep = sleep
        self._uniform = uniform
        self._failures = 0
        # The version from which the stream continues. "": from a list.
        self._version = ""
        self._distrusted = False
        # Ends the list or the stream in progress.
        self._limit: asyncio.Timeout | None = None
        # Ends the list in progress in favor of another one.
        self._list_limit: asyncio.Timeout | None = None
        # False while another part lists, until `let_list`.
        self._may_list = True
        self._woken = asyncio.Event()
        # Identifies one need of a list while it exists. A list that was requested before it does
        # not satisfy it.
        self.need: object | None = None
        self.alive_at = time.monotonic()
        self.listed = False

    @property
    def name(self) -> str:
        return self._watched.kind.value

    @property
    def kind(self) -> Kind:
        return self._watched.kind

    def restart(self) -> None:
        """Ends the stream and lists again.

        After a restore the stream may continue from a version in the future. The API server then
        sends nothing and does not end the stream.
        """
        self._distrusted = True
        _end(self._limit)

    def await_list(self) -> None:
        """Stops listing until `let_list`, because another part lists every kind.

        A list in progress is given up.
        """
        self._may_list = False
        _end(self._list_limit)

    def let_list(self) -> None:
        """Ends `await_list`."""
        self._may_list = True
        self._woken.set()

    def go_on_from(self, version: str, need: object | None) -> None:
        """Continues from a list of this version, which the cache has.

        `need` is the value of `need` when the list was requested. A watch that has begun to need a
        list since then takes another one.
        """
        if need is None or need is not self.need:
            return
        self._version, self.listed = version, True
        self.alive_at = time.monotonic()
        self._woken.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            reason, failure = "ended", None
            self._version = "" if self._distrusted else self._version
            try:
                await self._until_restarted(self._begin)
                if self._version and not self._distrusted:
                    await self._until_restarted(self._follow)
                self._failures = 0
            except Gone:
                self._version, reason = "", "gone"
            except Silent as error:
                self._version, reason = "", "silent"
                self._interrupted(error)
            except TooLarge as error:
                # `list` reads pages that are as small as necessary.
                self._failures += 1
                self._version, reason = "", "too_large"
                self._interrupted(error)
            except ApiError as error:
                self._failures += 1
                failure, reason = error, "error"
                # A server that is overloaded or unreachable has not lost the following events, and
                # a list would cost it more than all of them. A list is safer after repeated
                # refusals.
                refused = not isinstance(error, Throttled | Unavailable)
                if refused and self._failures >= 3:
                    self._version = ""
                self._interrupted(error)
            self._metrics.watch_restarts.labels(self._watched.kind.value, reason).inc()
            await self._pause(failure)

    def _interrupted(self, error: ApiError) -> None:
        log.warning("watch interrupted", kind=self._watched.kind.value, error=str(error))

    async def _begin(self) -> None:
        """Returns once there is a version from which the stream can continue."""
        if self._version:
            return
        self._distrusted, self.need = False, object()
        try:
            while not self._version:
                self._woken.clear()
                await (self._list_here() if self._may_list else self._woken.wait())
        finally:
            self.need = None

    async def _list_here(self) -> None:
        """Lists. Returns without a version if another part begins to list."""
        try:
            async with asyncio.timeout(None) as self._list_limit:
                self._version = await self._list()
        except TimeoutError:
            log.info("list left to the leader's", kind=self.name)
        finally:
            self._list_limit = None

    async def _list(self) -> str:
        watched = self._watched
        mark = self._cache.mark(watched.kind)
        listing = await self._kube.list(
            watched.resource, condense=partial(self._cache.condense, watched.kind, mark)
        )
        self.alive_at = time.monotonic()
        self._cache.resync(watched.kind, listing.items, listing.resource_version, mark)
        self.listed = True
        return listing.resource_version

    async def _until_restarted(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(None) as self._limit:
                await work()
        except TimeoutError:
            self._version = ""
        finally:
            self._limit = None

    async def _follow(self) -> None:
        """Follows until the stream ends or breaks. The next stream continues after its
        last event.
        """
        watched = self._watched
        counter = self._metrics.watch_events.labels(watched.kind.value)
        stream = self._kube.watch(watched.resource, self._version)
        async with aclosing(stream):
            async for event in stream:
                self.alive_at, self._failures = time.monotonic(), 0
                manifest, kind = event["object"], event["type"]
                if kind in _CHANGES:
                    counter.inc()
                    self._cache.apply(watched.kind, kind, manifest)
                elif kind != "BOOKMARK":
                    problem = BadLine(str(event.get("problem", "an unknown type of event")))
                    self._cache.unreadable.note(watched.kind.value, "", problem)
                self._version = _resource_version(manifest) or self._version
                # Frees the objects before the next event arrives.
                del event, manifest

    async def _pause(self, failure: ApiError | None) -> None:
        """Waits a short time after a normal end, longer after an error, and as long as the server
        asks.

        Jitter keeps clients out of step.
        """
        pause = backoff_seconds(BACKOFF_SECONDS, self._failures, BACKOFF_SECONDS_MAX)
        await self._sleep(jittered(pause, self._uniform) + asked_seconds(failure))


def restart_of(watches: Iterable[Watch], others: Callable[[], None]) -> Callable[[Kind], None]:
    """Restarts the watch of a kind. Calls `others` for a kind without one of these watches."""
    restarts = {one.kind: one.restart for one in watches}
    return lambda kind: restarts.get(kind, others)()


def _end(limit: asyncio.Timeout | None) -> None:
    """Ends the work within the limit, unless it has already ended."""
    if limit is not None and not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


def _resource_version(manifest: object) -> str:
    return text(mapping(mapping(manifest).get("metadata")).get("resourceVersion"))
