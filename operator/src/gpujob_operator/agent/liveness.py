"""Reports to the kubelet whether the agent still completes its readings."""

from collections.abc import Callable

from aiohttp import web


class Liveness:
    """`/healthz` returns 503 once the last step, good or bad, ended longer ago than the limit."""

    def __init__(self, limit_seconds: float, monotonic: Callable[[], float]) -> None:
        self._limit_seconds = limit_seconds
        self._monotonic = monotonic
        self._last = monotonic()

    def beat(self) -> None:
        self._last = self._monotonic()

    def application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        return application

    async def _healthz(self, _: web.Request) -> web.Response:
        age = self._monotonic() - self._last
        late = age > self._limit_seconds
        text = f"last reading {age:.1f} s ago (limit {self._limit_seconds:.0f} s)"
        return web.Response(status=503 if late else 200, text=text)
