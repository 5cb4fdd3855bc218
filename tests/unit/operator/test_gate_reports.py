"""A gate reports for its own service only, and gets the addresses of that service's replicas."""

import json
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpujob_api.gate import GATE_MESSAGE_BYTES_MAX, GateReply, GateReport
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService, GPUServiceStatus, Replicas, ReplicaStatus
from gpujob_operator.decide.model.gates import Gate, GatePod
from gpujob_operator.port.gates import GateReceiver
from gpujob_operator.port.pod_tokens import PodIdentity, claimed_identity
from gpujob_operator.port.requests import BURST_MAX, TokenCheckFailed
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, running
from tests.harness.clocks import FakeClock
from tests.harness.pod_tokens import pod_token
from tests.harness.services import UID, make_service

POD = GatePod("answers-gate-0", "team", "uid-gate", UID, addresses=("10.0.0.9",))
SERVICE = replace(
    make_service(replicas=Replicas(0, cold_start_seconds=45)),
    status=GPUServiceStatus(
        replicas=(
            ReplicaStatus("answers-aaaaaa-0", "aaaaaa", True, "10.0.0.7:8000"),
            ReplicaStatus("answers-aaaaaa-1", "aaaaaa", False, "10.0.0.8:8000"),
            ReplicaStatus("answers-aaaaaa-2", "aaaaaa", True, "[fd00::7]:8000"),
        )
    ),
)
TOKEN = pod_token(POD.namespace, POD.name, POD.uid)


def replica_job(name: str) -> GPUJob:
    return running(make_job(name, namespace=POD.namespace), ("n0", ("GPU-0",)))


class Bench:
    """The receiver with one gate. Tokens are true unless their signature is `broken` or another."""

    def __init__(self) -> None:
        self.pods = {POD.uid: POD}
        self.services = {UID: SERVICE}
        self.clock = FakeClock()
        self.leads = True
        self.speaks_for: PodIdentity | None = None
        # Whether replicas take requests, as far as they have reported.
        self.takes: dict[str, bool] = {}
        self.jobs = {one.name: replica_job(one.name) for one in SERVICE.status.replicas}
        self.receiver = GateReceiver(
            self,
            self,
            Metrics(),
            clock=self.clock.now,
            monotonic=self.clock.monotonic,
            takes_requests=lambda job: self.takes.get(job.metadata.name),
            is_leader=lambda: self.leads,
        )
        self.client: TestClient[web.Request, web.Application]

    def gate(self, uid: str) -> GatePod | None:
        return self.pods.get(uid)

    def gates(self) -> Iterable[GatePod]:
        return self.pods.values()

    def service(self, uid: str) -> GPUService | None:
        return self.services.get(uid)

    def job_named(self, namespace: str, name: str) -> GPUJob | None:
        return self.jobs.get(name) if namespace == POD.namespace else None

    async def check(self, token: str, source: str, *, from_its_pod: bool) -> PodIdentity | None:
        signature = token.rpartition(".")[2]
        if signature == "broken":
            raise TokenCheckFailed("no answer")
        return self.speaks_for or claimed_identity(token, 0) if signature == "true" else None

    async def post(
        self, report: GateReport | bytes | None = None, token: str = TOKEN
    ) -> tuple[int, Any]:
        report = GateReport(1) if report is None else report
        body = report if isinstance(report, bytes) else report.to_text().encode()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with self.client.post("/gate", data=body, headers=headers) as answer:
            return answer.status, json.loads(await answer.text())


@pytest.fixture
async def bench() -> AsyncGenerator[Bench]:
    bench = Bench()
    application = web.Application(client_max_size=GATE_MESSAGE_BYTES_MAX)
    bench.receiver.add_to(application)
    async with TestClient(TestServer(application)) as client:
        bench.client = client
        yield bench


async def reply(bench: Bench) -> GateReply:
    status, answer = await bench.post()
    assert status == 200, answer
    return GateReply.from_text(json.dumps(answer))


async def test_the_reply_has_the_replicas_that_are_ready(bench: Bench) -> None:
    assert await reply(bench) == GateReply(("10.0.0.7:8000", "[fd00::7]:8000"), 45)
    bench.services[UID] = replace(SERVICE, spec=replace(SERVICE.spec, suspend=True))
    assert await reply(bench) == GateReply(), "nothing is to be expected of a suspended service"


