"""/healthz, /readyz and /metrics of the operator.

The operator is alive if the loop completed a cycle recently, the watches of every kind showed a
sign of life, and no part has been failing for long. Watches can die silently in any client. The
kubelet then restarts the process.

Readiness has two meanings. `/readyz` is for the leader with a complete cache, one of several
replicas. `/readyz/events` is for any replica that receives events of every kind, for which a
rollout waits.
"""

from collections.abc import Callable, Mapping

from aiohttp import web

from gpujob_operator.telemetry.metrics import CONTENT_TYPE, Metrics

# An age in seconds, and the limit above which it is a failure.
Ages = Callable[[], Mapping[str, tuple[float, float]]]
# What readiness still waits for, in words. Empty when ready.
Missing = Callable[[], list[str]]


class HealthServer:
    def __init__(self, metrics: Metrics, ages: Ages, unheard: Missing, not_acting: Missing) -> None:
        self._metrics = metrics
        self._ages = ages
        self._unheard = unheard
        self._not_acting = not_acting

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/readyz/events", self._readyz_events)
        application.router.add_get("/metrics", self._metrics_text)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        ages = self._ages()
        late = sorted(name for name, (age, limit) in ages.items() if age > limit)
        body = {
            "healthy": not late,
            "late": late,
            "ageSeconds": {name: round(age, 1) for name, (age, _) in ages.items()},
        }
        return web.json_response(body, status=503 if late else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        return _readiness([*self._unheard(), *self._not_acting()])

    async def _readyz_events(self, _: web.Request) -> web.Response:
        return _readiness(self._unheard())

    async def _metrics_text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})


def _readiness(missing: list[str]) -> web.Response:
    body = {"ready": not missing, "waitingFor": missing}
    return web.json_response(body, status=503 if missing else 200)
