"""Full lists: of everything when this process takes the lead, of our own kinds now and then.

The leader before us wrote until a moment ago, and our streams may not have told yet, each to
another extent. A pod without its job's newest status would look like a stray, a job without its
pods like a lost one. So jobs are listed first and pods last, after the Lease is ours.

kopf follows events but does not tell when an object vanished while a stream was broken, nor that a
stream has died. A full list finds both: what is missing goes, and news that kopf should have
brought long ago means that kopf has to start again.
"""

from collections.abc import Callable

from gpujob_operator.act.kube import (
    GPU_NODES,
    JOBS,
    PROFILES,
    QUEUES,
    ApiError,
    Kube,
    Listing,
    ResourceType,
)
from gpujob_operator.act.retry import Retry
from gpujob_operator.handlers.watches import WATCHED
from gpujob_operator.logs import Log
from gpujob_operator.observe.cache import Cache, Kind

log = Log(__name__)

# Jobs come first.
OUR_KINDS: dict[Kind, ResourceType] = {
    Kind.JOB: JOBS,
    Kind.GPU_NODE: GPU_NODES,
    Kind.QUEUE: QUEUES,
    Kind.PROFILE: PROFILES,
}
RELIST_SECONDS = 300.0
GRACE_SECONDS = 10.0
BACKOFF_SECONDS_MAX = 30.0


class Relist:
    def __init__(
        self,
        kube: Kube,
        cache: Cache,
        *,
        silent: Callable[[], None],
        retry: Retry | None = None,
        period_seconds: float = RELIST_SECONDS,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        self._kube = kube
        self._cache = cache
        self._silent = silent
        self._retry = retry or Retry()
        self._period_seconds = period_seconds
        self._grace_seconds = grace_seconds

    async def run(self) -> None:
        """The safety net; runs until cancelled."""
        while True:
            await self._retry.sleep(self._period_seconds)
            try:
                for kind, resource in OUR_KINDS.items():
                    await self._check(kind, resource)
            except ApiError as error:
                log.warning("list failed", error=str(error))

    async def refresh(self) -> None:
        """Brings the whole cache up to now, jobs first and pods last. Repeats until it succeeds.

        A kind whose list failed is listed again after a growing pause; those before it are not.
        """
        for kind, resource in OUR_KINDS.items():
            await self._refresh(kind, resource, "")
        for watched in reversed(WATCHED):
            await self._refresh(watched.kind, watched.resource, watched.label_selector)

    async def _refresh(self, kind: Kind, resource: ResourceType, label_selector: str) -> None:
        failures = 0
        while True:
            try:
                listing = await self._kube.list(resource, label_selector=label_selector)
            except ApiError as error:
                log.warning("list failed", kind=kind.value, failures=failures, error=str(error))
                await self._retry.pause(failures, error, seconds_max=BACKOFF_SECONDS_MAX)
                failures += 1
            else:
                self._cache.resync(kind, listing.items, listing.resource_version)
                return

    async def _check(self, kind: Kind, resource: ResourceType) -> None:
        """News in the list that still is news after the grace period never came as an event."""
        listing = await self._kube.list(resource)
        if self._cache.lacks(kind, listing.items, listing.resource_version):
            await self._retry.sleep(self._grace_seconds)
        if self._take(kind, listing):
            log.warning("events missed", kind=kind.value)
            self._silent()

    def _take(self, kind: Kind, listing: Listing) -> bool:
        missed = self._cache.lacks(kind, listing.items, listing.resource_version)
        self._cache.resync(kind, listing.items, listing.resource_version)
        return missed
