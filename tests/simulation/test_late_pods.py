"""A pod whose attempt was given up starts afterwards: its process must not begin."""

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import LABEL_ATTEMPT, LABEL_JOB, LABEL_JOB_UID
from gpujob_api.settings import EXIT_INTERRUPTED_UNSAVED
from gpujob_operator.decide.model.snapshot import PodView
from gpujob_operator.observe.cache import Kind
from gpujob_operator.port import reports
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.pods import worker_ended
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I3")

LATE_SECONDS = 40.0
# A request is given up after 5 s.
SECOND_GIVEN_UP_SECONDS = 10.3
# Before the request is.
FROZEN_AT_SECONDS = 4.0


def play() -> tuple[Result, dict[str, int | None]]:
    """The first attempt's requests for its pod are kept on their way. Meanwhile the user suspends
    the job, which ends the attempt. As the pod comes, no operator is there, and writes are slow
    then, the pod's deletion too. The next attempt, which would take the checkpoint store, is after
    that. Returns the exit codes by pod, too."""
    job = Submission(
        "job", 1.0, make_spec("job"), Workload(steps=60), suspend_at=15.0, resume_at=100.0
    )
    scenario = Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), (job,))
    incidents = [
        Incident(0.5, "late-pods", "n0", LATE_SECONDS),
        Incident(LATE_SECONDS, "operator-killed", "n0", 0.0),
    ]
    faults = Faults()
    simulation = Simulation(3, scenario=scenario, faults=faults, incidents=incidents, operators=1)
    simulation.clock.after(LATE_SECONDS, lambda: setattr(faults, "slow_write", 1.0))
    exits: dict[str, int | None] = {}

    def note(revision: Revision) -> None:
        if revision.kind is Kind.POD:
            ended = worker_ended(revision.object)
            exits[revision.object["metadata"]["name"]] = ended["exitCode"] if ended else None

    simulation.api.recorders.append(note)
    return simulation.run(), exits


def test_a_pod_that_comes_late_does_not_begin() -> None:
    """I3: the worker asks before its first step, and is told that its attempt is over."""
    result, exits = play()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert exits["job-1-0"] == EXIT_INTERRUPTED_UNSAVED
    last = f"job-{result.attempts['team/job']}-0"
    assert exits[last] == 0
    assert last != "job-1-0"


def test_an_operator_that_lets_a_late_pod_begin_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(job: GPUJob, pod: PodView) -> bool:
        return False

    monkeypatch.setattr(reports, "is_given_up", never)
    result, _ = play()
    assert "I3" in {violation.invariant for violation in result.violations}


def test_a_pod_that_comes_while_it_is_asked_for_once_more_places_its_job() -> None:
    """Its process has given up two requests for it, and waits for the third."""
    job = Submission("job", 1.0, make_spec("job"), Workload(steps=10))
    scenario = Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), (job,))
    away = [Incident(0.5, "late-pods", "n0", SECOND_GIVEN_UP_SECONDS)]
    simulation = Simulation(3, scenario=scenario, faults=Faults(), incidents=away, operators=1)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert result.attempts == {"team/job": 1}


@pytest.mark.parametrize("late_seconds", [22.0, 26.0])
def test_a_pod_that_comes_after_its_leader_wrote_that_the_job_waits_does_not_begin(
    late_seconds: float,
) -> None:
    """I13: nobody is told to stop, because nobody began. The last request for the pod is refused.
    Its leader looks for the pod, waits a moment and looks again; and does not write the placement
    either, because the user has suspended the job."""
    workload = Workload(steps=10)
    job = Submission("job", 1.0, make_spec("job"), workload, suspend_at=12.0, resume_at=60.0)
    scenario = Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), (job,))
    away = [Incident(0.5, "late-pods", "n0", late_seconds)]
    faults = Faults()
    simulation = Simulation(3, scenario=scenario, faults=faults, incidents=away, operators=1)
    simulation.clock.after(16.0, lambda: setattr(faults, "write_error", 1.0))
    simulation.clock.after(18.0, lambda: setattr(faults, "write_error", 0.0))
    written: list[tuple[str, str]] = []

    def note(revision: Revision) -> None:
        if revision.by == "operator-0" and revision.kind in (Kind.POD, Kind.JOB):
            written.append((revision.type, revision.object["metadata"]["name"]))

    simulation.api.recorders.append(note)
    result = simulation.run()
    assert written[:3] == [("MODIFIED", "job"), ("ADDED", "job-1-0"), ("DELETED", "job-1-0")]
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}


def test_a_pod_that_comes_while_its_leader_is_frozen_places_its_job() -> None:
    """Nobody else leads meanwhile. The leader has given nothing up, and finds the pod there as it
    goes on."""
    job = Submission("job", 1.0, make_spec("job"), Workload(steps=10))
    scenario = Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), (job,))
    incidents = [
        Incident(0.5, "late-pods", "n0", LATE_SECONDS / 2),
        Incident(FROZEN_AT_SECONDS, "pause", "n0", LATE_SECONDS),
    ]
    simulation = Simulation(3, scenario=scenario, faults=Faults(), incidents=incidents, operators=1)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert result.attempts == {"team/job": 1}


@pytest.mark.parametrize(
    ("frozen_at", "late_seconds", "killed_at"),
    [(FROZEN_AT_SECONDS, 45.0, 43.0), (26.65, 60.0, 60.0)],
    ids=["asked-for", "given-up"],
)
def test_a_pod_that_the_next_leader_finds_counts_although_its_gpu_is_no_longer_read(
    frozen_at: float, late_seconds: float, killed_at: float
) -> None:
    """I14: it was placed when the GPU was. The agents fall silent while the pod is on its way."""
    job = Submission("job", 1.0, make_spec("job"), Workload(steps=10))
    scenario = Scenario((NodePlan("n0", 1), NodePlan("n1", 1)), (job,))
    incidents = [
        Incident(0.5, "late-pods", "n0", late_seconds),
        # Those of the second try, too. In the second scene both tries were given up when the
        # process was frozen.
        Incident(12.0, "late-pods", "n0", late_seconds),
        Incident(2.0, "agent", "n0", 160.0),
        Incident(2.0, "agent", "n1", 160.0),
        Incident(frozen_at, "pause", "n0", 40.0),
        Incident(killed_at, "operator-killed", "n0", 0.0),
    ]
    simulation = Simulation(3, scenario=scenario, faults=Faults(), incidents=incidents, operators=1)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert result.attempts == {"team/job": 1}


def test_a_pod_that_comes_after_its_owner_is_gone_is_collected() -> None:
    job = Submission("job", 1.0, make_spec("job"), Workload(steps=60))
    scenario = Scenario((NodePlan("n0", 1),), (job,))
    simulation = Simulation(3, scenario=scenario, faults=Faults(), incidents=[], operators=1)
    owner = {"kind": "GPUJob", "name": "gone", "uid": "gone", "controller": True}
    metadata = {
        "namespace": "team",
        "name": "gone-1-0",
        "labels": {LABEL_JOB: "gone", LABEL_JOB_UID: "gone", LABEL_ATTEMPT: "1"},
        "ownerReferences": [owner],
    }
    late = {"metadata": metadata, "spec": {}, "status": {}}
    came: list[str] = []

    def come() -> None:
        came.append(simulation.api.create(Kind.POD, late, "operator-0")["metadata"]["name"])

    simulation.clock.after(20.0, come)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert came == ["gone-1-0"]
    assert {pod["metadata"]["name"] for pod in simulation.api.list(Kind.POD)} == {"job-1-0"}
