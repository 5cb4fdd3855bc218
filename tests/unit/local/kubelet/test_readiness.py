"""Readiness probes of process nodes, as a kubelet makes them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from gpujob_local.kubelet.readiness import Probe, keep_probing, probe_of
from tests.harness.waiting import eventually

HOST = "127.0.0.1"


@asynccontextmanager
async def server(answers: list[int]) -> AsyncGenerator[int]:
    """Answers with the first status of the list, always."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=answers[0])

    application = web.Application()
    application.router.add_get("/ready", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def probe(port: int, path: str | None = "/ready", **fields: Any) -> Probe:
    given: dict[str, Any] = {
        "period_seconds": 0.01,
        "timeout_seconds": 5.0,
        "failure_threshold": 1,
    } | fields
    return Probe(
        port=port, path=path, host=HOST, initial_delay_seconds=0.0, success_threshold=1, **given
    )


async def test_a_container_becomes_ready_and_unready_with_its_answers() -> None:
    answers, seen = [503], list[bool]()
    async with server(answers) as port:
        probing = asyncio.create_task(keep_probing(probe(port), seen.append))
        await asyncio.sleep(0.1)
        assert seen == []
        answers[0] = 200
        await eventually(lambda: seen == [True])
        answers[0] = 503
        await eventually(lambda: seen == [True, False])
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing


async def test_a_port_that_is_closed_is_not_ready() -> None:
    async with server([200]) as port:
        assert await probe(port).succeeds()
        assert await probe(port, None).succeeds()
    assert not await probe(port).succeeds()
    assert not await probe(port, None).succeeds()


async def test_a_server_that_does_not_answer_in_time_is_not_ready() -> None:
    probed = asyncio.Event()

    async def silent(_request: web.Request) -> web.Response:
        await probed.wait()
        return web.Response()

    application = web.Application()
    application.router.add_get("/ready", silent)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0)
    await site.start()
    try:
        assert not await probe(runner.addresses[0][1], timeout_seconds=0.5).succeeds()
    finally:
        probed.set()
        await runner.cleanup()


def test_the_fields_and_defaults_are_those_of_kubernetes() -> None:
    container: dict[str, Any] = {
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/x", "port": "http"}, "failureThreshold": 1},
    }
    found = probe_of(container, "127.1.2.3")
    assert found == Probe(8000, "/x", "127.1.2.3", 0.0, 10.0, 1.0, 1, 1)
    tcp = probe_of({"readinessProbe": {"tcpSocket": {"port": 9}, "periodSeconds": 2}}, HOST)
    assert tcp is not None
    assert (tcp.port, tcp.path, tcp.period_seconds, tcp.failure_threshold) == (9, None, 2.0, 3)
    assert probe_of({}, HOST) is None


@pytest.mark.parametrize("value", [0, None])
def test_zero_is_the_default_too(value: int | None) -> None:
    found = probe_of({"readinessProbe": {"tcpSocket": {"port": 9}, "periodSeconds": value}}, HOST)
    assert found is not None
    assert found.period_seconds == 10.0
