"""What is written for a service's gate: its pod, and what the Service selects."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gate import GateReport
from gpujob_api.gpuservice import GPUService, Replicas
from gpujob_api.manifest import to_manifest
from gpujob_api.meta import LABEL_GATE, LABEL_SERVICE_UID
from gpujob_operator.act.front_writer import FrontWriter
from gpujob_operator.act.service_writer import ServiceFeedback, ServiceWriter
from gpujob_operator.client.api_errors import Conflict, Forbidden
from gpujob_operator.client.kube import GPU_SERVICES, PODS, SERVICES, Manifest, ResourceType
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import Gate
from gpujob_operator.decide.model.service_plan import ServiceInputs, ServicePlan
from gpujob_operator.decide.model.snapshot import Parking, Snapshot
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.port.parking import ParkingRequests
from gpujob_operator.render.gate import gate_revision
from gpujob_operator.service_loop import GateSources, ServiceLoop
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import T0
from tests.harness.fake_kube import FakeKube
from tests.harness.services import make_service

CONFIGURATION = Configuration(gate_image="operator:1", report_url="http://operator:8080/report")
KINDS = {PODS: Kind.POD, GPU_SERVICES: Kind.SERVICE}


class Stage:
    """Rounds of a service with minimum 0 on the fake API server, with the real cache."""

    def __init__(self, configuration: Configuration = CONFIGURATION) -> None:
        self.kube = FakeKube()
        self.configuration = configuration
        self.now = T0
        self.cache = Cache(Dirty(), Metrics(), lambda: self.now)
        self.reports: dict[str, GateReport] = {}
        self.plans: list[ServicePlan] = []
        self.inputs: list[ServiceInputs] = []
        self.parking = ParkingRequests(lambda: None)
        body = to_manifest(make_service(replicas=Replicas(0)))
        body["metadata"] = {"name": "answers", "namespace": "team"}
        self._written(GPU_SERVICES, self.kube.put(GPU_SERVICES, body))
        self.writer = ServiceWriter(
            self.kube,
            ServiceFeedback(self._written, self._gone, lambda metadata, note: None),
            may_act=lambda: True,
            unknown=lambda uid: {},
            configuration=configuration,
        )
        self.front = FrontWriter(self.kube, may_act=lambda: True)
        self.loop = ServiceLoop(
            services=lambda: (self.service,),
            snapshot=Snapshot,
            plan=self._plan,
            writer=self.writer,
            front=self.front,
            gates=GateSources(
                lambda: tuple(Gate(pod) for pod in self.cache.listers.gates()),
                lambda service: gate_revision(service, self.configuration),
            ),
            parking=self.parking,
            may_act=lambda: True,
            clock=lambda: self.now,
        )

    def _plan(self, inputs: Any, now: Any) -> ServicePlan:
        self.inputs = list(inputs)
        self.plans.append(plan_services(self.inputs, now))
        return self.plans[-1]

    def _written(self, kind: ResourceType, manifest: Manifest) -> None:
        if kind in KINDS:
            self.cache.apply(KINDS[kind], None, manifest)

    def _gone(self, kind: ResourceType, uid: str) -> None:
        if kind in KINDS:
            self.cache.forget(KINDS[kind], uid)

    @property
    def service(self) -> GPUService:
        [found] = self.cache.services.views
        return found

    async def round(self, seconds: float = 1.0) -> None:
        self.now += timedelta(seconds=seconds)
        await self.loop.round()

    def set_ready(self, name: str) -> None:
        """The kubelet starts the pod."""
        body = self.kube.stored(PODS, name, "team")
        body["status"] = {
            "phase": "Running",
            "podIPs": [{"ip": "10.0.0.9"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        self._written(PODS, self.kube.put(PODS, body))

    def edit(self, **replicas: Any) -> None:
        body = self.kube.stored(GPU_SERVICES, "answers", "team")
        body["spec"]["replicas"] = replicas
        self._written(GPU_SERVICES, self.kube.put(GPU_SERVICES, body))

    def selector(self) -> dict[str, str]:
        return self.kube.stored(SERVICES, "answers", "team")["spec"]["selector"]


async def test_the_gate_is_a_pod_of_the_service_and_is_created_once() -> None:
    stage = Stage()
    for _ in range(8):
        await stage.round()
    assert stage.kube.names(PODS) == ["answers-gate-0"]
    pod = stage.kube.stored(PODS, "answers-gate-0", "team")
    [owner] = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("GPUService", stage.service.metadata.uid)
    [view] = stage.cache.listers.gates()
    assert (view.ready, view.service_uid) == (False, stage.service.metadata.uid)
    assert view.revision == gate_revision(stage.service, CONFIGURATION)
    gate = stage.service.status.gate
    assert gate is not None
    assert "pod answers-gate-0 does not answer its readiness probe yet" in gate.message
    assert "kubectl logs answers-gate-0 -n team" in gate.message


async def test_the_service_selects_the_gate() -> None:
    stage = Stage()
    await stage.round()
    assert stage.selector() == {LABEL_SERVICE_UID: stage.service.metadata.uid, LABEL_GATE: "true"}
    stage.set_ready("answers-gate-0")
    await stage.round()
    gate = stage.service.status.gate
    assert gate is not None
    assert gate.address == "10.0.0.9:8000"


async def test_an_edit_from_zero_changes_the_service_before_the_gate_goes() -> None:
    stage = Stage()
    await stage.round()
    stage.set_ready("answers-gate-0")
    await stage.round()
    stage.edit(minimum=1)
    await stage.round()
    assert stage.kube.names(PODS) == ["answers-gate-0"], "no replica answers yet"
    status = replace(stage.service.status, ready_replicas=1)
    body = to_manifest(replace(stage.service, status=status))
    stage._written(GPU_SERVICES, stage.kube.put(GPU_SERVICES, body))
    stage.kube.fail("replace", SERVICES.plural, Forbidden(403, "Forbidden", "no"))
    await stage.round()
    assert LABEL_GATE in stage.selector()
    assert stage.kube.names(PODS) == ["answers-gate-0"], "requests still come to it"
    assert "no" in stage.front.problem(stage.service.metadata.uid)


async def test_a_service_without_a_gate_learns_which_replicas_wake() -> None:
    """After an edit from zero: one that does not wake has to be replaced, too."""
    stage = Stage()
    stage.edit(minimum=1)
    stage.parking.ask([Parking("uid-1", parks=False)], T0)
    await stage.round()
    [inputs] = stage.inputs
    assert (inputs.gates, dict(inputs.waking_since)) == ((), {"uid-1": T0})


async def test_a_changed_service_keeps_what_others_wrote() -> None:
    stage = Stage()
    await stage.front.write(stage.service, T0, to_gate=False)
    stored = stage.kube.stored(SERVICES, "answers", "team")
    stored["spec"] |= {"clusterIP": "10.96.0.7", "sessionAffinity": "ClientIP"}
    stage.kube.put(SERVICES, stored)
    await stage.front.write(stage.service, T0 + timedelta(seconds=1), to_gate=True)
    spec = stage.kube.stored(SERVICES, "answers", "team")["spec"]
    assert (spec["clusterIP"], spec["sessionAffinity"]) == ("10.96.0.7", "ClientIP")
    assert spec["selector"][LABEL_GATE] == "true"
    assert stage.front.selects_gate(stage.service.metadata.uid) is True


async def test_a_conflict_is_no_problem_and_is_repeated() -> None:
    stage = Stage()
    uid = stage.service.metadata.uid
    await stage.front.write(stage.service, T0, to_gate=False)
    stage.kube.fail("replace", SERVICES.plural, Conflict(409, "Conflict", "x"))
    await stage.front.write(stage.service, T0 + timedelta(seconds=1), to_gate=True)
    assert stage.front.problem(uid) == ""
    assert stage.front.selects_gate(uid) is False
    await stage.front.write(stage.service, T0 + timedelta(seconds=2), to_gate=True)
    assert stage.front.selects_gate(uid) is True
    stage.front.forget_others(set())
    assert stage.front.selects_gate(uid) is None


@pytest.mark.parametrize("kind", ["refused", "foreign", "no image"])
async def test_why_there_is_no_gate_is_in_the_condition(kind: str) -> None:
    image = None if kind == "no image" else "operator:1"
    stage = Stage(replace(CONFIGURATION, gate_image=image))
    if kind == "refused":
        refused = Forbidden(403, "Forbidden", "exceeded quota: pods=3")
        stage.kube.fail("create", PODS.plural, refused, times=2)
    if kind == "foreign":
        stage.kube.put(PODS, {"metadata": {"name": "answers-gate-0", "namespace": "team"}})
    for _ in range(3):
        await stage.round()
    condition = next(one for one in stage.service.status.conditions if one.type == "Ready")
    assert condition.reason == "GateNotReady"
    expected = {"refused": "exceeded quota", "foreign": "delete it", "no image": "gateImage"}
    assert expected[kind] in condition.message
    creates = [call for call in stage.kube.writes() if call.plural == PODS.plural]
    assert len(creates) == (0 if kind == "no image" else 1), "not in every round"
    if kind == "refused":
        for _ in range(11):
            await stage.round()
        assert stage.kube.names(PODS) == ["answers-gate-0"]
        assert stage.writer.gate_problem(stage.service.metadata.uid) == ""


async def test_a_gate_that_ended_is_removed_and_replaced() -> None:
    stage = Stage()
    await stage.round()
    body = stage.kube.stored(PODS, "answers-gate-0", "team")
    body["status"] = {"phase": "Failed", "reason": "Evicted"}
    stage._written(PODS, stage.kube.put(PODS, body))
    for _ in range(8):
        await stage.round()
    assert [pod.name for pod in stage.cache.listers.gates() if not pod.leaving] == [
        "answers-gate-1"
    ]


async def test_pods_of_others_are_no_gates() -> None:
    stage = Stage()
    await stage.round()
    own = stage.kube.stored(PODS, "answers-gate-0", "team")
    for number, change in enumerate(
        [
            {"labels": {}},
            {"ownerReferences": []},
            {"labels": {LABEL_GATE: "true", LABEL_SERVICE_UID: "another"}},
        ]
    ):
        metadata = own["metadata"] | {"name": f"p{number}", "uid": f"u{number}"} | change
        stage._written(PODS, {**own, "metadata": metadata})
    assert [pod.name for pod in stage.cache.listers.gates()] == ["answers-gate-0"]
    foreign = own["metadata"] | {"name": "p9", "uid": "u9", "namespace": "another"}
    stage._written(PODS, {**own, "metadata": foreign})
    stage.plans.clear()
    stage.set_ready("answers-gate-0")
    await stage.round()
    assert stage.plans[0].steps[0].gates.removes == (), "it is of another namespace"
