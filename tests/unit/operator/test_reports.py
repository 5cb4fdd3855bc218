"""A worker speaks only for itself, in bounded words, and hears when to stop."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.report import Reply, Report, WorkerPhase
from gpujob_api.serving import ServingReport
from gpujob_operator.decide.model.snapshot import Parking, PodView, Snapshot
from gpujob_operator.decide.model.workers import speaks_for, with_pod_uids
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.port.pod_tokens import PodIdentity, claimed_identity
from gpujob_operator.port.reports import BODY_BYTES_MAX, ReportReceiver
from gpujob_operator.port.requests import BURST_MAX, TokenCheckFailed, sender
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, make_pod, make_report, placed, running, with_status
from tests.harness.clocks import FakeClock
from tests.harness.odd_json import ODD_SCALARS, to_json
from tests.harness.pod_tokens import pod_token

JOB = placed(make_job())
POD = make_pod(JOB)


def token_of_pod(
    namespace: str = POD.namespace, name: str = POD.name, uid: str = POD.uid, **more: Any
) -> str:
    return pod_token(namespace, name, uid, **more)


Client = TestClient[web.Request, web.Application]


class _Tokens:
    """Proves tokens whose signature is `true`, for the pod that they claim or the one set here."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.from_its_pod: list[bool] = []
        self.speaks_for: PodIdentity | None = None

    async def check(self, token: str, source: str, *, from_its_pod: bool) -> PodIdentity | None:
        self.asked.append((token, source))
        self.from_its_pod.append(from_its_pod)
        signature = token.rpartition(".")[2]
        if signature == "broken":
            raise TokenCheckFailed("no answer")
        return self.speaks_for or claimed_identity(token, 0) if signature == "true" else None


class _Workers:
    def __init__(self) -> None:
        self.pods: dict[str, PodView] = {POD.uid: POD}
        self.jobs: dict[str, GPUJob] = {JOB.metadata.uid: JOB}

    def pod(self, uid: str) -> PodView | None:
        return self.pods.get(uid)

    def job(self, uid: str) -> GPUJob | None:
        return self.jobs.get(uid)

    def job_of(self, pod: PodView) -> GPUJob | None:
        return next((job for job in self.jobs.values() if speaks_for(pod, job)), None)

    def held_gpus(self) -> list[str]:
        placed = (job.status.placement for job in self.jobs.values())
        workers = [worker for one in placed if one is not None for worker in one.workers]
        return [uuid for worker in workers for uuid in worker.gpus]


class _Bench:
    def __init__(self) -> None:
        self.workers = _Workers()
        self.clock = FakeClock()
        self.dirty = Dirty()
        self.metrics = Metrics()
        self.leads = True
        self.tokens = _Tokens()
        self.receiver = ReportReceiver(
            self.workers,
            self.tokens,
            self.dirty,
            self.metrics,
            clock=self.clock.now,
            monotonic=self.clock.monotonic,
            interval_seconds=2.5,
            is_leader=lambda: self.leads,
        )
        self.client: Client

    async def post(
        self, report: Report | bytes | None = None, *, token: str | None = "own", **headers: str
    ) -> tuple[int, Any]:
        body = report if isinstance(report, bytes) else (report or make_report()).to_text().encode()
        if token == "own":
            token = token_of_pod()
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        async with self.client.post("/report", data=body, headers=headers) as response:
            return response.status, json.loads(await response.text())


@pytest.fixture
async def bench() -> AsyncGenerator[_Bench]:
    bench = _Bench()
    async with TestClient(TestServer(bench.receiver.application())) as client:
        bench.client = client
        yield bench


async def test_a_report_is_kept_with_its_time_and_answered(bench: _Bench) -> None:
    report = make_report(step=42)
    status, answer = await bench.post(report)
    assert status == 200
    assert Reply.from_text(json.dumps(answer)) == Reply(interval_seconds=2.5)
    (received,) = bench.receiver.newest()
    assert (received.job_uid, received.rank) == ("uid-job", 0)
    assert (received.report, received.received_at) == (report, bench.clock.now())


async def test_a_server_is_told_whether_others_hold_a_part_of_its_gpu(bench: _Bench) -> None:
    """Its batches then come as late as the objective allows."""
    serving = make_report(serving=ServingReport(ready=True))
    assert (await bench.post(serving))[1]["shared"] is False
    neighbour = running(make_job("neighbour"))
    bench.workers.jobs[neighbour.metadata.uid] = neighbour
    assert (await bench.post(serving))[1]["shared"] is False, "the count is used for a while"
    bench.clock.advance(3)
    assert (await bench.post(serving))[1]["shared"] is True
    assert "shared" not in (await bench.post(make_report()))[1], "a training does not ask"


