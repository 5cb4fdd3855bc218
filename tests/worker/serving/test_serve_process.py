"""A real process serves the example, is reported, and loses no request when it is stopped."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gpujob_api.cpu_cards import VISIBLE_DEVICES, cpu_card_uuid
from gpujob_api.report import Reply, Report, StopRequest, WorkerPhase
from gpujob_api.serving import (
    BackendName,
    BatchingPolicy,
    Objective,
    ServingReport,
    ServingSettings,
)
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, Precision, Task
from tests.harness.report_receiver import Operator
from tests.harness.repository import ROOT

pytestmark = pytest.mark.timeout(400)

SCRIPT = str(ROOT / "examples" / "serve_digits.py")
DELAY_SECONDS = 1.0
PAUSE_SECONDS = 0.02
IMAGE = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": list(range(64))}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@dataclass
class Replica:
    process: subprocess.Popen[str]
    port: int
    termination: Path

    @property
    def report(self) -> Report:
        return Report.from_text(self.termination.read_text())


@contextmanager
def replica(command: list[str], folder: Path, url: str = "", **more: str) -> Generator[Replica]:
    port = free_port()
    # Nothing is refused for its latency, however slow the machine is.
    objective = Objective(latency_milliseconds=3_600_000)
    settings = ServingSettings(objective, port=port, drain_delay_seconds=DELAY_SECONDS)
    variables = {
        "GPUJOB_SERVING": settings.to_text(),
        "GPUJOB_SERVING_HOST": "127.0.0.1",
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        "GPUJOB_GRACE_SECONDS": "120",
        "GPUJOB_REPORT_URL": url,
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables, **more},
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        yield Replica(process, port, folder / "termination")
    finally:
        process.kill()
        process.communicate(timeout=60)


async def until_ready(session: aiohttp.ClientSession, found: Replica) -> None:
    while True:
        assert found.process.poll() is None, found.process.communicate()[1]
        try:
            async with session.get(f"http://127.0.0.1:{found.port}/v2/health/ready") as response:
                if response.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.05)


@dataclass(frozen=True)
class Sent:
    """One request: when it was sent, and the status, or None if the connection failed."""

    at: float
    status: int | None


async def send(session: aiohttp.ClientSession, port: int) -> Sent:
    at = time.monotonic()
    url = f"http://127.0.0.1:{port}/v2/models/digits/infer"
    try:
        async with session.post(url, json={"inputs": [IMAGE]}) as response:
            await response.read()
            return Sent(at, response.status)
    except aiohttp.ClientError:
        return Sent(at, None)


async def open_loop(
    session: aiohttp.ClientSession, found: Replica, stop: Callable[[], None]
) -> tuple[float, list[Sent]]:
    """Sends requests at fixed times, whatever the answers, until the process is over. `stop` is
    called after fifty. Returns when that was, and all requests.
    """
    tasks: list[asyncio.Task[Sent]] = []
    stopped_at = 0.0
    while found.process.poll() is None:
        assert len(tasks) < 5000
        tasks.append(asyncio.create_task(send(session, found.port)))
        if len(tasks) == 50:
            stopped_at = time.monotonic()
            stop()
        await asyncio.sleep(PAUSE_SECONDS)  # real time: whatever the answers, as many clients do
    return stopped_at, await asyncio.gather(*tasks)


def reports(operator: Operator) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(body)) for _, body in operator.received]


def phases(operator: Operator) -> list[str]:
    return list(dict.fromkeys(report["phase"] for report in reports(operator)))


def new_client() -> aiohttp.ClientSession:
    """Each request has a connection of its own, as from many clients."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, force_close=True))


@pytest.mark.slow
async def test_sigterm_loses_no_request(tmp_path: Path, operator: Operator) -> None:
    operator.answers = [(200, Reply(0.2, shared=True).to_text().encode())] * 5000
    with replica([sys.executable, SCRIPT], tmp_path, operator.url) as found:
        async with new_client() as session:
            await until_ready(session, found)
            stopped_at, sent = await open_loop(session, found, found.process.terminate)
        assert found.process.wait(60) == EXIT_INTERRUPTED_SAVED
        report = found.report
    accepted = [one for one in sent if one.at < stopped_at + DELAY_SECONDS]
    assert len(accepted) > 50
    assert {one.status for one in accepted} == {200}
    assert {one.status for one in sent} <= {200, 503, None}
    answered = sum(one.status == 200 for one in sent)
    assert phases(operator) == ["starting", "serving", "draining"]
    assert report.phase is WorkerPhase.DRAINING
    assert report.task is Task.SERVING
    assert report.torch_version
    assert 0 < report.step <= answered
    assert report.current is not None
    assert report.current.peak_memory_bytes > 0
    serving = report.serving
    assert isinstance(serving, ServingReport)
    assert (serving.answered, serving.failed, serving.queued) == (answered, 0, 0)
    assert serving.policy is BatchingPolicy.DEADLINE, "the reply said that the GPU is shared"
    assert serving.time is not None
    ready = [one["serving"]["ready"] for one in reports(operator)]
    assert (ready[0], True in ready, ready[-1]) == (False, True, False)


