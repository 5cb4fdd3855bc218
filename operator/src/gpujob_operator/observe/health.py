"""/healthz, /readyz and /metrics of the operator.

Alive means: the loop completed a cycle lately and the watches showed a sign of life. A watch that
dies silently is a known failure of every client; the kubelet then starts the process again.
"""

from collections.abc import Callable, Mapping

from aiohttp import web

from gpujob_operator.metrics import CONTENT_TYPE, Metrics

# An age in seconds, and above which it is a failure.
Ages = Callable[[], Mapping[str, tuple[float, float]]]


class HealthServer:
    def __init__(self, metrics: Metrics, ages: Ages, is_ready: Callable[[], bool]) -> None:
        self._metrics = metrics
        self._ages = ages
        self._is_ready = is_ready

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_text)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        ages = self._ages()
        late = {name: age for name, (age, limit) in ages.items() if age > limit}
        body = {
            "healthy": not late,
            "ageSeconds": {name: round(age, 1) for name, (age, _) in ages.items()},
        }
        return web.json_response(body, status=503 if late else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._is_ready()
        return web.json_response({"ready": ready}, status=200 if ready else 503)

    async def _metrics_text(self, _: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