async def test_a_replica_is_asked_to_park_and_to_wake(bench: _Bench) -> None:
    parking, uid = bench.receiver.parking, JOB.metadata.uid
    awake = make_report(serving=ServingReport(ready=True, can_park=True))
    parked = replace(awake, serving=ServingReport(ready=True, parked_seconds=1.0))
    assert "park" not in (await bench.post(awake))[1]
    assert bench.receiver.takes_requests(JOB) is True
    parking.ask([Parking(uid, parks=True, rests=True)], bench.clock.now())
    assert bench.receiver.takes_requests(JOB) is False, "before it parks"
    assert (await bench.post(awake))[1]["park"] is True
    bench.dirty.take()
    answer = (await bench.post(replace(parked, sequence=1)))[1]
    assert (answer["park"], answer["intervalSeconds"]) == (True, 1.0)
    assert bench.dirty.urgent.is_set(), "its reservation may fall"
    parking.ask([Parking(uid, parks=False)], bench.clock.now())
    assert bench.receiver.takes_requests(JOB) is False
    parking.planned(Snapshot(jobs=(JOB,)))
    assert (await bench.post(replace(parked, sequence=2)))[1]["park"] is False
    await bench.post(replace(awake, sequence=3))
    assert bench.receiver.takes_requests(JOB) is True


async def test_a_training_is_asked_to_yield_to_a_service_on_its_gpu(bench: _Bench) -> None:
    training = running(make_job("job"))
    service = running(make_job("digits-0"))
    pod = make_pod(service)
    bench.workers.jobs = {one.metadata.uid: one for one in (training, service)}
    bench.workers.pods[pod.uid] = pod
    own, its = make_report(yielded_seconds=0.0), token_of_pod(pod.namespace, pod.name, pod.uid)
    serving = make_report(serving=ServingReport(ready=True, needed_percent=95.0))
    assert (await bench.post(own))[1]["yieldPercent"] == 0
    assert (await bench.post(serving, token=its))[1]["yieldPercent"] == 0
    assert (await bench.post(own))[1]["yieldPercent"] == 10
    assert [one.replica for one in bench.receiver.yields()] == [service.metadata.key]


@pytest.mark.parametrize(
    ("token", "status", "result"),
    [
        (None, 401, "no_token"),
        ("garbage", 401, "bad_token"),
        (token_of_pod(audience="https://kubernetes.default.svc"), 401, "bad_token"),
        (token_of_pod(expires=1), 401, "bad_token"),
        (token_of_pod(signature="forged"), 401, "bad_token"),
        (token_of_pod(signature="broken"), 503, "check_failed"),
        (token_of_pod(uid="uid-unknown"), 503, "no_pod"),
        (token_of_pod(namespace="other"), 403, "wrong_pod"),
        (token_of_pod(name="another"), 403, "wrong_pod"),
    ],
)
async def test_who_may_not_speak(
    bench: _Bench, token: str | None, status: int, result: str
) -> None:
    answered, body = await bench.post(token=token)
    assert answered == status
    assert body["error"]
    assert bench.receiver.newest() == ()
    assert f'gpujob_reports_total{{result="{result}"}} 1.0' in bench.metrics.text().decode()


@pytest.mark.parametrize(
    "token",
    ["garbage", token_of_pod(audience="x"), token_of_pod(uid="?"), token_of_pod(name="another")],
)
async def test_the_api_server_is_asked_of_tokens_of_known_workers_only(
    bench: _Bench, token: str
) -> None:
    await bench.post(token=token)
    assert bench.tokens.asked == []
    await bench.post()
    assert bench.tokens.asked == [(token_of_pod(), "127.0.0.1")]


@pytest.mark.parametrize(
    ("addresses", "from_its_pod"),
    [((), False), (("10.0.0.1",), False), (("fd00::1", "127.0.0.1"), True)],
)
async def test_a_report_from_its_pods_address_is_known_as_such(
    bench: _Bench, addresses: tuple[str, ...], from_its_pod: bool
) -> None:
    bench.workers.pods[POD.uid] = replace(POD, addresses=addresses)
    assert (await bench.post())[0] == 200
    assert bench.tokens.from_its_pod == [from_its_pod]


@pytest.mark.parametrize(
    ("remote", "address"),
    [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("fd00::1", "fd00::1"), ("", "")],
)
def test_the_address_of_a_sender(remote: str, address: str) -> None:
    request = make_mocked_request("POST", "/report").clone(remote=remote)
    assert sender(request) == address


