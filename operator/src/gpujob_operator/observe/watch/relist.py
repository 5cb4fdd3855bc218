"""Full lists: of every kind when this process becomes the leader, and periodically of the
operator's own kinds.

The previous leader wrote until a moment ago, and the watches may lag behind by different amounts. A
pod without its job's newest status would look like a leftover, and a job without its pods would
look lost. Jobs are therefore listed before pods, after the Lease is acquired, and pods come last.

Nodes come before both. An agent is admitted once its node is listed. Until then it waits or tries
again each second, and a thousand agents take up the time that the lists need.

kopf reports neither an object that vanished while a watch was interrupted, nor a watch that has
died. A full list finds both. Missing objects are removed from the cache, and a change that should
have been reported long ago makes the kind's watch restart (`silent`).
"""

from collections.abc import Callable, Iterable
from functools import partial

from gpujob_api.meta import GROUP
from gpujob_operator.client.api_errors import ApiError, NotFound
from gpujob_operator.client.kube import (
    GPU_NODES,
    GPU_SERVICES,
    JOBS,
    PROFILES,
    QUEUES,
    Kube,
    Listing,
    ResourceType,
)
from gpujob_operator.client.retry import Retry
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.store import Mark
from gpujob_operator.observe.watch.watches import (
    NODES_WATCHED,
    PODS_WATCHED,
    Watch,
    WatchedKind,
)
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# In the order in which a new leader lists them.
LISTED = (
    NODES_WATCHED,
    WatchedKind(Kind.GPU_NODE, GPU_NODES),
    WatchedKind(Kind.JOB, JOBS),
    WatchedKind(Kind.QUEUE, QUEUES),
    WatchedKind(Kind.PROFILE, PROFILES),
    WatchedKind(Kind.SERVICE, GPU_SERVICES),
    PODS_WATCHED,
)
OUR_KINDS = {one.kind: one.resource for one in LISTED if one.resource.group == GROUP}
RELIST_SECONDS = 300.0
GRACE_SECONDS = 10.0
BACKOFF_SECONDS_MAX = 30.0
# Page size of a list that nothing waits for. A process rarely returns the memory of its peak to the
# system, so pages are small.
CHECK_PAGE_OBJECTS = 50
_NOT_DEFINED = (
    "is its CRD missing? crds.install of the chart, or kubectl apply --server-side -f crds/"
)


class Relist:
    """Lists kinds. `listed` is called after each list that a new leader needs."""

    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        *,
        silent: Callable[[Kind], None],
        watches: Iterable[Watch] = (),
        retry: Retry | None = None,
        listed: Callable[[], None] = lambda: None,
        period_seconds: float = RELIST_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._silent = silent
        self._watches = {one.kind: one for one in watches}
        self._retry = retry or Retry()
        self._listed = listed
        self._period_seconds = period_seconds
        self._grace_seconds = grace_seconds

    async def run(self) -> None:
        """Lists periodically until cancelled."""
        while True:
            await self._retry.sleep(self._period_seconds)
            try:
                for kind, resource in OUR_KINDS.items():
                    await self._check(kind, resource)
            except ApiError as error:
                log.warning("list failed", error=str(error))

    async def refresh(self) -> None:
        """Brings the whole cache up to date, nodes first and pods last. Repeats until it succeeds.

        A kind whose list failed is listed again after a growing pause. Kinds before it are not
        listed again. A watch of one of these kinds that needs a list meanwhile continues from this
        one.
        """
        watches = [self._watches[one.kind] for one in LISTED if one.kind in self._watches]
        for watch in watches:
            watch.await_list()
        try:
            for listed in LISTED:
                await self._refresh(listed)
        finally:
            for watch in watches:
                watch.let_list()

    async def _refresh(self, listed: WatchedKind) -> None:
        kind, watch = listed.kind, self._watches.get(listed.kind)
        failures = 0
        while True:
            mark, need = self._cache.mark(kind), watch.need if watch is not None else None
            try:
                listing = await self._kube.list(
                    listed.resource, condense=partial(self._cache.condense, kind, mark)
                )
            except ApiError as error:
                text = f"{error}; {_NOT_DEFINED}" if isinstance(error, NotFound) else str(error)
                log.warning("list failed", kind=kind.value, failures=failures, error=text)
                await self._retry.pause(failures, error, seconds_max=BACKOFF_SECONDS_MAX)
                failures += 1
            else:
                self._cache.resync(kind, listing.items, listing.resource_version, mark)
                if watch is not None:
                    watch.go_on_from(listing.resource_version, need)
                    # The watch lists later needs itself, however long the other kinds take.
                    watch.let_list()
                self._listed()
                return

    async def _check(self, kind: Kind, resource: ResourceType) -> None:
        """Finds changes in a list that no event has brought by the end of the grace period."""
        mark = self._cache.mark(kind)
        condense = partial(self._cache.condense, kind, mark)
        listing = await self._kube.list(
            resource, condense=condense, page_objects=CHECK_PAGE_OBJECTS
        )
        if self._cache.lacks(kind, listing.items, listing.resource_version, mark):
            await self._retry.sleep(self._grace_seconds)
        if self._take(kind, listing, mark):
            log.warning("events missed", kind=kind.value)
            self._silent(kind)

    def _take(self, kind: Kind, listing: Listing, mark: Mark) -> bool:
        version = listing.resource_version
        missed = self._cache.lacks(kind, listing.items, version, mark)
        self._cache.resync(kind, listing.items, version, mark)
        return missed
