"""I17: services in calm scenes, and that each of their checks can fail.

Seeds with faults are in `test_simulation.py`, as those of jobs.
"""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import LABEL_REVISION, LABEL_SERVICE, LABEL_SERVICE_UID
from gpujob_operator.decide.services import parking as parking_decision
from gpujob_operator.observe.cache import Kind
from gpujob_operator.port.reports import ReportReceiver
from gpujob_operator.service_loop import PlanServices
from tests.simulation import requests
from tests.simulation.api_server import OtherKind, Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.operator_shell import Parts
from tests.simulation.requests import End
from tests.simulation.rough import make_rough_scenario
from tests.simulation.scenes import TEAM
from tests.simulation.service_mutants import (
    creates_none,
    creates_one_at_most,
    creates_too_many,
    leaves_gates,
    replaces_all_at_once,
    sees_no_held_request,
    takes_every_gate_for_idle,
)
from tests.simulation.service_worlds import (
    Model,
    ServicePlan,
    Spec,
    edited,
    parking,
    service_spec,
)
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I17")

NODES = (NodePlan("n0", 2), NodePlan("n1", 2))
ALWAYS = service_spec("chat", 2, 2)
RARE = service_spec("rare", 0, 1)
RARE["replicas"] |= {"stopAfterSeconds": 30, "coldStartSeconds": 120}
LATER_STOPPED = service_spec("rare", 0, 1)
LATER_STOPPED["replicas"] |= {"stopAfterSeconds": 200, "coldStartSeconds": 120}
SCENES = 5
QUICK = Model()


def service(
    *specs: tuple[float, Spec | None],
    model: Model = QUICK,
    period_seconds: float = 1.0,
    quiet: tuple[tuple[float, float], ...] = (),
) -> ServicePlan:
    return ServicePlan("chat", TEAM, specs, model, period_seconds, quiet)


def scene(plan: ServicePlan, seed: int = 1, parts: Parts | None = None) -> Simulation:
    scenario = Scenario(NODES, (), services=(plan,))
    return Simulation(
        seed, scenario=scenario, faults=Faults(), incidents=[], operators=1, parts=parts
    )


UPDATED = service((0.0, ALWAYS), (60.0, edited(ALWAYS, 2)), (120.0, edited(ALWAYS, 3)))
SUSPENDED = service((0.0, ALWAYS), (50.0, {**ALWAYS, "suspend": True}), (80.0, ALWAYS))
AGAIN = service((0.0, ALWAYS), (50.0, None), (50.0, ALWAYS))
SMALLER = service((0.0, service_spec("chat", 3, 3)), (60.0, service_spec("chat", 1, 1)))
QUIET = service((0.0, RARE), quiet=((30.0, 100.0),))
SEES_TRAFFIC = service((0.0, RARE), period_seconds=4.0)
GATED = service((0.0, RARE), (80.0, service_spec("rare", 1, 1)), (140.0, RARE))
UNGATED = service((0.0, RARE), (80.0, service_spec("rare", 1, 1)))
PARKS = service((0.0, parking(LATER_STOPPED, 10)), quiet=((40.0, 120.0), (160.0, 220.0)))
CRASHING = service((0.0, ALWAYS), model=Model(crashes=((20.0, 1), (10.0, 0), (1.0, 1))))
MEASURED = service((0.0, {**ALWAYS, "optimize": {"backend": "Auto"}}))
BUSY = service((0.0, service_spec("chat", 1, 3)), model=Model(busy_seconds=1.5))


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(UPDATED, id="updated"),
        pytest.param(SUSPENDED, id="suspended"),
        pytest.param(AGAIN, id="created again"),
        pytest.param(SMALLER, id="smaller"),
        pytest.param(QUIET, id="scaled to zero"),
        pytest.param(GATED, id="with a gate, without, and with one"),
        pytest.param(MEASURED, id="measured"),
        pytest.param(BUSY, id="busy"),
    ],
)
def test_without_faults_every_request_that_is_accepted_is_answered(plan: ServicePlan) -> None:
    result = scene(plan).run()
    assert not result.violations, result.violations[:3]
    assert result.requests[End.ANSWERED.value] > 50
    assert set(result.requests) <= {End.ANSWERED.value, End.NOWHERE.value}


def test_replicas_that_end_by_themselves_are_replaced() -> None:
    result = scene(CRASHING).run()
    assert not result.violations, result.violations[:3]
    assert result.requests[End.ANSWERED.value] > 50


def test_servers_that_somebody_takes_over_do_not_hold_their_gpus_for_ever() -> None:
    plan = service((0.0, ALWAYS), (100.0, None))
    later = Submission("later", 200.0, make_spec("later"), Workload(steps=10))
    scenario = Scenario(NODES, (later,), services=(plan,))
    taken = [Incident(60.0, "owner-lost", "n0", 1.0)]
    simulation = Simulation(1, scenario=scenario, faults=Faults(), incidents=taken, operators=1)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    pods = {pod["metadata"]["name"] for pod in simulation.api.list(Kind.POD)}
    assert pods == {"later-1-0"}


