"""List-and-watch of Pods, Nodes and PersistentVolumes into the cache, without end. kopf follows the
project's own kinds (`handlers`).

A stream that ends or breaks is continued from its last resourceVersion, however long the API server
is overloaded (429) or away. If that version is too old (410), or the stream was silent for longer
than the bookmark interval allows, everything is listed again. While somebody else lists every kind,
a watch that needs a list takes theirs: ten thousand objects are not asked for twice.

Pods and nodes of the whole cluster are followed, most of which are not ours. An event takes a
fraction of the processor time here that it takes in kopf, which has a queue and a task for every
object, and remembers each.
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
    label_selector: str = ""


# No decision waits for a list of them: what is not known of a volume, a refusal shows.
VOLUMES_WATCHED = WatchedKind(Kind.VOLUME, VOLUMES)
# All pods, not only ours: what others request on our nodes is not free.
PODS_WATCHED = WatchedKind(Kind.POD, PODS)
NODES_WATCHED = WatchedKind(Kind.NODE, NODES, "gpujob.dev/managed=true")
# All kinds that are followed without kopf.
FOLLOWED = (VOLUMES_WATCHED, PODS_WATCHED, NODES_WATCHED)

_CHANGES = frozenset({"ADDED", "MODIFIED", "DELETED"})


class Watch:
    """One list-and-watch. `alive_at` is the monotonic time of the last sign of life. `listed` is
    true once a whole list has arrived.
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
        # Where the stream goes on; "": from a list.
        self._version = ""
        self._distrusted = False
        # Ends the list that is being taken, or the stream that is being followed.
        self._limit: asyncio.Timeout | None = None
        # Ends the list that is being taken, in favour of another one.
        self._list_limit: asyncio.Timeout | None = None
        # Somebody else lists, until `let_list`.
        self._may_list = True
        self._woken = asyncio.Event()
        # One need of a list, while there is one: a list that was begun before it will not do.
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
        """Ends the stream, and lists again. After a restore the stream may be one from a version
        that is still to come: the API server says nothing in it, and does not end it.
        """
        self._distrusted = True
        _end(self._limit)

    def await_list(self) -> None:
        """Somebody else lists every kind: this watch lists nothing until `let_list`, and gives up
        the list that it is taking."""
        self._may_list = False
        _end(self._list_limit)

    def let_list(self) -> None:
        """Ends `await_list`."""
        self._may_list = True
        self._woken.set()

    def go_on_from(self, version: str, need: object | None) -> None:
        """The cache has a list of this version. `need` is what `need` was when the list was asked
        for: a watch that has begun to need a list since takes another one."""
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
                # `list` reads pages as small as necessary.
                self._failures += 1
                self._version, reason = "", "too_large"
                self._interrupted(error)
            except ApiError as error:
                self._failures += 1
                failure, reason = error, "error"
                # A server that is overloaded or away has not lost what comes next, and a list
                # would cost it more than all that. After repeated refusals a list is safer.
                refused = not isinstance(error, Throttled | Unavailable)
                if refused and self._failures >= 3:
                    self._version = ""
                self._interrupted(error)
            self._metrics.watch_restarts.labels(self._watched.kind.value, reason).inc()
            await self._pause(failure)

    def _interrupted(self, error: ApiError) -> None:
        log.warning("watch interrupted", kind=self._watched.kind.value, error=str(error))

    async def _begin(self) -> None:
        """Returns with a version from which the stream goes on."""
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
        """Returns without a version if somebody else begins to list."""
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
            watched.resource,
            label_selector=watched.label_selector,
            condense=partial(self._cache.condense, watched.kind, mark),
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
        """Until the stream ends or breaks. The next one goes on after the last event of this."""
        watched = self._watched
        counter = self._metrics.watch_events.labels(watched.kind.value)
        stream = self._kube.watch(
            watched.resource, self._version, label_selector=watched.label_selector
        )
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
                # Not held until the next event comes.
                del event, manifest

    async def _pause(self, failure: ApiError | None) -> None:
        """Waits for a short time after a normal end, longer after an error, and as long as the API
        server asks. Jitter keeps clients out of step.
        """
        ceiling = min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2 ** min(self._failures, 16))
        await self._sleep(self._uniform(ceiling / 2, ceiling) + asked_seconds(failure))


def restart_of(watches: Iterable[Watch], others: Callable[[], None]) -> Callable[[Kind], None]:
    """Restarts the watch of a kind; for a kind without one of these, calls `others`."""
    restarts = {one.kind: one.restart for one in watches}
    return lambda kind: restarts.get(kind, others)()


def _end(limit: asyncio.Timeout | None) -> None:
    """Ends what is being done within the limit, unless it has ended already."""
    if limit is not None and not limit.expired():
        limit.reschedule(asyncio.get_running_loop().time())


def _resource_version(manifest: object) -> str:
    return text(mapping(mapping(manifest).get("metadata")).get("resourceVersion"))
