"""How often the status of a job is written that meets no trouble, by a real operator."""

import pytest

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec


def written(workload: Workload) -> list[tuple[str, str]]:
    """Phase and the reason of the condition Running, of each write of an operator."""
    found: list[tuple[str, str]] = []

    def note(revision: Revision) -> None:
        if revision.kind is Kind.JOB and revision.by.startswith("operator"):
            status = revision.object["status"]
            reasons = {one["type"]: one["reason"] for one in status["conditions"]}
            found.append((status["phase"], reasons.get("Running", "")))

    spec = make_spec("job", gpu={"memory": "8Gi"})
    job = Submission("job", 1.0, spec, workload)
    nodes = (NodePlan("n0", 1),)
    simulation = Simulation(
        3, scenario=Scenario(nodes, (job,)), faults=Faults(), incidents=[], operators=1
    )
    simulation.api.recorders.append(note)
    result = simulation.run()
    assert result.ends == {"team/job": "Succeeded"}
    assert not result.violations
    return found


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("pull_seconds", [0.0, 120.0])
def test_placed_running_and_finished(pull_seconds: float, *, is_silent: bool) -> None:
    """Whether or not its worker reports. That it starts is written if that takes a while."""
    workload = Workload(
        steps=3,
        step_seconds=0.5,
        checkpoint_steps=1000,
        pull_seconds=pull_seconds,
        is_silent=is_silent,
    )
    starting = [("Starting", "Starting")] if pull_seconds else []
    assert written(workload) == [
        *starting,
        ("Running", "WorkersRunning"),
        ("Succeeded", "Finished"),
    ]