@pytest.mark.slow
async def test_a_stop_of_the_operator_under_the_hooks(tmp_path: Path, operator: Operator) -> None:
    """The hooks take no call of the model for a step, and the run is not tuned by them."""
    plain = (200, Reply(0.2).to_text().encode())
    stop = Reply(0.2, StopRequest("Reclaimed", 60.0))
    operator.answers = [plain] * 5000
    command = [sys.executable, "-m", "gpujob_worker", "--explain", "--", sys.executable, SCRIPT]
    with replica(command, tmp_path, operator.url, GPUJOB_SETTINGS='{"task": "Serving"}') as found:

        def request_stop() -> None:
            operator.answers = [(200, stop.to_text().encode())] * 5000

        async with new_client() as session:
            await until_ready(session, found)
            _, sent = await open_loop(session, found, request_stop)
        assert found.process.wait(60) == EXIT_INTERRUPTED_SAVED
        report = found.report
    assert {one.status for one in sent} <= {200, 503, None}
    assert {one.status for one in sent[:50]} == {200}
    assert phases(operator) == ["starting", "serving", "draining"]
    assert report.task is Task.SERVING
    assert report.serving is not None
    assert report.serving.answered == sum(one.status == 200 for one in sent)
    assert not any("tuning" in line or "inference" in line for line in report.explain)


FAILING = """
import sys
import torch
import gpujob_worker
what = sys.argv[1]
model = torch.nn.Linear(4, 2)
if what == "examples":
    gpujob_worker.serve(model, torch.zeros(8, 5))
if what == "file":
    gpujob_worker.serve(model, "calibration.safetensors")
if what in ("card", "keyboard"):
    gpujob_worker.serve(model, torch.zeros(8, 4), name="m")
"""


@pytest.mark.parametrize(
    ("what", "failure", "text"),
    [
        ("examples", "UserError", "examples: the model does not take them"),
        ("file", "UserError", "examples: there is no file calibration.safetensors"),
        ("card", "OutOfMemory", "CPU card out of memory"),
    ],
)
def test_a_model_that_cannot_be_served_is_reported_with_the_reason(
    tmp_path: Path, what: str, failure: str, text: str
) -> None:
    card = {VISIBLE_DEVICES: cpu_card_uuid("node", 2**20, "0")} if what == "card" else {}
    with replica([sys.executable, "-c", FAILING, what], tmp_path, **card) as found:
        _, errors = found.process.communicate(timeout=120)
        assert found.process.returncode == 1
        report = found.report
    assert text in errors
    assert report.failure is not None
    assert report.failure.failure_class.value == failure
    assert text in report.failure.message


async def test_the_first_ctrl_c_drains(tmp_path: Path) -> None:
    with replica([sys.executable, "-c", FAILING, "keyboard"], tmp_path) as found:
        async with new_client() as session:
            await until_ready(session, found)
        found.process.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(found.process.communicate, timeout=120)
    assert found.process.returncode == EXIT_INTERRUPTED_SAVED
    assert "Traceback" not in errors


def test_settings_that_are_none_end_the_process_with_the_field(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FAILING, "keyboard"]
    variables = {**os.environ, "GPUJOB_SERVING": '{"port": 70000}'}
    ended = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 2
    assert "GPUJOB_SERVING" in ended.stderr
    assert "port" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_process_that_measures_reports_its_choice_and_ends(tmp_path: Path) -> None:
    settings = ServingSettings(
        Objective(latency_milliseconds=3_600_000),
        backend=BackendName.EAGER,
        precision=Precision.FLOAT32,
        measure=True,
    )
    path = tmp_path / "termination"
    variables = {
        "GPUJOB_SERVING": settings.to_text(),
        "GPUJOB_TERMINATION_FILE": str(path),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "gpujob_worker", "--", sys.executable, SCRIPT]
    ended = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    report = Report.from_text(path.read_text())
    assert (report.phase, report.failure) == (WorkerPhase.FINISHED, None)
    assert report.serving is not None
    choice = report.serving.choice
    assert choice is not None
    assert (choice.backend, choice.precision) == (BackendName.EAGER, Precision.FLOAT32)
    assert choice.candidates[0].samples_per_second
