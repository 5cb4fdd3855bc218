"""What kopf's handlers share.

kopf runs in a thread with its own event loop, and the cache belongs to the operator's loop. Every
call that changes the cache therefore goes through `call_soon_threadsafe`.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import kopf
from kubernetes.aio import client

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE, GPUSERVICE
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.store import Mark
from gpujob_operator.read.shapes import Identity
from gpujob_operator.telemetry.metrics import Metrics

KINDS: Mapping[str, Kind] = {
    GPUJOB.plural: Kind.JOB,
    GPUNODE.plural: Kind.GPU_NODE,
    GPUQUEUE.plural: Kind.QUEUE,
    GPUPROFILE.plural: Kind.PROFILE,
    GPUSERVICE.plural: Kind.SERVICE,
}


class Memo:
    """kopf's memo, the same one for every object.

    Create it in the operator's event loop. Its methods may be called from any thread.
    """

    def __init__(self, configuration: client.Configuration, cache: Cache, metrics: Metrics) -> None:
        self._configuration = configuration
        self._cache = cache
        self._loop = asyncio.get_running_loop()
        self._counters = {kind: metrics.watch_events.labels(kind.value) for kind in KINDS.values()}
        self._heard_at = dict.fromkeys(KINDS.values(), time.monotonic())
        self._listed: set[Kind] = set()

    def __copy__(self) -> "Memo":
        """Returns itself, because kopf copies the memo for every object that it tracks."""
        return self

    def put(self, kind: Kind, event: kopf.RawEvent) -> None:
        """Puts an event of kopf into the cache. Its type is None for an object of a list."""
        self._counters[kind].inc()
        manifest = event["object"]
        self._call(self._cache.apply, kind, event["type"], _taken_from(manifest))

    def knows(self, kind: Kind, found: Identity) -> bool:
        """Returns whether the cache has this state of the object or a newer one."""
        return 0 < found.version <= self._cache.version(kind, found.uid)

    def mark(self, kind: Kind) -> Mark:
        """Returns how much of the kind the cache has seen. Call it before a list is requested."""
        return self._cache.mark(kind)

    def listed(
        self, kind: Kind, found: Sequence[Identity], resource_version: str, mark: Mark
    ) -> None:
        """Takes a whole list. Objects that are missing from it are gone."""
        self._listed.add(kind)
        self._call(self._cache.retain, kind, found, resource_version, mark)

    def refused(self, kind: Kind, error: Exception) -> None:
        """Records an object or event that cannot be passed to kopf."""
        self._call(self._cache.unreadable.note, kind.value, "", error)

    def heard(self, kind: Kind) -> None:
        """Records a sign of life from the API server: an answer, an event or a bookmark."""
        self._heard_at[kind] = time.monotonic()

    def silent_seconds(self) -> Mapping[str, float]:
        """Returns the seconds since the last sign of life of each kind."""
        now = time.monotonic()
        return {kind.value: now - heard_at for kind, heard_at in self._heard_at.items()}

    def unlisted(self) -> list[str]:
        """Returns the kinds of which no whole list has arrived yet."""
        return sorted(kind.value for kind in set(KINDS.values()) - self._listed)

    async def connection(self) -> kopf.ConnectionInfo:
        configuration = self._configuration
        value = await configuration.get_api_key_with_prefix("BearerToken", "authorization")
        scheme, _space, token = (value or "").rpartition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme or None,
            token=token or None,
            proxy_url=configuration.proxy,
        )

    def _call(self, function: Any, *arguments: object) -> None:
        # The operator's loop is closed before kopf's thread has ended if kopf takes too long.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)


def _taken_from(manifest: Any) -> dict[str, Any]:
    """Returns the object, and leaves its identity to kopf.

    kopf keeps the last event of each object for `IDLE_SECONDS`. In a burst these were most of the
    process's memory.
    """
    taken = {**manifest, "metadata": dict(manifest["metadata"])}
    for large in taken.keys() - {"apiVersion", "kind", "metadata"}:
        del manifest[large]
    manifest["metadata"].pop("managedFields", None)
    return taken
