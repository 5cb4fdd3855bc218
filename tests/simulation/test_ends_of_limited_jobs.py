"""I9: a job that needs more than its hint allows fails, unless others broke under it before and it
has GPUs of its own: nothing limits it there."""

from typing import Any

from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.pods import attempt_of
from tests.simulation.scenes import EXCLUSIVE, TEAM
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

HINT: dict[str, Any] = {"gpu": {"memory": "4Gi"}}
SHARED: dict[str, Any] = {"sharing": {"mode": "Shared"}}
# A GPU breaks while the image is pulled, before the worker finds too little memory.
LIMITED = Workload(memory_bytes=6 * GIB, steps=20, pull_seconds=30.0, expected="Failed")


def simulation_of(sharing: dict[str, Any]) -> Simulation:
    nodes = tuple(NodePlan(f"n{number}", 1) for number in range(3))
    job = Submission("job", 0.0, make_spec("job", **HINT, **sharing), LIMITED)
    scenario = Scenario(nodes, (job,))
    return Simulation(2, scenario=scenario, faults=Faults(), incidents=[], operators=1)


def break_gpus(simulation: Simulation, attempts: int) -> None:
    """Those that the pods of the job's first attempts are bound for."""

    def look(revision: Revision) -> None:
        if revision.kind is not Kind.POD or not (node := revision.object["spec"].get("nodeName")):
            return
        if attempt_of(revision.object)[1] <= attempts:
            for gpu in simulation.cluster.machines[node].gpus.values():
                gpu.healthy = False

    simulation.api.recorders.append(look)


def test_on_gpus_of_its_own_it_may_succeed() -> None:
    simulation = simulation_of(SHARED)
    break_gpus(simulation, 2)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends == {f"{TEAM}/job": "Succeeded"}


def test_within_its_limit_it_fails() -> None:
    """Also after one GPU broke."""
    simulation = simulation_of(SHARED)
    break_gpus(simulation, 1)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends == {f"{TEAM}/job": "Failed"}


def test_whoever_lifts_the_limit_without_broken_gpus_is_caught() -> None:
    result = simulation_of(EXCLUSIVE).run()
    assert result.ends == {f"{TEAM}/job": "Succeeded"}
    assert [one.invariant for one in result.violations] == ["I9"]
