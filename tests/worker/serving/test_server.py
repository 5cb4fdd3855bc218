"""The server over real loopback sockets: answers, and an error with the next step for all else."""

import asyncio
import gzip
import json
from contextlib import AbstractContextManager
from typing import Any

import pytest

from gpujob_worker.serving.batcher import Draining, Overloaded, Parked
from gpujob_worker.serving.intake import Limits
from gpujob_worker.serving.lifecycle import Stage
from gpujob_worker.serving.messages import HEADER_LENGTH
from gpujob_worker.serving.server import INLINE_BYTES_MAX
from gpujob_worker.serving.signature import InputError
from tests.worker.serving.served import FakeQueue, Served, request_of, served

INFER = "/v2/models/m/infer"
SMALL = Limits(body_bytes=1000, bodies_bytes=1500, requests=2, body_seconds=0.2)


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_a_request_is_answered() -> None:
    async with served() as found:
        status, answer = await found.infer(request_of([1, 2], [3, 4], id="a"))
    assert status == 200
    double = {"name": "double", "datatype": "FP32", "shape": [2, 2], "data": [2.0, 4.0, 6.0, 8.0]}
    assert answer == {"model_name": "m", "id": "a", "outputs": [double]}


@pytest.mark.parametrize("rows", [1, INLINE_BYTES_MAX])
async def test_binary_in_and_out(rows: int) -> None:
    """Large bodies are converted in threads."""
    values = bytes([0, 0, 128, 63]) * 2 * rows  # 1.0
    tensor = {"name": "x", "datatype": "FP32", "shape": [rows, 2]}
    message = {
        "inputs": [{**tensor, "parameters": {"binary_data_size": len(values)}}],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(message).encode()
    async with served() as found:
        headers = {HEADER_LENGTH: str(len(text))}
        async with found.client.post(INFER, data=text + values, headers=headers) as response:
            body = await response.read()
            length = int(response.headers[HEADER_LENGTH])
    answer = json.loads(body[:length])
    assert answer["outputs"][0]["parameters"] == {"binary_data_size": len(values)}
    assert body[length:] == bytes([0, 0, 0, 64]) * 2 * rows  # 2.0


async def get(found: Served, path: str) -> tuple[int, Any]:
    async with found.client.get(path) as response:
        return response.status, await response.json()


async def test_health_and_metadata() -> None:
    async with served() as found:
        assert (await get(found, "/v2"))[1]["extensions"] == ["binary_tensor_data"]
        assert await get(found, "/v2/health/live") == (200, {"live": True})
        assert await get(found, "/v2/health/ready") == (200, {"ready": True})
        assert await get(found, "/v2/models/m/ready") == (200, {"name": "m", "ready": True})
        status, about = await get(found, "/v2/models/m/versions/1")
        assert (status, about["inputs"][0]["shape"]) == (200, [-1, 2])
        found.lifecycle.enter(Stage.DRAINING)
        assert await get(found, "/v2/health/ready") == (503, {"ready": False})
        assert (await get(found, "/v2/models/m/ready"))[0] == 503
        assert await get(found, "/v2/health/live") == (200, {"live": True})
        found.alive = False
        assert await get(found, "/v2/health/live") == (503, {"live": False})


@pytest.mark.parametrize(
    ("method", "path", "status", "text"),
    [
        ("GET", "/", 404, "there is no '/'; there are /v2, "),
        ("GET", "/v2/models", 404, "there is no '/v2/models'; there are"),
        ("POST", "/v2/models/other/infer", 404, "there is no model 'other'; this server has m"),
        ("GET", "/v2/models/m/versions/2", 404, "m has version 1 only"),
        ("GET", INFER, 405, f"{INFER} takes POST; got GET"),
        ("POST", "/v2/health/ready", 405, "/v2/health/ready takes GET,HEAD; got POST"),
    ],
)
async def test_paths_and_methods_that_are_not_there(
    method: str, path: str, status: int, text: str
) -> None:
    async with served() as found, found.client.request(method, path) as response:
        assert response.status == status
        assert (await response.json())["error"].startswith(text)
        assert ("Allow" in response.headers) == (status == 405)


@pytest.mark.parametrize(
    ("body", "headers", "text"),
    [
        (b"", {}, "the body is empty"),
        (b"{", {}, "the body is not JSON"),
        (b"{}", {HEADER_LENGTH: "3"}, f"{HEADER_LENGTH} must be from 1 to the 2 bytes"),
        (b"{}", {}, "inputs: must be a list"),
        (json.dumps(request_of()).encode(), {}, "inputs must have at least one sample"),
    ],
)
async def test_bad_bodies(body: bytes, headers: dict[str, str], text: str) -> None:
    async with served() as found:
        async with found.client.post(INFER, data=body, headers=headers) as response:
            assert response.status == 400
            assert (await response.json())["error"].startswith(text)
        assert (await found.infer(request_of([1, 2])))[0] == 200
        assert found.server.responses == {400: 1, 200: 1}


async def test_compressed_bodies_are_refused() -> None:
    async with served() as found:
        body, headers = gzip.compress(b"{}"), {"Content-Encoding": "gzip"}
        async with found.client.post(INFER, data=body, headers=headers) as response:
            assert response.status == 415
            error = (await response.json())["error"]
    assert error == "the body must have no Content-Encoding; got 'gzip'"


async def test_a_body_that_is_too_large_is_not_read() -> None:
    async with served(limits=SMALL) as found:
        async with found.client.post(INFER, data=bytes(1001)) as response:
            assert response.status == 413
            error = (await response.json())["error"]
        assert error == "the body must have at most 1000 bytes; got 1001"


async def test_a_body_of_unknown_length_is_cut_off_at_the_limit() -> None:
    async def endless() -> Any:
        for _ in range(10**6):
            yield bytes(400)
            await asyncio.sleep(0)

    async with (
        served(limits=SMALL) as found,
        found.client.post(INFER, data=endless()) as response,
    ):
        assert response.status == 413


async def raw(found: Served, *parts: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which these bytes were sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", found.port)
    for part in parts:
        writer.write(part)
    await writer.drain()
    return reader, writer


def head(length: int) -> bytes:
    return f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n".encode()


async def test_a_slow_body_ends_with_408_and_its_connection() -> None:
    async with served(limits=SMALL) as found:
        reader, writer = await raw(found, head(500), b'{"inputs"')
        answer = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert b" 408 " in answer.splitlines()[0]
        assert b"within 0.2 s; 9 bytes arrived" in answer
        assert found.server.intake.requests == 0


async def test_a_client_that_goes_in_mid_body_leaves_nothing_behind() -> None:
    async with served() as found:
        _, writer = await raw(found, head(500), b'{"inputs"')
        await until(lambda: found.server.intake.requests == 1)
        writer.transport.abort()
        await until(lambda: found.server.intake.requests == 0)
        assert (await found.infer(request_of([1, 2])))[0] == 200


async def test_a_client_that_goes_before_its_answer_does_not_harm_the_others() -> None:
    queue = FakeQueue(answers_at_once=False)
    async with served(queue) as found:
        body = json.dumps(request_of([9, 9])).encode()
        _, writer = await raw(found, head(len(body)), body)
        await until(lambda: len(queue.waiting) == 1)
        other = asyncio.create_task(found.infer(request_of([1, 2])))
        await until(lambda: len(queue.waiting) == 2)
        writer.transport.abort()
        await asyncio.sleep(0)
        assert not any(future.cancelled() for _, future in queue.waiting)
        queue.answer()
        assert (await other)[0] == 200
        await until(lambda: found.server.intake.requests == 0)


async def test_more_requests_than_the_limit_are_refused_and_counted() -> None:
    queue = FakeQueue(answers_at_once=False)
    async with served(queue, SMALL) as found:
        first = [asyncio.create_task(found.infer(request_of([1, 2]))) for _ in range(2)]
        await until(lambda: len(queue.waiting) == 2)
        status, answer = await found.infer(request_of([1, 2]))
        assert (status, found.server.intake.refused) == (503, 1)
        assert answer["error"] == "2 requests are in progress, which is the limit"
        queue.answer()
        assert [status for status, _ in await asyncio.gather(*first)] == [200, 200]
        assert found.server.intake.bytes == 0


async def test_overload_is_503_with_the_seconds_after_which_to_try_again() -> None:
    async with (
        served(FakeQueue(refusal=Overloaded(1.2))) as found,
        found.client.post(INFER, json=request_of([1, 2])) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (503, "2")
        assert "overloaded" in (await response.json())["error"]


async def test_a_parked_process_refuses_before_it_reads_and_stays_ready() -> None:
    def refuse() -> AbstractContextManager[None]:
        raise Parked

    async with served(FakeQueue(refusal=AssertionError("it was read")), arrival=refuse) as found:
        async with found.client.post(INFER, data=b"no JSON") as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "1")
            error = (await response.json())["error"]
        assert error == "parked: the operator wakes it for a request that comes through the gate"
        assert found.server.intake.refused == 0, "that would count as load"
        assert found.server.intake.requests == 0
        assert (await get(found, "/v2/health/ready"))[0] == 200
        assert (await get(found, "/v2/health/live"))[0] == 200


async def test_too_many_samples_are_the_requests_fault() -> None:
    async with served(FakeQueue(refusal=InputError("samples: must be 1 to 8; got 9"))) as found:
        status, answer = await found.infer(request_of([1, 2]))
    assert (status, answer["error"]) == (400, "samples: must be 1 to 8; got 9")


async def test_a_failed_call_of_the_model_is_500_with_its_error() -> None:
    queue = FakeQueue(answers_at_once=False)
    async with served(queue) as found:
        both = [asyncio.create_task(found.infer(request_of([n, n]))) for n in (1, 2)]
        await until(lambda: len(queue.waiting) == 2)
        _, poisoned = queue.waiting.pop(0)
        poisoned.set_exception(ValueError("x" * 5000))
        queue.answer()
        answers = await asyncio.gather(*both)
    assert sorted(status for status, _ in answers) == [200, 500]
    (error,) = (answer["error"] for status, answer in answers if status == 500)
    assert error.startswith("the model failed: ValueError: xxx")
    assert len(error) == 1000


@pytest.mark.parametrize("ends", ["cancelled", "abandoned"])
async def test_requests_that_the_end_cuts_off_may_be_sent_again(ends: str) -> None:
    queue = FakeQueue(answers_at_once=False)
    async with served(queue) as found:
        answer = asyncio.create_task(found.infer(request_of([1, 2])))
        await until(lambda: queue.waiting)
        ((_, future),) = queue.waiting
        if ends == "cancelled":
            future.cancel()
        else:
            future.set_exception(Draining("the process ended before this request"))
        assert (await answer)[0] == 503


async def test_an_error_of_the_server_is_json_too(capfd: pytest.CaptureFixture[str]) -> None:
    async with served(FakeQueue(refusal=KeyError("a bug"))) as found:
        status, answer = await found.infer(request_of([1, 2]))
    assert (status, answer["error"]) == (500, "the server failed: KeyError: 'a bug'")
    assert "KeyError" in capfd.readouterr().err


async def test_connections_end_once_the_process_drains() -> None:
    async with served() as found:
        found.lifecycle.enter(Stage.DRAINING)
        async with found.client.post(INFER, json=request_of([1, 2])) as response:
            assert (response.status, response.headers["Connection"]) == (200, "close")
        found.lifecycle.enter(Stage.REFUSING)
        async with found.client.post(INFER, json=request_of([1, 2])) as response:
            assert (response.status, response.headers["Connection"]) == (503, "close")
            assert response.headers["Retry-After"] == "1"
        assert found.server.intake.refused == 1


async def test_metrics_count_responses_by_status() -> None:
    async with served() as found:
        await found.infer(request_of([1, 2]))
        await found.infer({})
        async with found.client.get("/metrics") as response:
            text = await response.text()
            assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'gpujob_serving_responses_total{code="200"} 1\n' in text
    assert 'gpujob_serving_responses_total{code="400"} 1\n' in text
    assert "gpujob_serving_ready 1\n" in text
