"""Jobs of different namespaces and sharing groups are never on one GPU."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.cycle import PlanFunction
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.simulation.faults import Faults
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import (
    NAMESPACES,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_queue,
    make_spec,
)

pytestmark = pytest.mark.promise("I15")

LAB = {"sharingGroup": "lab"}
# A job of which less is known starts alone on a GPU.
SHARED: dict[str, Any] = {
    "gpu": {"memory": "4Gi"},
    "sharing": {"mode": "Shared", "maxSlowdownPercent": 100},
}


def _run(*groups: dict[str, str], plan: PlanFunction | None = None) -> Result:
    """Small jobs of two queues with these groups, each in a namespace of its own, on two GPUs."""
    queues = make_queue("a", **groups[0]), make_queue("b", **groups[1])
    small = Workload(2 * GIB, utilization_percent=5.0, steps=60)
    submissions = tuple(
        Submission(f"job{n}", 3.0 * n, make_spec(f"job{n}", queue="ab"[n % 2], **SHARED), small,
                   namespace=NAMESPACES[n % 2])
        for n in range(6)
    )  # fmt: skip
    scenario = Scenario((NodePlan("n0", 2),), submissions, queues=queues)
    simulation = Simulation(
        1, scenario=scenario, faults=Faults(), incidents=[], operators=1, plan=plan
    )
    return simulation.run()


@pytest.mark.parametrize("groups", [({}, {}), (LAB, {}), (LAB, LAB)])
def test_jobs_of_different_groups_share_no_gpu(groups: tuple[dict[str, str], ...]) -> None:
    result = _run(*groups)
    assert not result.violations, result.violations[:3]
    assert set(result.ends.values()) == {"Succeeded"}, result.ends


def test_a_planner_that_lets_everybody_share_is_caught() -> None:
    def careless(snapshot: Snapshot, now: datetime) -> Plan:
        together = tuple(
            replace(queue, spec=replace(queue.spec, sharing_group="all"))
            for queue in snapshot.queues
        )
        return plan(replace(snapshot, queues=together), now)

    found = _run({}, {}, plan=careless).violations
    assert {violation.invariant for violation in found} == {"I15"}
    assert "beside" in found[0].message
