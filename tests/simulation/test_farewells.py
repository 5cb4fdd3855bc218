"""I15: a script that saves by itself when it is asked to end, and ends with 0, is not done."""

import pytest

from tests.simulation.faults import Faults, Incident
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import (
    Farewell,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_spec,
)

pytestmark = pytest.mark.promise("I5")

# A node that is cut off is noticed, and its pods are deleted, while it still computes.
STEPS = 100
ENDS = ("pod-evicted-softly", "pod-drained", "pod-deleted", "reclaim", "partition")


@pytest.mark.parametrize("farewell", list(Farewell))
@pytest.mark.parametrize("what", ENDS)
@pytest.mark.parametrize(("workers", "killed"), [(1, False), (1, True), (2, True)])
def test_it_goes_on_in_the_next_attempt(
    farewell: Farewell, what: str, workers: int, *, killed: bool
) -> None:
    """Also where the operator is away meanwhile: it finds what is left of the pod."""
    job = Submission(
        "job", 1.0, make_spec("job", workers=workers), Workload(steps=STEPS, farewell=farewell)
    )
    nodes = tuple(NodePlan(f"n{n}", 1) for n in range(3))
    incidents = [
        Incident(20.0, what, node.name, 70.0 if what == "partition" else 5.0) for node in nodes
    ]
    incidents += [Incident(20.5, "operator-killed", "n0", 0.0)] if killed else []
    scenario = Scenario(nodes, (job,))
    simulation = Simulation(2, scenario=scenario, faults=Faults(), incidents=incidents, operators=1)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == {"team/job": "Succeeded"}
    assert result.attempts["team/job"] > 1


@pytest.mark.parametrize("seed", range(4))
def test_a_gang_whose_finished_pods_are_collected_is_done_once(seed: int) -> None:
    job = Submission("job", 1.0, make_spec("job", workers=2), Workload(steps=40))
    nodes = NodePlan("n0", 1), NodePlan("n1", 1)
    incidents = [Incident(at / 2, "finished-collected", "n0", 0.0) for at in range(80, 200)]
    simulation = Simulation(
        seed, scenario=Scenario(nodes, (job,)), faults=Faults(), incidents=incidents, operators=1
    )
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert (result.ends, result.attempts) == ({"team/job": "Succeeded"}, {"team/job": 1})