async def test_a_token_that_claims_another_pod_than_it_is_of(bench: _Bench) -> None:
    bench.tokens.speaks_for = PodIdentity("team", "another", "uid-another")
    status, _ = await bench.post()
    assert status == 403
    assert bench.receiver.newest() == ()


@pytest.mark.parametrize("scheme", ["Basic", "", "bearer "])
async def test_other_schemes_are_no_token(bench: _Bench, scheme: str) -> None:
    status, _ = await bench.post(token=None, Authorization=f"{scheme} x")
    assert status == 401


@pytest.mark.parametrize("report", [make_report(attempt=2), make_report(rank=1)])
async def test_a_worker_cannot_speak_for_another(bench: _Bench, report: Report) -> None:
    status, body = await bench.post(report)
    assert status == 403
    assert "attempt 1, rank 0" in body["error"]
    assert bench.receiver.newest() == ()


async def test_a_pod_of_a_job_in_another_namespace_is_refused(bench: _Bench) -> None:
    """References are anybody's to write: the job must live where the pod does."""
    other = make_pod(JOB, uid="pod-x")
    bench.workers.pods["pod-x"] = replace(other, namespace="elsewhere")
    status, _ = await bench.post(token=token_of_pod("elsewhere", other.name, "pod-x"))
    assert status == 403


async def test_who_took_the_place_of_a_worker_is_refused(bench: _Bench) -> None:
    """The status knows the worker's pod; another one of its name and owner is not heard."""
    known = replace(JOB, status=with_pod_uids(JOB.status, [POD]))
    bench.workers.jobs[JOB.metadata.uid] = known
    bench.workers.pods["pod-x"] = replace(POD, uid="pod-x")
    assert (await bench.post())[0] == 200
    assert (await bench.post(token=token_of_pod(uid="pod-x")))[0] == 403


async def test_a_worker_whose_owner_reference_was_stripped_is_heard(bench: _Bench) -> None:
    known = replace(JOB, status=with_pod_uids(JOB.status, [POD]))
    bench.workers.jobs[JOB.metadata.uid] = known
    bench.workers.pods[POD.uid] = replace(POD, job_uid="")
    assert (await bench.post())[0] == 200
    assert [one.job_uid for one in bench.receiver.newest()] == [JOB.metadata.uid]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "report"),
        (b"\xff\xfe", "report"),
        (b"[" * 50_000, "report"),
        (b"[]", "report"),
        (b'{"attempt": 1}', "report.phase"),
        (b'{"attempt": "1", "phase": "training"}', "report.attempt"),
        (b'{"attempt": 1, "phase": "flying"}', "report.phase"),
        (b'{"attempt": 1, "phase": "training", "loss": NaN}', "report.loss"),
        (b'{"attempt": 1, "phase": "training", "step": 1e999}', "report.step"),
    ],
)
async def test_bad_reports_are_answered_with_the_field(
    bench: _Bench, body: bytes, field: str
) -> None:
    status, answer = await bench.post(body)
    assert status == 400
    assert answer["error"].startswith(field), answer
    assert bench.receiver.newest() == ()


async def test_too_large(bench: _Bench) -> None:
    status, answer = await bench.post(b"x" * (BODY_BYTES_MAX + 1))
    assert status == 413
    assert str(BODY_BYTES_MAX) in answer["error"]


async def test_a_flood_is_refused_and_time_heals(bench: _Bench) -> None:
    statuses = [(await bench.post())[0] for _ in range(int(BURST_MAX) + 3)]
    assert statuses.count(200) == BURST_MAX
    assert statuses[-3:] == [429] * 3
    bench.clock.advance(1.0)
    assert (await bench.post())[0] == 200


async def test_a_follower_sends_workers_away(bench: _Bench) -> None:
    bench.leads = False
    assert (await bench.post())[0] == 503


async def test_the_reply_says_stop_with_what_time_is_left(bench: _Bench) -> None:
    deadline = bench.clock.now() + timedelta(seconds=25)
    stop = StopReason("SpotReclaim", "the node goes away", deadline)
    bench.workers.jobs["uid-job"] = with_status(JOB, stop=stop)
    _, answer = await bench.post()
    assert answer["stop"] == {"reason": "SpotReclaim", "deadlineSeconds": 25.0}
    bench.clock.advance(60)
    _, answer = await bench.post()
    assert answer["stop"]["deadlineSeconds"] == 0


async def test_a_pod_that_is_deleted_is_told_to_stop(bench: _Bench) -> None:
    deletion = bench.clock.now() + timedelta(seconds=10)
    bench.workers.pods[POD.uid] = make_pod(JOB, deletion_at=deletion)
    _, answer = await bench.post()
    assert answer["stop"] == {"reason": "PodDeleted", "deadlineSeconds": 10.0}


