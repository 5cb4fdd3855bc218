"""kopf as the event front end: low-level event handlers for the operator's own kinds, except for
GPUJob and GPUNode, of which there are too many (`watches`). Nothing is written.

kopf gets an explicit identity, because it would look up the process's user name and a container's
user has none. It runs in a thread with its own event loop, because kopf cancels every task of its
loop when it ends, and takes over the process's signals. Events cross to the operator's loop by
`deliver`. kopf uses no finalizers, annotations, peering or events of its own, and needs no
permission on CRDs.
"""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import kopf
from kubernetes.aio import client

from gpujob_api.manifest import GPUPROFILE, GPUQUEUE
from gpujob_api.meta import GROUP, VERSION
from gpujob_operator.handlers.session import kopf_session
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

FRONT_KINDS = (GPUQUEUE, GPUPROFILE)
# kopf's own timeout: a stream without a bookmark for this long is dead.
INACTIVITY_SECONDS = 70.0
RESTART_SECONDS = 1.0
RESTART_SECONDS_MAX = 30.0

# Between tries of one request of kopf's.
ERROR_SECONDS = 0.5
ERROR_SECONDS_MAX = 10.0

IDENTITY = "gpujob-operator"
# kopf has recovered once it has run without errors for this long.
STEADY_SECONDS = 60.0

# kind, event type (None in kopf's first listing), object
Deliver = Callable[[str, str | None, Mapping[str, Any]], None]
# kind, problem of the object or event
Refused = Callable[[str, Exception], None]
_KINDS = {resource.plural: resource.kind for resource in FRONT_KINDS}


class NothingStored(kopf.DiffBaseStorage, kopf.ProgressStorage):
    """Storage that keeps kopf from writing to objects and from comparing them: the handlers are
    level-triggered.
    """

    def __init__(self) -> None:
        super().__init__()

    def build(self, **_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return {}

    def fetch(self, **_: Any) -> Any:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: Any) -> Any:
        return essence


class EndlessBackoffs:
    """The pauses between kopf's tries of one request, without end. When kopf has no pause left, it
    gives up the watch of that kind for good. A server that has just started refuses every request
    (403) until it has read its roles.
    """

    def __iter__(self) -> Iterator[float]:
        seconds = ERROR_SECONDS
        while True:
            yield random.uniform(seconds / 2, seconds)  # noqa: S311 - jitter
            seconds = min(ERROR_SECONDS_MAX, 2 * seconds)


class FrontEnd:
    """Starts kopf, restarts it when it ends, and stops it."""

    def __init__(
        self,
        configuration: client.Configuration,
        deliver: Deliver,
        metrics: Metrics,
        refused: Refused = lambda kind, error: None,
    ) -> None:
        self._configuration = configuration
        self._deliver = deliver
        self._refused = refused
        self._heard_at = dict.fromkeys(_KINDS.values(), time.monotonic())
        self._listed: set[str] = set()
        self._metrics = metrics
        self._stop = threading.Event()
        self._stop_kopf: Callable[[], None] = lambda: None
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float = 5.0) -> None:
        self._stop.set()
        self._stop_kopf()
        self._thread.join(seconds)

    def silent_seconds(self) -> Mapping[str, float]:
        """Seconds since anything was heard of each kind. Safe to call from any thread."""
        now = time.monotonic()
        return {kind: now - heard_at for kind, heard_at in self._heard_at.items()}

    def unlisted(self) -> list[str]:
        """The kinds that kopf has not fully listed yet. No event of such a kind can
        have arrived.
        """
        return sorted(set(_KINDS.values()) - self._listed)

    def _heard(self, plural: str, whole_list: bool) -> None:
        kind = _KINDS.get(plural)
        if kind is not None:
            self._heard_at[kind] = time.monotonic()
            if whole_list:
                self._listed.add(kind)

    def restart(self) -> None:
        """Restarts kopf with a fresh list, after a watch went silent."""
        self._metrics.watch_restarts.labels("kopf", "silent").inc()
        self._stop_kopf()

    def _run(self) -> None:
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                asyncio.run(self._operate())
            except (Exception, asyncio.CancelledError) as error:
                say = log.error if failures else log.warning
                say("part failed", part="kopf", problem=f"{type(error).__name__}: {error}"[:300])
            if self._stop.is_set():
                return
            failures = 0 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            self._metrics.watch_restarts.labels("kopf", "ended").inc()
            self._metrics.part_restarts.labels("kopf").inc()
            ceiling = min(RESTART_SECONDS_MAX, RESTART_SECONDS * 2 ** min(failures, 10))
            self._stop.wait(random.uniform(ceiling / 2, ceiling))  # noqa: S311 - jitter

    async def _operate(self) -> None:
        loop, flag = asyncio.get_running_loop(), asyncio.Event()

        def stop_kopf() -> None:
            with contextlib.suppress(RuntimeError):  # The loop has already ended.
                loop.call_soon_threadsafe(flag.set)

        self._stop_kopf = stop_kopf
        if self._stop.is_set():
            return
        await kopf.operator(
            registry=self.registry(),
            settings=kopf_settings(),
            # kopf exports the argument but not its type.
            identity=cast("Any", IDENTITY),
            standalone=True,
            clusterwide=True,
            stop_flag=flag,
        )

    def registry(self) -> kopf.OperatorRegistry:
        """The handlers. Each one only puts its event into the cache."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry, retries=3, backoff=1.0)(self._login)
        for resource in FRONT_KINDS:
            kopf.on.event(GROUP, VERSION, resource.plural, registry=registry)(
                self._handler(resource.kind)
            )
        return registry

    def _handler(self, kind: str) -> Any:
        counter = self._metrics.watch_events.labels(kind)

        async def event_came(event: Mapping[str, Any], **_: Any) -> None:
            counter.inc()
            self._deliver(kind, event["type"], event["object"])

        return event_came

    async def _login(self, **_: Any) -> kopf.AiohttpSession:
        """The operator's own connection. kopf asks for it again whenever the API server answers
        401.
        """
        connection = await self._connection()

        def refused(plural: str, error: Exception) -> None:
            self._refused(_KINDS.get(plural, plural), error)

        session = kopf_session(connection, self._heard, refused)
        return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)

    async def _connection(self) -> kopf.ConnectionInfo:
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


def kopf_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.posting.loggers = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.watching.inactivity_timeout = INACTIVITY_SECONDS
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.persistence.progress_storage = NothingStored()
    settings.persistence.diffbase_storage = NothingStored()
    return settings
