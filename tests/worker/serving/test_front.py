"""A drain loses no request that was accepted, refuses late ones, and ends in time."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import torch

from gpujob_api.serving import Batching, BatchingPolicy, BatchTime, Objective, ServingReport
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.front import Ending, Front
from gpujob_worker.serving.lifecycle import Lifecycle, Stage
from gpujob_worker.serving.listening import bound_socket
from gpujob_worker.serving.server import Server, Service
from tests.worker.serving.served import SIGNATURE, SlowBackend, request_of
from tests.worker.serving.test_parking import CountedMover

QUEUED = 40


@dataclass
class Running:
    """A server with a batcher and a backend that waits for the test."""

    backend: SlowBackend
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    stops: bool = False
    # Seconds from the beginning of the end.
    grace_seconds: float = 100.0
    delay_seconds: float = 0.0
    _begun: float = 0.0

    def begins(self) -> None:
        self._begun = time.monotonic()

    def remaining_seconds(self) -> float:
        return self.grace_seconds - (time.monotonic() - self._begun)


@dataclass
class Served:
    running: Running
    server: Server
    batcher: Batcher
    session: aiohttp.ClientSession
    url: str
    ended: "asyncio.Task[bool]"

    async def infer(self, value: float) -> tuple[int, Any]:
        async with self.session.post(self.url, json=request_of([value, value])) as response:
            return response.status, await response.json()


@asynccontextmanager
async def front(running: Running) -> AsyncGenerator[Served]:
    # A long objective, so that nothing is refused, and small batches, so that there are many.
    batcher = Batcher(
        running.backend,
        Objective(latency_milliseconds=3_600_000),
        Batching(BatchingPolicy.IMMEDIATE, max_size=4),
        prior=BatchTime(1.0, 1.0),
    )
    service = Service("m", SIGNATURE, batcher.submit, ServingReport, lambda: True, batcher.arrival)
    server = Server(service, running.lifecycle)
    ending = Ending(
        requested=lambda: running.stops,
        remaining_seconds=running.remaining_seconds,
        drain=batcher.drain,
        abandon=batcher.close,
        begins=running.begins,
        delay_seconds=lambda: running.delay_seconds,
    )
    started = asyncio.Event()
    listener = bound_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v2/models/m/infer"
    batcher.start()
    serving = Front(server, running.lifecycle, ending).run(listener, started.set)
    ended = asyncio.create_task(serving)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.wait_for(started.wait(), 60)
        try:
            yield Served(running, server, batcher, session, url, ended)
        finally:
            running.stops = True
            running.backend.release.set()
            await asyncio.wait({ended}, timeout=60)
            batcher.close()
            assert ended.cancelled() or ended.exception() is None


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_full_queue_is_answered_and_later_requests_are_refused() -> None:
    running = Running(SlowBackend())
    async with front(running) as found:
        accepted = [asyncio.create_task(found.infer(n)) for n in range(QUEUED)]
        await until(lambda: found.server.intake.requests == QUEUED)
        await until(lambda: not found.server.intake.arriving)
        running.stops = True
        await until(lambda: running.lifecycle.stage is Stage.REFUSING)
        status, answer = await found.infer(1.0)
        assert (status, "this process ends" in answer["error"]) == (503, True)
        assert not found.ended.done()
        running.backend.release.set()
        answers = await asyncio.gather(*accepted)
        assert await asyncio.wait_for(found.ended, 60)
    for number, (status, answer) in enumerate(answers):
        assert (status, answer["outputs"][0]["data"]) == (200, [2.0 * number] * 2)
    assert found.batcher.statistics().answered == QUEUED


async def test_requests_are_accepted_during_the_delay() -> None:
    running = Running(SlowBackend(), grace_seconds=100.0, delay_seconds=3600.0)
    running.backend.release.set()
    async with front(running) as found:
        running.stops = True
        await until(lambda: running.lifecycle.stage is Stage.DRAINING)
        assert (await found.infer(1.0))[0] == 200
        assert running.lifecycle.stage is Stage.DRAINING
        # The delay takes at most half of the grace; the test does not wait for it.
        found.ended.cancel()


async def test_a_batch_that_hangs_ends_the_drain_at_the_deadline() -> None:
    running = Running(SlowBackend(), grace_seconds=1.0)
    async with front(running) as found:
        waiting = asyncio.create_task(found.infer(1.0))
        await until(running.backend.begun.is_set)
        queued = asyncio.create_task(found.infer(2.0))
        await until(lambda: found.batcher.statistics().queued == 1)
        running.stops = True
        assert not await asyncio.wait_for(asyncio.shield(found.ended), 60)
        assert (await queued)[0] == 503
        with pytest.raises(aiohttp.ClientError):
            await waiting


async def test_a_body_on_its_way_is_waited_for() -> None:
    running = Running(SlowBackend())
    running.backend.release.set()
    async with front(running) as found:
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
        port = int(found.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:10])
        await until(lambda: found.server.intake.arriving)
        running.stops = True
        await until(lambda: running.lifecycle.stage is Stage.REFUSING)
        writer.write(body[10:])
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert b" 200 " in answer.splitlines()[0]
        assert b"Connection: close" in answer
        assert await asyncio.wait_for(found.ended, 60)


async def test_a_request_whose_body_is_on_its_way_is_answered_before_it_parks() -> None:
    running, mover = Running(SlowBackend()), CountedMover()
    running.backend.release.set()
    async with front(running) as found:
        found.batcher.parks_by(mover, lambda: None)
        body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}'
        port = int(found.url.split(":")[2].split("/")[0])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body[:10])
        await until(lambda: found.server.intake.arriving)
        found.batcher.park(True)
        # Others are answered meanwhile.
        assert (await found.infer(3.0))[0] == 200
        assert mover.moves == []
        writer.write(body[10:])
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
        writer.close()
        await until(lambda: found.batcher.is_parked)
        status, answer = await found.infer(1.0)
        assert (status, answer["error"].split(":")[0]) == (503, "parked")
        found.batcher.park(False)
        await until(lambda: not found.batcher.is_parked)
        await until(lambda: found.batcher.statistics().parked_seconds is None)
        assert (await found.infer(1.0))[0] == 200
    assert mover.moves == ["park", "wake"]


async def test_a_poisoned_request_fails_alone() -> None:
    poison = SlowBackend(lambda inputs: bool(torch.any(inputs["x"] == 13)))
    async with front(Running(poison)) as found:
        first = asyncio.create_task(found.infer(0))
        await until(poison.begun.is_set)
        # All of these are in one batch.
        others = [asyncio.create_task(found.infer(n)) for n in (1, 13, 2, 3)]
        await until(lambda: found.batcher.statistics().queued == 4)
        poison.release.set()
        statuses = [(await answer)[0] for answer in (first, *others)]
    assert statuses == [200, 200, 500, 200, 200]


async def test_the_port_is_closed_afterwards() -> None:
    running = Running(SlowBackend())
    running.backend.release.set()
    async with front(running) as found:
        running.stops = True
        assert await asyncio.wait_for(found.ended, 60)
        with pytest.raises(aiohttp.ClientConnectorError):
            await found.infer(1.0)


def test_a_port_in_use_is_named_with_the_next_step() -> None:
    with bound_socket("127.0.0.1", 0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is in use; set another one, GPUJOB_SERVI"):
            bound_socket("127.0.0.1", port)


def test_an_address_of_another_host_is_named() -> None:
    with pytest.raises(OSError, match=r"cannot listen on 192.0.2.1, port 0: .*; GPUJOB_SERVING_HO"):
        bound_socket("192.0.2.1", 0)


def test_without_a_host_both_kinds_of_loopback_reach_the_socket() -> None:
    with bound_socket("", 0) as listener:
        listener.listen()
        port = listener.getsockname()[1]
        hosts = ["127.0.0.1"] + (["::1"] if listener.family == socket.AF_INET6 else [])
        for host in hosts:
            socket.create_connection((host, port), timeout=60).close()