def test_a_service_has_no_replica_in_quiet_times_and_answers_afterwards() -> None:
    simulation = scene(QUIET)
    ready: dict[int, int] = {}

    def note() -> bool:
        namespace, _, name = QUIET.key.partition("/")
        ready[round(simulation.clock.now)] = _ready(simulation, namespace, name)
        return simulation.clock.now < 200

    simulation.clock.every(1.0, note)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert ready[95] == 0
    assert ready[130] == 1


def test_a_service_parks_in_quiet_times_and_its_memory_is_measured() -> None:
    """The same process answers before and after, and nothing reserves less than it uses."""
    simulation = scene(PARKS)
    reserved: dict[str, list[int]] = {"Measured": [], "Parked": []}
    processes: set[str] = set()

    def note(revision: Revision) -> None:
        if revision.kind is Kind.POD and LABEL_REVISION in revision.object["metadata"]["labels"]:
            processes.add(revision.object["metadata"]["uid"])
        held = (revision.object.get("status") or {}).get("reservation")
        if revision.kind is Kind.JOB and held is not None and held["source"] in reserved:
            reserved[held["source"]].append(held["memoryBytes"])

    simulation.api.recorders.append(note)
    simulation.clock.after(250.0, lambda: replicas.append(len(processes)))
    replicas: list[int] = []
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert replicas == [2], "a gate, and one replica"
    assert min(reserved["Measured"]) >= QUICK.memory_bytes
    assert set(reserved["Parked"]) != set()
    assert max(reserved["Parked"]) < QUICK.memory_bytes
    assert result.requests[End.ANSWERED.value] > 50
    assert set(result.requests) <= {End.ANSWERED.value, End.NOWHERE.value}


def test_a_request_at_a_parked_replica_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates always have the address of the replica, and nobody asks them before it parks."""

    def always(receiver: ReportReceiver, job: GPUJob) -> bool:
        return True

    def silent(gates: object, now: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(ReportReceiver, "takes_requests", always)
    monkeypatch.setattr(parking_decision, "fresh_reports", silent)
    found = scene(PARKS).run().violations
    assert any("is parked, and got a request" in one.message for one in found)


def _ready(simulation: Simulation, namespace: str, name: str) -> int:
    found = simulation.api.get(Kind.SERVICE, namespace, name) if simulation.clock.now > 1 else {}
    return found.get("status", {}).get("readyReplicas", 0)


def caught(plan: ServicePlan, parts: Parts) -> str:
    """What broken parts are caught at."""
    for seed in range(SCENES):
        found = [one for one in scene(plan, seed, parts).run().violations if one.invariant == "I17"]
        if found:
            return found[0].message
    return ""


@pytest.mark.parametrize(
    ("mutant", "plan", "words"),
    [
        (replaces_all_at_once, UPDATED, "left ready, of"),
        (creates_too_many, service((0.0, ALWAYS)), "is created beside"),
        (takes_every_gate_for_idle, SEES_TRAFFIC, "after a request, not 30"),
        (sees_no_held_request, QUIET, "has answered no request"),
        (creates_none, service((0.0, ALWAYS)), "has answered no request"),
        (creates_one_at_most, service((0.0, ALWAYS)), "has 1 of 2 replicas"),
        (leaves_gates, UNGATED, "has a gate"),
    ],
)
def test_a_decision_that_breaks_the_promise_is_caught(
    mutant: PlanServices, plan: ServicePlan, words: str
) -> None:
    assert words in caught(plan, Parts(services=mutant))


def test_a_stop_during_a_held_request_is_caught() -> None:
    """The model loads for longer than the service waits for requests."""
    slow = replace(SEES_TRAFFIC, model=Model(answer_seconds=25.0), quiet=((40.0, 200.0),))
    assert "stops while a request waits" in caught(slow, Parts(services=takes_every_gate_for_idle))


def test_a_replica_that_is_killed_before_its_answers_is_caught() -> None:
    """Its model needs longer than the grace."""
    slow = replace(UPDATED, model=Model(answer_seconds=40.0))
    assert "requests without an answer" in caught(slow, Parts())


def test_a_replica_that_ends_while_requests_come_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes learn of its end later than the drain lasts."""
    monkeypatch.setattr(requests, "LAG_SECONDS_MAX", 12.0)
    assert "still sends requests to it" in caught(UPDATED, Parts())


def test_what_a_deleted_service_leaves_is_caught() -> None:
    simulation = scene(service((0.0, ALWAYS)))
    labels = {LABEL_SERVICE: "gone", LABEL_SERVICE_UID: "gone"}
    left = {"metadata": {"name": "gone", "namespace": TEAM, "labels": labels}}
    simulation.api.create(OtherKind.SERVICE, {**left, "spec": {"selector": labels}}, "somebody")
    (found,) = simulation.run().violations
    assert "gone is of no service" in found.message


def test_a_part_of_the_seeds_has_services() -> None:
    scenarios = [make_rough_scenario(seed) for seed in range(400)]
    services = [one for scenario in scenarios for one in scenario.services]
    assert 70 < sum(bool(one.services) for one in scenarios) < 130
    specs = [spec for one in services for _, spec in one.specs if spec is not None]
    assert {spec["replicas"]["minimum"] for spec in specs} == {0, 1, 2}
    assert {one.specs[-1][1] is None for one in services} == {True, False}
    assert any(one.model.crashes for one in services)
    assert len({one.namespace for one in services}) == 2
