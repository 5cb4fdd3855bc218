"""kopf's watches of the project's own kinds, as a model: events lag, repeat and get lost, until
kopf lists the kind again.
"""

from collections.abc import Callable

from gpujob_operator.client.kube import Manifest
from gpujob_operator.handlers.memo import KINDS
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.read.shapes import identity
from tests.simulation.api_server import AnyKind, ApiServer
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults

KOPF_KINDS = tuple(KINDS.values())


class KopfWatches:
    """Feeds one process's cache. `failed` is told of what ends the process."""

    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        loop: VirtualLoop,
        faults: Faults,
        cache: Cache,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._clock = clock
        self._api = api
        self._loop = loop
        self._faults = faults
        self._cache = cache
        self._failed = failed
        self._delivered: dict[Kind, float] = dict.fromkeys(KOPF_KINDS, 0.0)
        self._broken_until: dict[Kind, float] = dict.fromkeys(KOPF_KINDS, 0.0)
        api.watchers.append(self._watch)
        api.restored.append(self._restored)

    def start(self) -> None:
        for kind in KOPF_KINDS:
            self._relist(kind)

    def restart(self) -> None:
        for kind in KOPF_KINDS:
            self._loop.call_later(1.0, self._relist, kind)

    def cut(self) -> None:
        """The process is gone."""
        if self._watch in self._api.watchers:
            self._api.watchers.remove(self._watch)
            self._api.restored.remove(self._restored)

    def _watch(self, kind: AnyKind, event_type: str, manifest: Manifest) -> None:
        now = self._clock.now
        if kind not in KOPF_KINDS or self._broken_until[kind] > now:
            return
        if self._faults.breaks_watch(self._clock.random):
            self._break(kind)
            return
        at = max(self._delivered[kind], now + self._faults.watch_delay(self._clock.random))
        self._delivered[kind] = at
        of = self._api.restores
        self._loop.call_at(at, self._deliver, of, kind, event_type, manifest)
        if self._faults.repeats_event(self._clock.random):
            late = at + self._clock.random.uniform(0, 5)
            self._loop.call_at(late, self._deliver, of, kind, event_type, manifest)

    def _deliver(self, of: int, kind: Kind, event_type: str | None, manifest: Manifest) -> None:
        if of != self._api.restores:
            # Events of a state that was restored away are never delivered.
            return
        try:
            self._cache.apply(kind, event_type, manifest)
        except Exception as error:
            self._failed(error)

    def _break(self, kind: Kind) -> None:
        """Events are lost until a full list finds what they said."""
        seconds = self._clock.random.uniform(0.2, self._faults.watch_break_seconds)
        self._broken_until[kind] = self._clock.now + seconds
        self._loop.call_later(seconds, self._relist, kind)

    def _restored(self) -> None:
        """kopf goes on from a version that is still to come, and is deaf until it restarts."""
        self._broken_until = dict.fromkeys(KOPF_KINDS, float("inf"))

    def _relist(self, kind: Kind) -> None:
        """A consistent read. What it lacks is applied at once, as by kopf's session; the objects
        that the cache does not know come through kopf, a moment later each.
        """
        self._broken_until[kind] = min(self._broken_until[kind], self._clock.now)
        cache, of = self._cache, self._api.restores
        mark, manifests = cache.mark(kind), self._api.list(kind)
        found = [identity(one) for one in manifests]
        news = [
            manifest
            for one, manifest in zip(found, manifests, strict=True)
            if not 0 < one.version <= cache.version(kind, one.uid)
        ]
        try:
            cache.retain(kind, found, str(self._api.version), mark)
        except Exception as error:
            self._failed(error)
        for manifest in news:
            at = max(self._delivered[kind], self._clock.now)
            at += self._faults.watch_delay(self._clock.random)
            self._delivered[kind] = at
            self._loop.call_at(at, self._deliver, of, kind, None, manifest)
