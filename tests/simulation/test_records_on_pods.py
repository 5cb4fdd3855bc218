"""The placement that a pod records: it counts for whoever leads, and for nobody twice."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gpujob_operator.client.kube import REQUEST_SECONDS_MAX
from gpujob_operator.decide.lifecycle.recorded import RECORDED_SECONDS_MAX
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I3")

# Long enough for the next operator to find the pod as it starts.
PULL_SECONDS = 40.0
CALM: tuple[Incident, ...] = ()
# Harmless; with it nobody expects that an operator sees everything.
ROUGH = (Incident(0.5, "pause", "n0", 0.1),)


class Scene:
    """Jobs of one worker on one node; `happens` is called for each revision."""

    def __init__(
        self,
        *jobs: Submission,
        incidents: tuple[Incident, ...] = CALM,
        happens: Callable[["Scene", Revision], None] = lambda scene, revision: None,
    ) -> None:
        scenario = Scenario((NodePlan("n0", 1),), jobs)
        self.simulation = Simulation(
            3, scenario=scenario, faults=Faults(), incidents=[*incidents], operators=1
        )
        self.pods: list[str] = []
        # Of each write of a status: when, and the phase.
        self.written: list[tuple[float, str]] = []
        self._happens = happens
        self.simulation.api.recorders.append(self._note)
        self.result: Result = self.simulation.run()

    def _note(self, revision: Revision) -> None:
        if revision.kind is Kind.POD and revision.type == "ADDED":
            self.pods.append(revision.object["metadata"]["name"])
        if revision.kind is Kind.JOB and revision.by.startswith("operator"):
            self.written.append((revision.at, revision.object["status"]["phase"]))
        self._happens(self, revision)

    @property
    def phases(self) -> list[str]:
        return [phase for _, phase in self.written]

    def crash(self) -> None:
        """Before the operator has the answer to its request."""
        self.simulation.clock.after(0.0, self._crash)

    def _crash(self) -> None:
        for shell in self.simulation.shells:
            shell.crash()


def job(name: str = "job", at: float = 5.0, *, pull_seconds: float = 0.0) -> Submission:
    workload = Workload(steps=10, pull_seconds=pull_seconds)
    return Submission(name, at, make_spec(name), workload)


def test_a_status_says_that_a_job_starts_once_that_takes_a_while() -> None:
    scene = Scene(job(pull_seconds=PULL_SECONDS))
    assert scene.phases[:2] == ["Starting", "Running"]
    at, _ = scene.written[0]
    assert RECORDED_SECONDS_MAX <= at - 5.0 < RECORDED_SECONDS_MAX + 1.5
    assert not scene.result.violations


@pytest.mark.parametrize("pull_seconds", [0.0, PULL_SECONDS])
def test_the_next_leader_takes_over_what_a_pod_records(pull_seconds: float) -> None:
    """The operator is killed as the pod is there, before any status."""

    def crash_at_the_pod(scene: Scene, revision: Revision) -> None:
        if revision.kind is Kind.POD and revision.type == "ADDED":
            assert scene.written == []
            scene.crash()

    scene = Scene(job(pull_seconds=pull_seconds), incidents=ROUGH, happens=crash_at_the_pod)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.result.ends == {"team/job": "Succeeded"}
    assert scene.pods == ["job-1-0"]
    assert scene.result.attempts == {"team/job": 1}


def test_a_leader_that_was_frozen_takes_over_what_its_own_pod_records() -> None:
    """It has no answer to any of its requests for the pod when it is frozen, and nobody else leads:
    the worker is done when it thaws, and is not run again."""
    seconds = REQUEST_SECONDS_MAX + 1.0
    incidents = (
        *(Incident(4.0, "late-pods", "n0", seconds) for _ in range(2)),
        Incident(23.0, "pause", "n0", 40.0),
    )
    scene = Scene(job(), incidents=incidents)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.result.ends == {"team/job": "Succeeded"}
    assert scene.pods == ["job-1-0"]
    assert scene.phases == ["Succeeded"]


def test_nobody_else_gets_the_gpu_that_a_pod_records() -> None:
    """The next leader finds the pod of one job, and another job that waits for the same GPU."""
    crashed: list[float] = []

    def crash_at_the_pod(scene: Scene, revision: Revision) -> None:
        if revision.kind is Kind.POD and revision.type == "ADDED" and not crashed:
            crashed.append(revision.at)
            scene.crash()

    scene = Scene(
        job("first", pull_seconds=PULL_SECONDS),
        job("second", at=8.0),
        incidents=ROUGH,
        happens=crash_at_the_pod,
    )
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    # The second one waited while no operator knew whether it had been placed.
    assert scene.pods == ["first-1-0", "second-2-0"]


def test_the_first_number_is_passed_over_only_after_a_leader_that_did_not_leave_in_order() -> None:
    crashes_early = (Incident(5.1, "operator-killed", "n0", 0.0),)
    assert Scene(job()).pods == ["job-1-0"]
    assert Scene(job(at=5.05), incidents=crashes_early).pods in (["job-1-0"], ["job-2-0"])
    waits_for_no_leader = Scene(job(at=5.2), incidents=crashes_early)
    assert waits_for_no_leader.pods == ["job-2-0"]
    assert not waits_for_no_leader.result.violations


def test_a_pod_that_comes_after_its_leader_does_not_run() -> None:
    """The request is kept on its way until the next leader has decided."""
    incidents = (
        Incident(4.0, "late-pods", "n0", 45.0),
        Incident(5.5, "operator-killed", "n0", 0.0),
    )
    scene = Scene(job(), incidents=incidents)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.result.ends == {"team/job": "Succeeded"}
    assert "job-1-0" in scene.pods
    assert "job-2-0" in scene.pods
    assert scene.result.attempts == {"team/job": 2}


def test_a_pod_that_comes_between_two_later_leaders_takes_no_gpu_that_was_given_away() -> None:
    """The first of them gave the GPU to another job; the second one finds both."""
    incidents = (
        Incident(4.0, "late-pods", "n0", 45.0),
        Incident(5.5, "operator-killed", "n0", 0.0),
        Incident(45.0, "operator-killed", "n0", 0.0),
    )
    scene = Scene(
        replace(job("first"), suspend_at=7.0, resume_at=150.0),
        replace(job("second", at=8.0), workload=Workload(steps=60)),
        incidents=incidents,
    )
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.result.ends == {"team/first": "Succeeded", "team/second": "Succeeded"}
    assert "first-1-0" in scene.pods
    assert scene.result.attempts["team/first"] > 1
