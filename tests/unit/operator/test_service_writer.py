"""What is written for services, refused, repeated and interrupted."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpujob_api.gpuservice import GPUService, Replicas
from gpujob_api.manifest import gpujob_from_manifest, gpuservice_from_manifest, to_manifest
from gpujob_api.meta import LABEL_REVISION, LABEL_SERVICE_UID, Metadata
from gpujob_api.serving import ServingReport
from gpujob_operator.act.front_writer import FrontWriter
from gpujob_operator.act.service_writer import ServiceFeedback, ServiceWriter
from gpujob_operator.client.api_errors import ApiError, Conflict, Forbidden, NotFound, Unavailable
from gpujob_operator.client.kube import GPU_SERVICES, JOBS, SERVICES, Manifest, ResourceType
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import Gate
from gpujob_operator.decide.model.plan import EventNote
from gpujob_operator.decide.model.service_plan import RemoveJob, ServiceInputs, ServiceJob
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.services.plan import plan_services, step_of
from gpujob_operator.port.parking import ParkingRequests
from gpujob_operator.render.gate import gate_revision
from gpujob_operator.service_loop import GateSources, ServiceLoop, service_inputs
from tests.harness.builders import T0, make_job, make_pod, make_report, placed, received
from tests.harness.fake_kube import FakeKube
from tests.harness.services import make_service, read_job

CONFIGURATION = Configuration(gate_image="operator:1", report_url="http://operator:8080/report")


class Stage:
    """A service on the fake API server, and the writer."""

    def __init__(self) -> None:
        self.kube = FakeKube()
        self.leads = True
        self.written: list[tuple[str, str]] = []
        self.notes: list[str] = []
        body = to_manifest(make_service(replicas=Replicas(2)))
        body["metadata"] = {"name": "answers", "namespace": "team"}
        self.service = gpuservice_from_manifest(self.kube.put(GPU_SERVICES, body))
        self.writer = ServiceWriter(
            self.kube,
            ServiceFeedback(self._written, self._gone, self._noted),
            may_act=lambda: self.leads,
            unknown=lambda uid: {"later": 1},
            configuration=CONFIGURATION,
        )
        self.front = FrontWriter(self.kube, may_act=lambda: self.leads)

    def _written(self, kind: ResourceType, manifest: Manifest) -> None:
        self.written.append((kind.plural, manifest["metadata"]["name"]))
        if kind is GPU_SERVICES:
            self.service = gpuservice_from_manifest(manifest)

    def _gone(self, kind: ResourceType, uid: str) -> None:
        self.written.append((kind.plural, "gone"))

    def _noted(self, metadata: Metadata, note: EventNote) -> None:
        self.notes.append(note.reason)

    async def write(self, service: GPUService | None = None, now: datetime = T0) -> None:
        given = ServiceInputs(service or self.service, (), self.problem, self.front_problem)
        await self.writer.write(step_of(given, T0), now)

    @property
    def problem(self) -> str:
        return self.writer.problem(self.service.metadata.uid)

    @property
    def front_problem(self) -> str:
        return self.front.problem(self.service.metadata.uid)


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_jobs_belong_to_their_service_and_name_their_revision(stage: Stage) -> None:
    await stage.write()
    names = stage.kube.names(JOBS)
    assert len(names) == 1, "the next one avoids the node of this one"
    job = stage.kube.stored(JOBS, names[0], "team")
    [owner] = job["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == (
        "GPUService",
        stage.service.metadata.uid,
        True,
    )
    labels = job["metadata"]["labels"]
    assert labels[LABEL_SERVICE_UID] == stage.service.metadata.uid
    assert labels[LABEL_REVISION] in names[0]


async def test_the_status_keeps_what_a_later_version_wrote(stage: Stage) -> None:
    await stage.write()
    stored = stage.kube.stored(GPU_SERVICES, "answers", "team")
    assert stored["status"]["wantedReplicas"] == 2
    assert stored["status"]["later"] == 1


async def test_a_request_whose_answer_was_lost_is_repeated_without_harm(stage: Stage) -> None:
    stage.kube.fail("create", JOBS.plural, after_effect=True)
    await stage.write()
    await stage.write(now=T0 + timedelta(seconds=6))
    assert len(stage.kube.names(JOBS)) == 1
    assert stage.problem == ""


async def test_a_job_of_somebody_else_with_the_name_is_left_alone(stage: Stage) -> None:
    given = step_of(ServiceInputs(stage.service), T0)
    name = given.creates[0].name
    stage.kube.put(JOBS, {"metadata": {"name": name, "namespace": "team", "labels": {"mine": "1"}}})
    await stage.writer.write(given, T0)
    assert stage.kube.stored(JOBS, name, "team")["metadata"]["labels"] == {"mine": "1"}
    assert f'gpujobs "{name}" exists and is not of this GPUService' in stage.problem


@pytest.mark.parametrize(
    "error",
    [Forbidden(403, "Forbidden", "exceeded quota: jobs=3"), ApiError(422, "Invalid", "bad")],
)
async def test_a_refusal_is_remembered_until_a_job_is_created(
    stage: Stage, error: ApiError
) -> None:
    stage.kube.fail("create", JOBS.plural, error)
    await stage.write()
    assert error.message in stage.problem
    await stage.write(now=T0 + timedelta(seconds=1))
    assert error.message in stage.problem, "the API server is not asked every second"
    assert sum(call.plural == JOBS.plural for call in stage.kube.writes()) == 1
    await stage.write(now=T0 + timedelta(seconds=6))
    assert stage.problem == ""
    stage.kube.fail("create", JOBS.plural, error)
    stage.writer.forget_others(set())
    assert stage.problem == ""


async def test_nothing_is_written_without_the_lead(stage: Stage) -> None:
    stage.leads = False
    await stage.write()
    await stage.front.write(stage.service, T0)
    assert stage.kube.writes() == []


async def test_a_lost_lead_ends_the_step_in_its_middle(stage: Stage) -> None:
    def lose(call: Any) -> None:
        stage.leads = False

    stage.kube.before = lose
    await stage.write()
    assert len(stage.kube.writes()) == 1


@pytest.mark.parametrize("error", [Conflict(409, "Conflict", "x"), Unavailable(0, "x", "y")])
async def test_a_status_that_somebody_changed_first_waits_for_the_next_round(
    stage: Stage, error: ApiError
) -> None:
    stage.kube.fail("replace", GPU_SERVICES.plural, error)
    await stage.write()
    assert (GPU_SERVICES.plural, "answers") not in stage.written
    await stage.write()
    assert (GPU_SERVICES.plural, "answers") in stage.written


async def test_a_service_that_is_gone_is_forgotten(stage: Stage) -> None:
    stage.kube.fail("replace", GPU_SERVICES.plural, NotFound(404, "NotFound", "x"))
    await stage.write()
    assert (GPU_SERVICES.plural, "gone") in stage.written


async def test_the_service_in_front_selects_replicas_and_is_made_once(stage: Stage) -> None:
    await stage.front.write(stage.service, T0)
    await stage.front.write(stage.service, T0)
    assert [call.plural for call in stage.kube.writes()] == [SERVICES.plural]
    spec = stage.kube.stored(SERVICES, "answers", "team")["spec"]
    assert spec["selector"] == {LABEL_SERVICE_UID: stage.service.metadata.uid}
    assert spec["ports"][0]["port"] == 8000


async def test_a_service_of_somebody_else_in_front_is_named(stage: Stage) -> None:
    stage.kube.put(SERVICES, {"metadata": {"name": "answers", "namespace": "team"}})
    await stage.front.write(stage.service, T0)
    assert 'services "answers" exists' in stage.front_problem
    assert "delete it" in stage.front_problem
    await stage.write()
    assert "delete it" in stage.front_problem, "created replicas do not correct it"
    condition = next(one for one in stage.service.status.conditions if one.type == "Ready")
    assert (condition.status.value, condition.reason) == ("False", "ServiceRejected")
    assert 'services "answers" exists' in condition.message


async def test_a_refused_service_is_requested_again_after_a_pause(stage: Stage) -> None:
    stage.kube.put(SERVICES, {"metadata": {"name": "answers", "namespace": "team"}})
    for second in range(11):
        await stage.front.write(stage.service, T0 + timedelta(seconds=second))
    assert len(stage.kube.writes()) == 3
    stage.kube.remove(SERVICES, "answers", "team")
    await stage.front.write(stage.service, T0 + timedelta(seconds=16))
    assert stage.front_problem == ""
    assert stage.kube.names(SERVICES) == ["answers"]


async def test_a_service_that_somebody_deleted_is_created_again(stage: Stage) -> None:
    await stage.front.write(stage.service, T0)
    stage.kube.remove(SERVICES, "answers", "team")
    await stage.front.write(stage.service, T0 + timedelta(seconds=59))
    assert stage.kube.names(SERVICES) == []
    await stage.front.write(stage.service, T0 + timedelta(seconds=60))
    assert stage.kube.names(SERVICES) == ["answers"]


async def test_a_removed_job_that_is_gone_already_is_no_error(stage: Stage) -> None:
    job = make_job("answers-aaaaaa-0")
    step = replace(step_of(ServiceInputs(stage.service), T0), removes=(RemoveJob(job, "x"),))
    await stage.writer.write(step, T0)
    assert (JOBS.plural, "gone") in stage.written


async def test_a_job_is_created_only_after_the_removal_that_makes_room_for_it(
    stage: Stage,
) -> None:
    job = make_job("answers-aaaaaa-0")
    step = replace(step_of(ServiceInputs(stage.service), T0), removes=(RemoveJob(job, "x"),))
    stage.kube.fail("delete", JOBS.plural, Forbidden(403, "Forbidden", "denied by a webhook"))
    await stage.writer.write(step, T0)
    assert [call.verb for call in stage.kube.writes()] == ["delete"]
    await stage.writer.write(step, T0)
    assert [call.verb for call in stage.kube.writes()][1:3] == ["delete", "create"]


async def test_after_a_deletion_without_an_answer_nothing_is_decided_until_it_is_known(
    stage: Stage,
) -> None:
    """The cache may still have the job, and the step may count on it."""
    await stage.write()
    name = stage.kube.names(JOBS)[0]
    job = gpujob_from_manifest(stage.kube.stored(JOBS, name, "team"))
    removal = replace(
        step_of(ServiceInputs(stage.service), T0), removes=(RemoveJob(job, "x"),), creates=()
    )
    stage.kube.fail(
        "delete", JOBS.plural, Unavailable(0, "Timeout", "no answer"), after_effect=True
    )
    await stage.writer.write(removal, T0)
    stage.written.clear()
    before = len(stage.kube.writes())
    stale = replace(removal, removes=(RemoveJob(make_job("another"), "x"),))
    await stage.writer.write(stale, T0)
    assert [call.verb for call in stage.kube.writes()[before:]] == ["delete"]
    assert stage.written == [(JOBS.plural, "gone")]
    await stage.writer.write(stale, T0)
    assert [call.verb for call in stage.kube.writes()[before + 1 :]][:1] == ["delete"]


def test_only_jobs_that_the_service_controls_count() -> None:
    service = make_service()
    uid = service.metadata.uid
    stranger = make_job("answers-aaaaaa-0")
    labels = {LABEL_SERVICE_UID: uid, LABEL_REVISION: "aaaaaa"}
    stranger = replace(stranger, metadata=replace(stranger.metadata, labels=labels))
    [given] = service_inputs([service], Snapshot(jobs=(stranger,)), lambda uid: "", lambda uid: "")
    assert given.jobs == ()


def test_a_job_of_another_namespace_is_no_replica_whatever_it_says() -> None:
    """The garbage collector deletes it, or takes its reference away, but not at once."""
    service = make_service()
    job = _owned(service)
    forged = replace(job, metadata=replace(job.metadata, namespace="evil", uid="uid-evil"))
    snapshot = Snapshot(jobs=(job, forged), pods=(make_pod(forged, ready=True),))
    [given] = service_inputs([service], snapshot, lambda uid: "", lambda uid: "")
    assert [one.job.metadata.namespace for one in given.jobs] == [service.metadata.namespace]


def test_a_replica_without_its_labels_is_still_a_replica() -> None:
    """Otherwise another of its name would be created again and again."""
    service = make_service()
    job = _owned(service)
    bare = replace(job, metadata=replace(job.metadata, labels={}))
    [given] = service_inputs([service], Snapshot(jobs=(bare,)), lambda uid: "", lambda uid: "")
    assert given.jobs == (ServiceJob(bare, None, None),)
    assert step_of(given, T0).creates == step_of(replace(given, jobs=()), T0).creates[1:]


def _owned(service: GPUService) -> Any:
    [create] = step_of(ServiceInputs(service), T0).creates
    return placed(read_job(create, "uid-r", T0))


def test_a_replica_is_joined_with_its_pod_and_its_newest_report() -> None:
    service = make_service()
    job = _owned(service)
    pod = make_pod(job, ready=True)
    report = received(job, make_report(serving=ServingReport(answered=7)))
    snapshot = Snapshot(jobs=(job,), pods=(pod,), reports=(report,))
    [given] = service_inputs([service], snapshot, lambda uid: "p", lambda uid: "f")
    assert (given.problem, given.front_problem) == ("p", "f")
    assert given.jobs == (ServiceJob(job, pod, report.report.serving),)
    last = make_report(serving=ServingReport(answered=9))
    ended = make_pod(job, exit_code=0, termination=last)
    [given] = service_inputs(
        [service], replace(snapshot, pods=(ended,)), lambda uid: "", lambda uid: ""
    )
    assert given.jobs[0].report == last.serving, "the last words of a process that has ended"


def test_a_pod_without_its_owner_reference_is_still_its_replica() -> None:
    service = make_service()
    job, ready = _owned(service), make_pod(_owned(service), ready=True)
    worker = replace(job.status.placement.workers[0], pod_uid=ready.uid)
    placement = replace(job.status.placement, workers=(worker,))
    running = replace(job, status=replace(job.status, placement=placement))
    stripped = replace(ready, job_uid="")
    for recorded, expected in ((running, stripped), (job, None)):
        snapshot = Snapshot(jobs=(recorded,), pods=(stripped,))
        [given] = service_inputs([service], snapshot, lambda uid: "", lambda uid: "")
        assert given.jobs[0].pod == expected


def loop_of(stage: Stage, services: Callable[[], tuple[GPUService, ...]]) -> ServiceLoop:
    """A loop without gates. A round begins only if it is woken."""
    return ServiceLoop(
        services=services,
        snapshot=Snapshot,
        plan=plan_services,
        writer=stage.writer,
        front=stage.front,
        gates=GateSources(lambda: (), lambda service: ""),
        parking=ParkingRequests(lambda: None),
        may_act=lambda: stage.leads,
        clock=lambda: T0,
        sleep=lambda _: asyncio.sleep(0),
        period_seconds=3600.0,
    )


async def test_a_round_decides_and_writes_only_with_services_and_the_lead(stage: Stage) -> None:
    rounds: list[int] = []
    services: list[GPUService] = []
    gates: tuple[Gate, ...] = ()

    def plan(inputs: Any, now: Any) -> Any:
        rounds.append(1)
        return plan_services(inputs, now)

    def loop(snapshot: Callable[[], Snapshot | None]) -> ServiceLoop:
        return ServiceLoop(
            services=lambda: tuple(services),
            snapshot=snapshot,
            plan=plan,
            writer=stage.writer,
            front=stage.front,
            gates=GateSources(
                lambda: gates,
                lambda service: gate_revision(service, CONFIGURATION),
            ),
            parking=ParkingRequests(lambda: None),
            may_act=lambda: stage.leads,
            clock=lambda: T0,
        )

    await loop(Snapshot).round()
    services.append(stage.service)
    await loop(lambda: None).round()
    stage.leads = False
    await loop(Snapshot).round()
    assert rounds == []
    stage.leads = True
    await loop(Snapshot).round()
    assert rounds == [1]
    assert len(stage.kube.names(JOBS)) == 1
    assert stage.kube.names(SERVICES) == ["answers"]


async def test_a_deletion_without_an_answer_is_not_repeated_under_another_lead(
    stage: Stage,
) -> None:
    """The leader in between may have decided that the job stays."""
    removal = replace(
        step_of(ServiceInputs(stage.service), T0),
        removes=(RemoveJob(make_job("kept"), "x"),),
        creates=(),
    )
    stage.kube.fail("delete", JOBS.plural)
    await stage.writer.write(removal, T0)
    loop = loop_of(stage, lambda: (stage.service,))
    stage.leads = False
    await loop.round()
    stage.leads = True
    before = len(stage.kube.writes())
    await stage.writer.write(replace(removal, removes=()), T0)
    assert "delete" not in [call.verb for call in stage.kube.writes()[before:]]


async def test_a_round_begins_at_once_if_the_loop_is_woken(stage: Stage) -> None:
    rounds: list[int] = []
    ended = asyncio.Event()

    def services() -> tuple[GPUService, ...]:
        rounds.append(1)
        if len(rounds) == 2:
            ended.set()
        return ()

    loop = loop_of(stage, services)
    running = asyncio.create_task(loop.run())
    for _ in range(2):
        assert not ended.is_set()
        loop.wake()
        await asyncio.sleep(0.01)
    await asyncio.wait_for(ended.wait(), 30)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
