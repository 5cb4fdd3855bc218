"""A service without a replica: when the last one stops, and when the first one starts."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gate import GateReport
from gpujob_api.gpuservice import GPUServiceStatus, Replicas, ServiceOptimize
from gpujob_api.serving import BackendName, ServingReport
from gpujob_operator.decide.model.gates import Gate, GatePod
from gpujob_operator.decide.model.service_plan import ServiceInputs
from gpujob_operator.decide.services.gates import FRESH, Demand, demand_of, sends_to_gate
from tests.harness.builders import T0
from tests.harness.services import UID, ServiceWorld, make_service

STOP_AFTER = 20
EAGER = ServiceOptimize(backend=BackendName.EAGER)


def world(maximum: int = 1, **more: Any) -> ServiceWorld:
    replicas = Replicas(0, maximum, stop_after_seconds=STOP_AFTER, cold_start_seconds=30)
    return ServiceWorld(make_service(replicas=replicas, optimize=EAGER), **more)


def at_zero(**more: Any) -> ServiceWorld:
    scene = world(**more).run(STOP_AFTER + 15)
    assert scene.status.wanted_replicas == 0
    assert scene.replicas() == []
    return scene


def test_a_new_service_starts_one_replica_and_stops_it_without_requests() -> None:
    scene = world().run(5)
    assert len(scene.ready()) == 1
    scene.run(STOP_AFTER - 2)
    assert len(scene.ready()) == 1, "the time counts from Ready"
    scene.run(8)
    assert scene.replicas() == []
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("False", "ScaledToZero")
    assert f"for {STOP_AFTER} s" in message
    assert "up to 30 s" in message
    assert scene.status.summary.ready == "0/0"
    assert scene.status.gate is not None
    assert scene.status.gate.address == "10.0.0.9:8000"


def test_a_held_request_starts_a_replica_in_the_same_round() -> None:
    scene = at_zero()
    scene.request()
    scene.tick()
    assert len(scene.replicas()) == 1
    scene.run(5)
    assert scene.answered == 1
    assert scene.condition("Ready")[:2] == ("True", "ReplicasReady")
    scene.run(STOP_AFTER + 10)
    assert scene.replicas() == [], "and it stops again"


def test_requests_keep_the_last_replica() -> None:
    scene = world().run(5)
    for _ in range(5):
        scene.run(STOP_AFTER - 5)
        scene.request()
    scene.run(1)
    assert len(scene.ready()) == 1
    assert scene.expired == 0


def test_a_request_that_arrives_as_the_last_replica_drains_is_answered_by_another() -> None:
    scene = world(drain_seconds=8.0)
    while scene.status.wanted_replicas or not scene.steps:
        scene.tick()
    assert scene.replicas(), "it drains"
    scene.request()
    scene.run(6)
    assert scene.answered == 1
    assert len(scene.created) == 2


def test_a_replica_that_starts_or_waits_for_a_gpu_is_not_stopped() -> None:
    scene = at_zero()
    scene.start_seconds = lambda name: None
    scene.request()
    scene.run(3 * STOP_AFTER)
    assert scene.expired == 1, "the request waited for the cold start and no longer"
    assert len(scene.replicas()) == 1, "the next request finds it further"


def test_nothing_stops_while_a_replica_starts_beside_one_that_answers() -> None:
    scene = world(2)
    scene.start_seconds = lambda name: 3.0 if name.endswith("-0") else None
    scene.report = lambda live: ServingReport(ready=True, busy_percent=100.0)
    scene.run(10)
    assert len(scene.replicas()) == 2, "the second one waits for a GPU"
    scene.run(3 * STOP_AFTER)
    assert len(scene.ready()) == 1


@pytest.mark.parametrize("lost", ["silent", "gone"])
def test_a_gate_without_a_report_stops_nothing(lost: str) -> None:
    scene = world().run(6)
    for live in scene.gates.values():
        live.is_silent = True
    if lost == "gone":
        scene.lose_gate()
        for _ in range(3 * STOP_AFTER):
            scene.tick()
            for live in scene.gates.values():
                live.is_silent = True
    else:
        scene.run(3 * STOP_AFTER)
    assert len(scene.ready()) == 1
    assert scene.condition("Ready")[0] == "True"


def test_requests_past_the_gate_keep_the_last_replica() -> None:
    scene = world()
    scene.report = lambda live: ServingReport(ready=True, requests_per_second=0.1)
    scene.run(3 * STOP_AFTER)
    assert len(scene.ready()) == 1


def test_all_replicas_stop_together() -> None:
    busy = ServingReport(ready=True, busy_percent=100.0, requests_per_second=9.0)
    scene = world(2)
    scene.report = lambda live: busy
    scene.run(20)
    assert len(scene.ready()) == 2
    scene.report = lambda live: ServingReport(ready=True)
    scene.run(STOP_AFTER + 10)
    assert scene.replicas() == []


def test_suspension_stops_the_replica_whatever_waits() -> None:
    scene = world().run(6)
    scene.edit(suspend=True)
    scene.run(1)
    scene.request()
    scene.run(10)
    assert scene.replicas() == []
    assert scene.condition("Ready")[1] == "Suspended"
    scene.held.clear()
    scene.edit(suspend=False)
    scene.run(5)
    assert scene.replicas() == [], "it starts with the next request"
    scene.request()
    scene.run(5)
    assert scene.answered == 1


def test_a_failing_replica_is_tried_again_after_pauses_and_stays_wanted() -> None:
    scene = at_zero()
    scene.request()
    scene.run(2)
    scene.fail(scene.replicas()[-1].job.metadata.name)
    scene.run(2)
    assert scene.condition("Ready")[:2] == ("False", "ReplicasFailing")
    scene.run(15)
    assert scene.status.wanted_replicas == 1
    assert scene.answered == 1


def test_an_edit_to_zero_creates_the_gate_first_and_one_from_zero_removes_it_last() -> None:
    scene = ServiceWorld(make_service(optimize=EAGER)).run(6)
    assert scene.gates == {}
    scene.edit(replicas=Replicas(0, stop_after_seconds=STOP_AFTER))
    scene.tick()
    assert list(scene.gates) == ["answers-gate-0"]
    assert scene.selects_gate is False, "it takes no requests yet"
    scene.run(3)
    assert scene.selects_gate is True
    scene.run(STOP_AFTER + 10)
    assert scene.replicas() == []
    scene.edit(replicas=Replicas(1))
    scene.run(2)
    assert scene.selects_gate is True, "no replica answers yet"
    assert len(scene.gates) == 1
    scene.run(15)
    assert scene.selects_gate is False
    assert scene.gates == {}
    assert scene.status.gate is None
    assert len(scene.ready()) == 1


def test_a_gate_of_an_older_revision_goes_after_the_new_one_takes_requests() -> None:
    scene = world().run(6)
    scene.gate_revision = "bbbbbb"
    open_gates: list[int] = []
    for _ in range(12):
        scene.tick()
        open_gates.append(sum(one.pod.ready for one in scene.gates.values()))
    assert min(open_gates) == 1
    assert [one.pod.revision for one in scene.gates.values()] == ["bbbbbb"]


def test_a_gate_that_does_not_start_is_named() -> None:
    scene = world()
    scene.start_seconds = lambda name: None
    scene.tick()
    [live] = scene.gates.values()
    live.ready_at += timedelta(days=1)
    live.pod = replace(live.pod, reason="ImagePullBackOff", message="no such image")
    scene.run(3)
    status, reason, message = scene.condition("Ready")
    assert (status, reason) == ("False", "GateNotReady")
    assert "ImagePullBackOff: no such image" in message
    live.pod = replace(live.pod, finished=True)
    scene.run(2)
    assert [one.pod.name for one in scene.gates.values() if not one.pod.leaving] == [
        "answers-gate-1"
    ]


def gate(report: GateReport | None = None, age: timedelta = timedelta(), **pod: Any) -> Gate:
    return Gate(GatePod("answers-gate-0", "team", "u", UID, **pod), report, T0 - age)


@pytest.mark.parametrize(
    ("gates", "expected"),
    [
        ((), Demand()),
        ((gate(),), Demand()),
        ((gate(GateReport(1, 0, 0, 50.0)),), Demand(0, 50.0)),
        ((gate(GateReport(1, 0, 0, 50.0), FRESH),), Demand(0, 50.0)),
        ((gate(GateReport(1, 3, 0, 0.0), FRESH * 2),), Demand()),
        ((gate(GateReport(1, 0, 0, 50.0)), gate()), Demand()),
        ((gate(GateReport(1, 2, 0, 0.0)), gate()), Demand(2)),
        ((gate(GateReport(1, 0, 0, 50.0)), gate(GateReport(1, 0, 0, 7.0))), Demand(0, 7.0)),
        ((gate(GateReport(1, 0, 1, 0.0)), gate(GateReport(1, 0, 0, 7.0))), Demand(0, 0.0)),
        ((gate(GateReport(1, 0, 0, 50.0)), gate(finished=True)), Demand(0, 50.0)),
    ],
)
def test_requests_are_unknown_unless_every_gate_reports(
    gates: tuple[Gate, ...], expected: Demand
) -> None:
    assert demand_of(gates, T0) == expected


@pytest.mark.parametrize("minimum", [0, 1])
@pytest.mark.parametrize("open_gate", [False, True])
@pytest.mark.parametrize("answered", [False, True])
def test_the_service_selects_what_takes_requests(
    minimum: int, open_gate: bool, answered: bool
) -> None:
    service = make_service(replicas=Replicas(minimum))
    service = replace(service, status=GPUServiceStatus(ready_replicas=int(answered)))
    found = sends_to_gate(ServiceInputs(service, gates=(gate(ready=open_gate),)))
    if open_gate != answered:
        assert found is open_gate, "the one of both that takes requests"
    else:
        assert found is (minimum == 0)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("run"), st.integers(1, STOP_AFTER + 12)),
        st.tuples(st.sampled_from(["request", "silence", "speak", "lose gate"]), st.just(1)),
        st.tuples(st.sampled_from(["interrupt", "fail", "edit", "new gate"]), st.just(1)),
    ),
    max_size=14,
)


@given(ACTIONS, st.sampled_from([1.0, 3.0, 40.0]))
def test_no_sequence_of_events_stops_a_needed_replica(
    actions: list[tuple[str, int]], start_seconds: float
) -> None:
    """The last replica stops only if every gate reports, and none had a request for the time."""
    scene = world(2)
    scene.start_seconds = lambda name: start_seconds
    for kind, count in actions:
        act(scene, kind)
        for _ in range(count if kind == "run" else 1):
            before, live = scene.status.wanted_replicas, len(scene.replicas())
            gates = set(scene.gates)
            scene.tick()
            if before and not scene.status.wanted_replicas:
                # Without one that is created in the same round, and has no request yet.
                there = [one for name, one in scene.gates.items() if name in gates]
                reports = [one.reported for one in there]
                ages = [one.reported_at for one in there]
                assert reports
                assert all(one is not None and scene.now - one <= FRESH for one in ages)
                assert all(one is not None and one.held == 0 for one in reports)
                assert scene.now - scene.last_request_at >= timedelta(seconds=STOP_AFTER)
                assert live, "one that had answered"
    # Whatever has happened: with a gate that reports, a request finds a replica.
    for one in scene.gates.values():
        one.is_silent = False
    scene.held.clear()
    scene.edit(replicas=replace(scene.service.spec.replicas, cold_start_seconds=600))
    scene.run(1)
    answered = scene.answered
    scene.request()
    for _ in range(500):
        if scene.answered > answered:
            break
        scene.tick()
    assert scene.answered > answered


def act(scene: ServiceWorld, kind: str) -> None:
    ready = scene.ready()
    if kind == "request":
        scene.request()
    elif kind in ("silence", "speak"):
        for one in scene.gates.values():
            one.is_silent = kind == "silence"
    elif kind == "lose gate":
        scene.lose_gate()
    elif kind == "interrupt" and ready:
        scene.interrupt(ready[0].job.metadata.name)
    elif kind == "fail" and ready:
        scene.fail(ready[0].job.metadata.name)
    elif kind == "edit":
        scene.edit(priority=(scene.service.spec.priority + 1) % 3)
    elif kind == "new gate":
        scene.gate_revision = "bbbbbb" if scene.gate_revision == "aaaaaa" else "aaaaaa"
