"""Programs that bring GPUs down or fail on them take no more of the cluster than is theirs."""

from typing import Any

import pytest

from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import (
    EVERY_ATTEMPT,
    OTHER_NAMESPACE,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_spec,
)

pytestmark = pytest.mark.promise("I15")

NODES = tuple(NodePlan(f"n{number}", 2) for number in range(4))
EXCLUSIVE: dict[str, Any] = {"sharing": {"mode": "Exclusive"}}


def _others(count: int, at: float) -> list[Submission]:
    """Jobs of another namespace that want a whole GPU each."""
    return [
        Submission(
            f"other{number}",
            at,
            make_spec("other", **EXCLUSIVE),
            Workload(steps=20),
            namespace=OTHER_NAMESPACE,
        )
        for number in range(count)
    ]


def _simulation(
    *submissions: Submission, nodes: tuple[NodePlan, ...] = NODES
) -> tuple[Simulation, dict[str, set[str]]]:
    """And by job the GPUs that it was ever on."""
    scenario = Scenario(nodes, submissions)
    simulation = Simulation(1, scenario=scenario, faults=Faults(), incidents=[], operators=1)
    placed: dict[str, set[str]] = {}

    def note(revision: Revision) -> None:
        placement = (revision.object.get("status") or {}).get("placement") or {}
        for worker in placement.get("workers") or ():
            placed.setdefault(revision.object["metadata"]["name"], set()).update(worker["gpus"])

    simulation.api.recorders.append(note)
    return simulation, placed


def _run(*submissions: Submission) -> tuple[Simulation, Result]:
    simulation, _ = _simulation(*submissions)
    return simulation, simulation.run()


def _ends(result: Result) -> dict[str, str]:
    return {name.rpartition("/")[2]: end for name, end in result.ends.items()}


def test_a_job_that_breaks_gpus_takes_three_and_no_more() -> None:
    """With checkpoints, which it keeps resuming from."""
    poison = Workload(steps=400, breaks_gpus=True, checkpoint_steps=1, expected="Failed")
    simulation, result = _run(
        Submission("poison", 0.0, make_spec("poison"), poison), *_others(4, at=120.0)
    )
    assert not result.violations, result.violations[:3]
    gpus = [gpu for one in simulation.cluster.machines.values() for gpu in one.gpus.values()]
    assert sum(not gpu.healthy for gpu in gpus) == 3
    ends = _ends(result)
    assert ends.pop("poison") == "Failed"
    assert set(ends.values()) == {"Succeeded"}


def test_a_job_beside_one_that_breaks_gpus_is_not_taken_for_one_itself() -> None:
    """It is beside it on the first two. The other one has the third for itself."""
    nodes = tuple(NodePlan(f"n{number}", 1) for number in range(4))
    sharing = {"mode": "Shared", "maxSlowdownPercent": 100}
    shared: dict[str, Any] = {"gpu": {"memory": "8Gi"}, "sharing": sharing}
    poison = Workload(GIB, steps=400, breaks_gpus=True, checkpoint_steps=1, expected="Failed")
    beside = Workload(GIB, steps=400, checkpoint_steps=1)
    simulation, placed = _simulation(
        Submission("poison", 0.0, make_spec("poison", **shared), poison),
        Submission("beside", 0.0, make_spec("beside", **shared), beside),
        nodes=nodes,
    )
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert _ends(result) == {"poison": "Failed", "beside": "Succeeded"}
    assert len(placed["poison"]) == 3
    assert len(placed["poison"] & placed["beside"]) == 2


def test_a_namespaces_bad_programs_close_no_gpu_to_others() -> None:
    """Every point of a sweep fails on the GPU with an error that the driver tells of."""
    bad = Workload(
        steps=20,
        failure=FailureClass.UNKNOWN,
        fail_at_step=4,
        failing_attempts=EVERY_ATTEMPT,
        failing_xid=31,
        expected="Failed",
    )
    sweep = [
        Submission(f"point{number}", 1.0 * number, make_spec(f"point{number}", **EXCLUSIVE), bad)
        for number in range(10)
    ]
    simulation, result = _run(*sweep, *_others(8, at=60.0))
    assert not result.violations, result.violations[:3]
    ends = _ends(result)
    assert {ends[one.name] for one in sweep} == {"Failed"}
    assert {end for name, end in ends.items() if name.startswith("other")} == {"Succeeded"}
    gpus = [gpu for one in simulation.cluster.machines.values() for gpu in one.gpus.values()]
    assert sum(bool(gpu.program_errors) for gpu in gpus) > 1, "they did fail on several"


def test_a_gpu_that_only_two_jobs_failed_on_takes_nothing_new() -> None:
    """It is closed for the time; the others are enough."""
    bad = Workload(
        steps=20,
        failure=FailureClass.USER_ERROR,
        failing_attempts=EVERY_ATTEMPT,
        failing_xid=31,
        expected="Failed",
    )
    pair = [Submission(f"bad{n}", 30.0 * n, make_spec(f"bad{n}"), bad) for n in range(2)]
    simulation, placed = _simulation(*pair, *_others(6, at=90.0))
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert placed["bad0"] == placed["bad1"]
    others = {name: gpus for name, gpus in placed.items() if name.startswith("other")}
    assert len(others) == 6
    assert not set.union(*others.values()) & placed["bad0"]


def test_whatever_else_kills_a_job_it_runs_out_of_the_gpus_memory_as_others_do() -> None:
    """The kernel would kill it for memory of the host, at a step that it never reaches."""
    capped: dict[str, Any] = {"gpu": {"memory": "2Gi"}, "sharing": {"mode": "Shared"}}
    job = Workload(4 * GIB, host_out_of_memory=True, expected="Failed")
    simulation, _ = _simulation(Submission("job", 0.0, make_spec("job", **capped), job))
    counted: set[str] = set()

    def note(revision: Revision) -> None:
        counted.update((revision.object.get("status") or {}).get("counters") or ())

    simulation.api.recorders.append(note)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert _ends(result) == {"job": "Failed"}
    assert counted == {"outOfMemory"}
