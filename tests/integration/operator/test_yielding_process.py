"""A training process and the operator's report port: it yields while a service needs it, and no
longer, whichever of the other two is gone.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from gpujob_api.gpujob import GPUJob
from gpujob_api.report import Report, WorkerPhase
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.decide.model.yielding import STEP_SECONDS
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.port.pod_tokens import PodIdentity, claimed_identity
from gpujob_operator.port.reports import REPORT_PATH, ReportReceiver
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, make_pod, make_report, running
from tests.harness.pod_tokens import pod_token
from tests.harness.worker_process import WorkerRun, start_worker

pytestmark = pytest.mark.timeout(240)

LIMIT_SECONDS = 200.0
SERVICE, TRAINING = running(make_job("digits-0")), running(make_job("train"))
SCRIPT = """
import os, time, torch
net = torch.nn.Linear(8, 4)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
while not os.path.exists({end!r}):
    time.sleep(0.01)
    net(torch.randn(16, 8)).square().mean().backward()
    opt.step()
    opt.zero_grad()
"""


class _Tokens:
    async def check(self, token: str, source: str, *, from_its_pod: bool) -> PodIdentity | None:
        del source, from_its_pod
        return claimed_identity(token, 0)


class _Workers:
    def __init__(self) -> None:
        self.jobs = {job.metadata.uid: job for job in (SERVICE, TRAINING)}
        self.pods = {pod.uid: pod for pod in map(make_pod, (SERVICE, TRAINING))}

    def pod(self, uid: str) -> PodView | None:
        return self.pods.get(uid)

    def job(self, uid: str) -> GPUJob | None:
        return self.jobs.get(uid)

    def job_of(self, pod: PodView) -> GPUJob | None:
        return self.jobs.get(pod.job_uid)

    def held_gpus(self) -> list[str]:
        return ["GPU-0", "GPU-0"]


def token_of(job: GPUJob) -> str:
    pod = make_pod(job)
    return pod_token(pod.namespace, pod.name, pod.uid)


class Port:
    """The report port of an operator, whose clocks can be moved on."""

    def __init__(self, url: Callable[[], str]) -> None:
        self.url = url
        self.workers = _Workers()
        self.ahead_seconds = 0.0
        self.leads = True
        self.receiver = ReportReceiver(
            self.workers,
            _Tokens(),
            Dirty(),
            Metrics(),
            clock=lambda: datetime.now(UTC) + timedelta(seconds=self.ahead_seconds),
            monotonic=lambda: time.monotonic() + self.ahead_seconds,
            interval_seconds=0.25,
            is_leader=lambda: self.leads,
        )

    async def service_needs(self, percent: float) -> None:
        """The replica reports what its requests needed."""
        serving = ServingReport(ready=True, needed_percent=percent)
        report = make_report(phase=WorkerPhase.SERVING, serving=serving)
        headers = {"Authorization": f"Bearer {token_of(SERVICE)}"}
        async with (
            ClientSession() as session,
            session.post(self.url(), data=report.to_text(), headers=headers) as response,
        ):
            assert response.status == 200

    async def next_step(self) -> None:
        """Moves the clocks to the next step, and waits for a report of the training."""
        self.ahead_seconds += STEP_SECONDS
        since = datetime.now(UTC) + timedelta(seconds=self.ahead_seconds)
        end = time.monotonic() + LIMIT_SECONDS
        while not any(
            one.received_at > since and one.report.serving is None for one in self.receiver.newest()
        ):
            assert time.monotonic() < end, "no report within the limit"
            await asyncio.sleep(0.02)


@pytest.fixture
async def port() -> AsyncGenerator[Port]:
    urls: list[str] = []
    port = Port(lambda: urls[0])
    async with TestServer(port.receiver.application()) as server:
        urls.append(str(server.make_url(REPORT_PATH)))
        yield port


class Training:
    """The process. Its newest report is its termination message, whether it was sent or not."""

    def __init__(self, run: WorkerRun) -> None:
        self._run = run

    async def report(self) -> Report | None:
        assert self._run.process.exitcode is None, self._run.errors
        path = self._run.folder / "termination"
        try:
            return Report.from_text(path.read_text())
        except (OSError, ValueError):
            return None  # It is being written.

    async def yields(self, port: Port) -> None:
        """Waits until the process yields, while a service needs it."""
        before = (await self.settled()).yielded_seconds or 0.0
        async for report in self._reports():
            if (report.yielded_seconds or 0.0) > before:
                return
            await port.service_needs(120.0)

    async def settled(self) -> Report:
        """Waits for two reports between which the process trained and did not yield."""
        before: Report | None = None
        async for report in self._reports():
            if before is not None and report.step > before.step:
                if report.yielded_seconds == before.yielded_seconds:
                    return report
                before = report
            before = before or report
        raise AssertionError

    async def _reports(self) -> AsyncGenerator[Report]:
        end = time.monotonic() + LIMIT_SECONDS
        while time.monotonic() < end:
            found = await self.report()
            if found is not None and found.yielded_seconds is not None:
                yield found
            await asyncio.sleep(0.05)
        raise AssertionError("not within the limit")


@pytest.fixture
async def training(port: Port, tmp_path: Path) -> AsyncGenerator[Training]:
    script, end, token = tmp_path / "train.py", tmp_path / "end", tmp_path / "token"
    script.write_text(SCRIPT.format(end=str(end)))
    token.write_text(token_of(TRAINING))
    variables = {"GPUJOB_REPORT_URL": port.url(), "GPUJOB_TOKEN_FILE": str(token)}
    command = ["python", str(script)]
    settings = {"compile": "Off"}
    run = await asyncio.to_thread(
        lambda: start_worker(tmp_path, command, settings=settings, environment=variables)
    )
    yield Training(run)
    end.touch()
    assert await asyncio.to_thread(run.wait) == 0


async def test_it_yields_while_a_service_needs_it(port: Port, training: Training) -> None:
    await training.yields(port)
    [yielding] = port.receiver.yields()
    assert (yielding.job_uid, yielding.replica) == ("uid-train", "team/digits-0")
    await port.service_needs(10.0)
    await port.next_step()
    assert port.receiver.yields() == ()
    await training.settled()
    # The service is gone in the middle of it.
    await training.yields(port)
    del port.workers.jobs[SERVICE.metadata.uid]
    await training.settled()


async def test_it_yields_no_longer_than_replies_come(port: Port, training: Training) -> None:
    await training.yields(port)
    port.leads = False
    await training.settled()
