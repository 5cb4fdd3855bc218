"""The gate with real sockets: it holds, forwards, refuses and ends."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import ClientConnectorError, ClientError, ClientPayloadError
from yarl import URL

from gpujob_api.gate import (
    ENV_GATE_HOST,
    ENV_GATE_PORT,
    ENV_GATE_TOKEN_FILE,
    ENV_GATE_URL,
    GATE_READY_PATH,
    GateReply,
)
from gpujob_operator.gate.process import GateOptions
from gpujob_operator.gate.replicas import HoldLimits
from gpujob_operator.gate.reporter import Destination
from tests.harness.gates import LIMIT_SECONDS, GateStage, Replica, gate, serving, until

OPTIONS = GateOptions("127.0.0.1", 0, Destination("", Path()), delay_seconds=0.0)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncGenerator[GateStage]:
    async with gate(tmp_path) as found:
        yield found


@pytest.fixture
async def replica() -> AsyncGenerator[Replica]:
    async with serving(Replica()) as found:
        found.go.set()
        yield found


async def test_a_request_is_held_until_a_replica_is_ready(
    stage: GateStage, replica: Replica
) -> None:
    sent = stage.later(body=b"image")
    report = await stage.operator.reported(held=1)
    assert (report.forwarded, report.idle_seconds) == (0, 0.0)
    assert not sent.done()
    stage.ready(replica)
    assert await sent == (201, b"image")
    assert (await stage.operator.reported(held=0)).forwarded == 0
    assert stage.operator.tokens == {"Bearer secret"}


async def test_the_first_held_request_is_reported_at_once(stage: GateStage) -> None:
    await until(lambda: stage.operator.reports)
    await asyncio.sleep(0)
    before = len(stage.operator.reports)
    sent = stage.later()
    await until(lambda: len(stage.operator.reports) > before)
    assert stage.operator.reports[before].held == 1
    sent.cancel()


async def test_a_request_waits_for_the_cold_start_and_no_longer(stage: GateStage) -> None:
    stage.ready(cold_start_seconds=0.3)
    async with stage.client.post(f"{stage.url}/infer", data=b"x") as answer:
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        assert "no replica was ready within" in (await answer.json())["error"]


async def test_without_a_cold_start_no_request_is_held(stage: GateStage) -> None:
    stage.ready(cold_start_seconds=0.0)
    await stage.operator.reported(held=0)
    await stage.operator.reported(held=0)
    assert (await stage.post())[0] == 503
    assert all(report.held == 0 for report in stage.operator.reports)


async def test_more_requests_than_the_limit_are_refused(tmp_path: Path, replica: Replica) -> None:
    limits = HoldLimits(requests_max=2, bytes_max=1000)
    async with gate(tmp_path, replace(OPTIONS, limits=limits)) as stage:
        held = [stage.later(body=b"a" * 400), stage.later(body=b"b" * 400)]
        await stage.operator.reported(held=2)
        status, body = await stage.post()
        assert status == 503
        assert b"2 requests wait" in body
        held.pop().cancel()
        await stage.operator.reported(held=1)
        status, body = await stage.post(body=b"c" * 700)
        assert status == 503
        assert b"400 bytes of requests wait" in body
        stage.ready(replica)
        assert (await held[0])[0] == 201


async def test_everything_but_the_headers_of_a_connection_is_passed_on(
    stage: GateStage, replica: Replica
) -> None:
    stage.ready(replica)
    headers = {
        "X-Own": "1",
        "TE": "trailers",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "2",
        "Accept-Encoding": "br",
        "User-Agent": "curl",
    }
    target = "/v2/models/a%2Fb/infer?x=%20&y=1"
    url = URL(stage.url + target, encoded=True)
    async with stage.client.put(url, data=b"12", headers=headers) as answer:
        assert answer.status == 201
        assert answer.headers["X-Model"] == "digits"
        assert "Keep-Alive" not in answer.headers
        assert await answer.read() == b"12"
    [seen] = replica.seen
    assert (seen.method, seen.target, seen.body) == ("PUT", target, b"12")
    got = {name.lower(): text for name, text in seen.headers}
    assert got["x-own"] == "1"
    assert got["host"] == stage.url.removeprefix("http://")
    assert (got["accept-encoding"], got["user-agent"]) == ("br", "curl")
    assert got["content-length"] == "2"
    assert not {"te", "x-hop", "transfer-encoding"} & set(got)
    for method in ("HEAD", "GET", "OPTIONS"):
        async with stage.client.request(method, f"{stage.url}/about") as answer:
            assert answer.status == 201
            assert await answer.read() == (b"" if method == "HEAD" else b"nothing")


@pytest.mark.parametrize(
    ("sent", "status", "target"),
    [
        ("http://elsewhere:81/a%2Fb?x=1", 201, "/a%2Fb?x=1"),
        ("http://user@elsewhere/", 201, "/"),
        ("//elsewhere:81/a", 201, "//elsewhere:81/a"),
        ("x:@elsewhere:81/a", 400, None),
        ("@elsewhere:81/a", 400, None),
    ],
)
async def test_a_request_reaches_no_server_that_it_names(
    stage: GateStage, replica: Replica, sent: str, status: int, target: str | None
) -> None:
    stage.ready(replica)
    replica.go.set()
    await stage.post()
    host, _, port = stage.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {sent} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(LIMIT_SECONDS):
        answer = await reader.read()
    writer.close()
    assert answer.split()[1] == str(status).encode()
    assert [one.target for one in replica.seen[1:]] == ([target] if target else [])


async def test_large_and_chunked_bodies_pass(stage: GateStage, replica: Replica) -> None:
    stage.ready(replica)
    body = b"0123456789abcdef" * 60_000
    assert await stage.post(body=body) == (201, body)

    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(3):
            yield body[:100_000]

    async with stage.client.post(f"{stage.url}/infer", data=chunks()) as answer:
        assert await answer.read() == body[:100_000] * 3


async def test_an_answer_is_streamed(stage: GateStage, replica: Replica) -> None:
    stage.ready(replica)
    replica.go.clear()
    async with await stage.get("/stream") as answer:
        assert await answer.content.readexactly(6) == b"first;"
        replica.go.set()
        assert await answer.content.read() == b"second"


async def test_a_client_that_leaves_ends_its_request_at_the_replica(
    stage: GateStage, replica: Replica
) -> None:
    stage.ready(replica)
    replica.go.clear()
    sent = stage.later("/slow")
    await until(lambda: replica.seen)
    sent.cancel()
    await until(lambda: replica.left)
    assert replica.left == ["/slow"]
    report = await stage.operator.reported(held=0)
    assert report.forwarded == 0


async def test_a_client_that_leaves_while_it_is_held_is_not_forwarded(
    stage: GateStage, replica: Replica
) -> None:
    sent = stage.later()
    await stage.operator.reported(held=1)
    sent.cancel()
    await stage.operator.reported(held=0)
    stage.ready(replica)
    assert (await stage.post("/other"))[0] == 201
    assert [seen.target for seen in replica.seen] == ["/other"]


async def test_a_replica_that_dies_costs_the_requests_that_it_had_read(
    stage: GateStage, replica: Replica
) -> None:
    stage.ready(replica)
    replica.go.clear()
    dying, other = stage.later("/die"), stage.later("/other")
    await until(lambda: len(replica.seen) == 2)
    replica.go.set()
    status, body = await dying
    assert status == 502
    assert b"may have been executed" in body
    assert (await other)[0] == 201
    assert [seen.target for seen in replica.seen].count("/die") == 1, "it is not sent again"


async def test_an_answer_that_breaks_off_is_not_taken_for_whole(
    stage: GateStage, replica: Replica
) -> None:
    stage.ready(replica)
    async with await stage.get("/stream?broken") as answer:
        assert answer.status == 200
        with pytest.raises(ClientPayloadError):
            await answer.read()
    assert (await stage.post())[0] == 201


async def test_a_refused_connection_is_tried_at_another_replica(
    stage: GateStage, replica: Replica
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        gone = Replica(f"127.0.0.1:{closed.getsockname()[1]}")
        stage.ready(gone, replica)
        answers = await asyncio.gather(*(stage.post(body=b"1") for _ in range(8)))
        assert answers == [(201, b"1")] * 8
        assert len(replica.seen) == 8
        stage.ready(gone)
        await stage.operator.reported(held=0)
        sent = stage.later(body=b"2")
        await stage.operator.reported(held=1)
        stage.ready(replica)
        assert await sent == (201, b"2"), "it is held while no replica takes it"


async def test_requests_go_to_the_replica_with_the_fewest(stage: GateStage) -> None:
    async with serving(Replica()) as one, serving(Replica()) as other:
        stage.ready(one, other)
        sent = [stage.later() for _ in range(6)]
        await until(lambda: len(one.seen) + len(other.seen) == 6)
        assert len(one.seen) == len(other.seen) == 3
        one.go.set()
        other.go.set()
        assert {status for status, _ in await asyncio.gather(*sent)} == {201}


async def test_replicas_stay_known_while_the_operator_does_not_answer(
    stage: GateStage, replica: Replica
) -> None:
    stage.ready(replica)
    assert (await stage.post())[0] == 201
    stage.operator.status, stage.operator.reply = 503, GateReply()
    before = len(stage.operator.reports)
    await until(lambda: len(stage.operator.reports) > before + 1)
    assert (await stage.post())[0] == 201


async def test_idle_time_grows_and_ends_with_a_request(stage: GateStage, replica: Replica) -> None:
    stage.ready(replica)
    await until(lambda: stage.operator.reports and stage.operator.reports[-1].idle_seconds > 0.5)
    replica.go.clear()
    sent = stage.later()
    await until(lambda: stage.operator.reports[-1].forwarded == 1)
    assert stage.operator.reports[-1].idle_seconds == 0.0
    replica.go.set()
    await sent
    sequences = [report.sequence for report in stage.operator.reports]
    assert sequences == sorted(set(sequences))


async def test_a_gate_is_ready_once_it_knows_its_replicas(tmp_path: Path) -> None:
    async with gate(tmp_path, operator_status=503) as stage:
        await until(lambda: len(stage.operator.reports) > 1)
        async with await stage.get(GATE_READY_PATH) as answer:
            assert answer.status == 503
        stage.operator.status = 200
        before = len(stage.operator.reports)
        await until(lambda: len(stage.operator.reports) > before + 1)
        async with await stage.get(GATE_READY_PATH) as answer:
            assert answer.status == 200


async def test_probes_are_no_requests(stage: GateStage) -> None:
    await until(lambda: stage.operator.reports and stage.operator.reports[-1].idle_seconds > 0.5)
    async with await stage.get(GATE_READY_PATH) as answer:
        assert answer.status == 200
    first = len(stage.operator.reports)
    await until(lambda: len(stage.operator.reports) > first)
    assert stage.operator.reports[first].idle_seconds > 0.5


async def test_at_its_end_a_gate_answers_what_it_holds(tmp_path: Path, replica: Replica) -> None:
    async with gate(tmp_path) as stage:
        sent = stage.later()
        await stage.operator.reported(held=1)
        stage.ends.set()
        while (await stage.post("/new"))[0] != 503:
            pass
        async with await stage.get(GATE_READY_PATH) as answer:
            assert answer.status == 503
        status, body = await stage.post("/new")
        assert status == 503
        assert b"this gate ends" in body
        assert not sent.done()
        stage.ready(replica)
        assert (await sent)[0] == 201
        async with asyncio.timeout(LIMIT_SECONDS):
            await stage.running


async def test_at_its_end_a_gate_holds_no_request_for_long(tmp_path: Path) -> None:
    async with gate(tmp_path, replace(OPTIONS, hold_seconds=0.2)) as stage:
        sent = stage.later()
        await stage.operator.reported(held=1)
        stage.ends.set()
        status, body = await sent
        assert status == 503
        assert "no replica" in json.loads(body)["error"]
        await stage.running


async def test_a_replica_that_never_answers_does_not_keep_a_gate_alive(
    tmp_path: Path, replica: Replica
) -> None:
    async with gate(tmp_path, replace(OPTIONS, grace_seconds=0.5)) as stage:
        stage.ready(replica)
        replica.go.clear()
        sent = stage.later()
        await until(lambda: replica.seen)
        stage.ends.set()
        with pytest.raises(ClientError):
            await sent
        await stage.running


async def test_the_process_ends_at_sigterm_once_its_requests_are_answered(
    tmp_path: Path, replica: Replica
) -> None:
    async with gate(tmp_path) as stage:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gpujob_operator.gate"),
            env={
                **os.environ,
                ENV_GATE_URL: stage.report_url,
                ENV_GATE_TOKEN_FILE: str(tmp_path / "token"),
                ENV_GATE_HOST: "127.0.0.1",
                ENV_GATE_PORT: str(port),
            },
        )
        try:
            url = f"http://127.0.0.1:{port}"
            await until_answered(f"{url}{GATE_READY_PATH}", stage)
            stage.url = url
            sent = stage.later()
            await until(lambda: any(report.held for report in stage.operator.reports))
            child.send_signal(signal.SIGTERM)
            stage.ready(replica)
            assert (await sent)[0] == 201
            async with asyncio.timeout(LIMIT_SECONDS):
                assert await child.wait() == 0
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


async def until_answered(url: str, stage: GateStage) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            with suppress(ClientConnectorError):
                async with stage.client.get(url) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.02)
