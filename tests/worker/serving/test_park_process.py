"""A real process parks and wakes as the operator's replies ask, and ends well from either state."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from gpujob_api.report import Reply, StopRequest
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED
from tests.harness.report_receiver import Operator
from tests.worker.serving import test_serve_process
from tests.worker.serving.test_serve_process import Replica, new_client, replica, until_ready

pytestmark = pytest.mark.timeout(400)

SCRIPT = """
import torch
import gpujob_worker
torch.manual_seed(0)
gpujob_worker.serve(torch.nn.Linear(4, 2), torch.zeros(8, 4), name="m")
"""
# The first attempt to wake fails with the error in its argument.
FAILING = f"""
import sys
import torch
from gpujob_worker.serving.weights import Weights
wake, errors = Weights.wake, [getattr(torch, sys.argv[1], RuntimeError)(sys.argv[2])]
def fails(weights):
    if errors:
        raise errors.pop()
    wake(weights)
Weights.wake = fails
{SCRIPT}
"""
COMMAND = [sys.executable, "-c", SCRIPT]
BODY = {
    "inputs": [{"name": "input", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]
}


def reply(operator: Operator, park: bool | None, stop: StopRequest | None = None) -> None:
    """Sets the answer to all reports from now on."""
    text = Reply(0.2, stop, park=park).to_text().encode()
    operator.answers = [(200, text)] * 5000


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def is_parked(operator: Operator) -> bool:
    return operator.received[-1][1]["serving"].get("parkedSeconds") is not None


async def infer(session: aiohttp.ClientSession, found: Replica) -> tuple[int, str, str]:
    """Returns the status, the body and Retry-After."""
    url = f"http://127.0.0.1:{found.port}/v2/models/m/infer"
    async with session.post(url, json=BODY) as response:
        return response.status, await response.text(), response.headers.get("Retry-After", "")


async def status(session: aiohttp.ClientSession, found: Replica, path: str) -> tuple[int, str]:
    async with session.get(f"http://127.0.0.1:{found.port}{path}") as response:
        return response.status, await response.text()


async def test_a_parked_process_refuses_requests_and_answers_alike_once_awake(
    tmp_path: Path, operator: Operator
) -> None:
    reply(operator, None)
    with replica(COMMAND, tmp_path, operator.url) as found:
        async with new_client() as session:
            await until_ready(session, found)
            before = await infer(session, found)
            assert before[0] == 200
            await until(lambda: operator.received[-1][1]["serving"].get("canPark") is True)
            for _ in range(2):
                reply(operator, park=True)
                await until(lambda: is_parked(operator))
                code, text, seconds = await infer(session, found)
                assert (code, seconds) == (503, "1")
                assert "parked: the operator wakes it" in text
                for path in ("/v2/health/ready", "/v2/health/live"):
                    assert (await status(session, found, path))[0] == 200
                metrics = (await status(session, found, "/metrics"))[1]
                assert "gpujob_serving_parked 1\n" in metrics
                reply(operator, park=False)
                await until(lambda: not is_parked(operator))
                assert await infer(session, found) == before
        assert operator.received[-1][1]["serving"]["refused"] == 0
        found.process.terminate()
        assert await asyncio.to_thread(found.process.wait, 120) == EXIT_INTERRUPTED_SAVED


@pytest.mark.parametrize("by_operator", [True, False])
async def test_a_stop_while_parked_drains_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operator: Operator, by_operator: bool
) -> None:
    """Nobody sends requests to it, so it does not wait for those who have not learned of it."""
    monkeypatch.setattr(test_serve_process, "DELAY_SECONDS", 600.0)
    reply(operator, park=True)
    grace = {"GPUJOB_GRACE_SECONDS": "1200"}
    with replica(COMMAND, tmp_path, operator.url, **grace) as found:
        async with new_client() as session:
            await until_ready(session, found)
        await until(lambda: is_parked(operator))
        if by_operator:
            reply(operator, True, StopRequest("Reclaimed", 1200.0))
        else:
            found.process.terminate()
        _, errors = await asyncio.to_thread(found.process.communicate, timeout=120)
        assert found.process.returncode == EXIT_INTERRUPTED_SAVED, errors
        assert "Traceback" not in errors
        assert "gpujob: parked: 40 B in the host's memory" in errors


async def test_a_wake_without_memory_is_tried_again(tmp_path: Path, operator: Operator) -> None:
    reply(operator, park=True)
    command = [sys.executable, "-c", FAILING, "OutOfMemoryError", "CUDA out of memory"]
    with replica(command, tmp_path, operator.url) as found:
        async with new_client() as session:
            await until_ready(session, found)
            await until(lambda: is_parked(operator))
            reply(operator, park=False)
            await until(lambda: not is_parked(operator))
            assert (await infer(session, found))[0] == 200
        found.process.terminate()
        _, errors = await asyncio.to_thread(found.process.communicate, timeout=120)
    lines = [line for line in errors.splitlines() if "parked" in line or "awake" in line]
    assert lines[1] == (
        "gpujob: still parked, until the next attempt: OutOfMemoryError: CUDA out of memory"
    )
    assert lines[2].startswith("gpujob: awake")
    assert found.process.returncode == EXIT_INTERRUPTED_SAVED


async def test_a_wake_with_another_error_ends_the_process(
    tmp_path: Path, operator: Operator
) -> None:
    reply(operator, park=True)
    command = [sys.executable, "-c", FAILING, "RuntimeError", "CUDA error: no such device"]
    with replica(command, tmp_path, operator.url) as found:
        async with new_client() as session:
            await until_ready(session, found)
        await until(lambda: is_parked(operator))
        reply(operator, park=False)
        _, errors = await asyncio.to_thread(found.process.communicate, timeout=120)
        assert found.process.returncode == 1
        failure = found.report.failure
    assert "RuntimeError: CUDA error: no such device" in errors
    assert failure is not None
    assert "CUDA error: no such device" in failure.message