@pytest.mark.parametrize(
    ("status", "is_over"),
    [
        ({}, False),
        ({"attempt": 2}, True),
        ({"phase": JobPhase.PENDING, "placement": None}, True),
        ({"phase": JobPhase.FAILED}, True),
        ({"attempt": 0, "placement": None}, False),
    ],
    ids=["current", "a later attempt", "given up", "finished", "an old view of the job"],
)
async def test_a_worker_of_an_attempt_that_is_over_is_told_so(
    bench: _Bench, status: dict[str, Any], is_over: bool
) -> None:
    """I3: it asks before its first step, and does not begin."""
    bench.workers.jobs["uid-job"] = with_status(JOB, **status)
    code, answer = await bench.post()
    assert code == 200
    expected = {"reason": "AttemptOver", "deadlineSeconds": 0.0}
    assert answer.get("stop") == (expected if is_over else None)


@pytest.mark.promise("I3")
@pytest.mark.parametrize("resumed_from", [None, 7])
@pytest.mark.parametrize("status", [{"placement": None}, {}], ids=["waits", "of before"])
async def test_a_worker_that_no_status_placed_does_not_begin(
    bench: _Bench, status: dict[str, Any], resumed_from: int | None
) -> None:
    """I3: the status was lost when data were restored. One that has begun goes on: an old view of
    the job looks the same."""
    bench.workers.jobs["uid-job"] = with_status(JOB, attempt=0, **status)
    begins = replace(
        make_report(phase=WorkerPhase.STARTING, step=resumed_from or 0, current=None),
        resumed_from_step=resumed_from,
    )
    _, answer = await bench.post(begins)
    assert answer["stop"] == {"reason": "AttemptOver", "deadlineSeconds": 0.0}
    _, answer = await bench.post(make_report(phase=WorkerPhase.TRAINING, sequence=1))
    assert answer.get("stop") is None


async def test_late_reports_do_not_replace_newer_ones(bench: _Bench) -> None:
    await bench.post(make_report(step=20, sequence=5))
    await bench.post(make_report(step=10, sequence=4))
    assert bench.receiver.newest()[0].report.step == 20


async def test_reports_of_a_job_that_is_gone_are_forgotten(bench: _Bench) -> None:
    await bench.post()
    bench.workers.jobs.clear()
    assert bench.receiver.newest() == ()


@pytest.mark.parametrize(
    ("second", "urgent"),
    [
        (make_report(step=11), False),
        (make_report(step=11, phase=WorkerPhase.CHECKPOINTING), True),
        (make_report(step=11, checkpoint_step=10), True),
    ],
)
async def test_steps_are_not_urgent_but_news_is(
    bench: _Bench, second: Report, urgent: bool
) -> None:
    await bench.post(make_report(step=10))
    bench.dirty.take()
    await bench.post(second)
    assert bench.dirty.any.is_set()
    assert bench.dirty.urgent.is_set() is urgent


async def test_other_paths_and_methods_do_not_exist(bench: _Bench) -> None:
    session: ClientSession | Client = bench.client
    async with session.get("/report") as response:
        assert response.status == 405
    async with session.post("/") as response:
        assert response.status == 404


async def test_whatever_a_report_holds_it_is_answered(bench: _Bench) -> None:
    """No traceback, no 500: a refusal that names the field, or a report that others can read."""
    for position, value in enumerate(ODD_SCALARS):
        for name in ("loss", "step", "device", "failure", "attempt", "explain"):
            data = {"attempt": 1, "phase": "training", "sequence": position, name: value}
            status, answer = await bench.post(to_json(data))
            assert status in (200, 400, 403, 413), (name, answer)
            assert status in (200, 413) or answer["error"].startswith("report")
            bench.clock.advance(60)
    for body in (b"\xff", b"[", b"[" * 60_000, b"9" * 60_000, b"null"):
        status, answer = await bench.post(body)
        assert (status, answer["error"][:6]) == (400, "report")
        bench.clock.advance(60)
    for received in bench.receiver.newest():
        json.loads(received.report.to_text(), parse_constant=pytest.fail).items()


async def test_a_fault_of_our_own_is_an_answer_and_counted(
    bench: _Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(uid: str) -> GPUJob:
        raise ZeroDivisionError(uid)

    monkeypatch.setattr(bench.workers, "pod", broken)
    status, answer = await bench.post()
    assert status == 500
    assert "log" in answer["error"]
    assert b'gpujob_reports_total{result="error"} 1.0' in bench.metrics.text()