async def test_a_replica_takes_requests_as_its_own_report_says(bench: Bench) -> None:
    """One that is about to park gets no more, and one that has woken gets them at once."""
    bench.takes = {"answers-aaaaaa-0": False, "answers-aaaaaa-1": True}
    assert await reply(bench) == GateReply(("10.0.0.8:8000", "[fd00::7]:8000"), 45)


async def test_a_replica_that_is_gone_or_not_placed_takes_no_requests(bench: Bench) -> None:
    """The service's status may be older: its write is late, or was refused."""
    del bench.jobs["answers-aaaaaa-0"]
    bench.jobs["answers-aaaaaa-2"] = make_job("answers-aaaaaa-2", namespace=POD.namespace)
    assert await reply(bench) == GateReply((), 45)


async def test_the_first_request_that_is_held_is_worth_a_round(bench: Bench) -> None:
    rounds: list[int] = []
    bench.receiver.held_first.connect(lambda: rounds.append(1))
    for sequence, held in enumerate([0, 2, 3, 0, 1], 1):
        await bench.post(GateReport(sequence, held=held))
    await bench.post(GateReport(2, held=0))
    assert len(rounds) == 2


async def test_the_newest_report_is_kept_with_its_time(bench: Bench) -> None:
    assert bench.receiver.newest() == (Gate(POD),)
    await bench.post(GateReport(5, held=2))
    first = bench.clock.now()
    bench.clock.advance(3)
    await bench.post(GateReport(4, idle_seconds=700))
    assert bench.receiver.newest() == (Gate(POD, GateReport(5, held=2), first),)
    await bench.post(GateReport(6))
    assert bench.receiver.newest() == (Gate(POD, GateReport(6), bench.clock.now()),)
    bench.pods.clear()
    assert bench.receiver.newest() == ()
    bench.pods[POD.uid] = POD
    assert bench.receiver.newest() == (Gate(POD),)


@pytest.mark.parametrize(
    ("token", "status"),
    [
        ("", 401),
        ("garbage", 401),
        (pod_token("team", POD.name, POD.uid, audience="another"), 401),
        (pod_token("team", POD.name, POD.uid, signature="forged"), 401),
        (pod_token("team", POD.name, POD.uid, signature="broken"), 503),
        (pod_token("team", POD.name, "uid-unknown"), 503),
        (pod_token("other", POD.name, POD.uid), 403),
        (pod_token("team", "another", POD.uid), 403),
    ],
)
async def test_who_may_not_report(bench: Bench, token: str, status: int) -> None:
    answered, answer = await bench.post(token=token)
    assert answered == status
    assert answer["error"]
    assert "replicas" not in answer
    assert bench.receiver.newest() == (Gate(POD),)


async def test_a_gate_cannot_speak_for_another(bench: Bench) -> None:
    bench.speaks_for = PodIdentity("team", "another", "uid-another")
    assert (await bench.post())[0] == 403
    assert bench.receiver.newest() == (Gate(POD),)


async def test_a_gate_of_another_namespace_gets_no_addresses(bench: Bench) -> None:
    bench.pods["x"] = replace(POD, uid="x", namespace="elsewhere")
    status, answer = await bench.post(token=pod_token("elsewhere", POD.name, "x"))
    assert status == 403
    assert "belongs to no GPUService" in answer["error"]
    bench.services.clear()
    assert (await bench.post())[0] == 403


async def test_a_follower_takes_no_reports(bench: Bench) -> None:
    bench.leads = False
    assert (await bench.post())[0] == 503


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff", 400),
        (b'{"held": 1}', 400),
        (b'{"sequence": 1, "held": -1}', 400),
        (b'{"sequence": "1"}', 400),
        (b" " * (GATE_MESSAGE_BYTES_MAX + 1), 413),
    ],
)
async def test_a_bad_report_is_refused(bench: Bench, body: bytes, status: int) -> None:
    assert (await bench.post(body))[0] == status
    assert bench.receiver.newest() == (Gate(POD),)


async def test_a_flood_is_refused_and_time_heals(bench: Bench) -> None:
    answers = [(await bench.post(GateReport(number)))[0] for number in range(int(BURST_MAX) + 1)]
    assert set(answers[:-1]) == {200}
    assert answers[-1] == 429
    bench.clock.advance(1)
    assert (await bench.post())[0] == 200
