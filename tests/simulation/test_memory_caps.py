"""I15, I9: what becomes of a job whose program keeps no cap, and of the jobs beside it."""

from collections import Counter
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpunode import GPU, GPUNode
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.plan import Plan, PlanItem, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.rough import CLOSE, SMALL_CAP, make_rough_scenario
from tests.simulation.scenes import TEAM
from tests.simulation.simulation import PlanFunction, Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

MODEST_CAP: dict[str, Any] = {"gpu": {"memory": "4Gi"}, "sharing": CLOSE}
LARGE_CAP: dict[str, Any] = {"gpu": {"memory": "21.5Gi"}, "sharing": CLOSE}
ENDLESS = Workload(6 * GIB, steps=200, ignores_cap=True, expected="Failed")


def simulation_of(*jobs: Submission, function: PlanFunction | None = None) -> Simulation:
    scenario = Scenario((NodePlan("n0", 1),), jobs)
    return Simulation(
        2, scenario=scenario, faults=Faults(), incidents=[], operators=1, plan=function
    )


def capped(workload: Workload, at: float = 0.0) -> Submission:
    return Submission("job", at, make_spec("job", **SMALL_CAP), workload)


def stops_of(simulation: Simulation) -> Counter[str]:
    """The stops of the job, by their reasons, from now on."""
    found: Counter[str] = Counter()

    def note(revision: Revision) -> None:
        if revision.kind is Kind.JOB and revision.object["metadata"]["name"] == "job":
            now, before = (
                ((one or {}).get("status") or {}).get("stop")
                for one in (revision.object, revision.before)
            )
            if now is not None and now != before:
                found[now["reason"]] += 1

    simulation.api.recorders.append(note)
    return found


def without_stops_for_memory(snapshot: Snapshot, now: datetime) -> Plan:
    """Who exceeds its cap goes on."""
    decided = plan(snapshot, now)
    items: list[PlanItem] = [
        item
        for item in decided.items
        if not (
            isinstance(item, WriteStatus)
            and item.status.stop is not None
            and item.status.stop.reason == "MemoryCapExceeded"
        )
    ]
    return replace(decided, items=tuple(items))


def blames_each_for_all(snapshot: Snapshot, now: datetime) -> Plan:
    """Each process as if all of its GPU's memory were its own."""

    def all_of(gpu: GPU) -> GPU:
        used_bytes = gpu.memory_used_bytes
        processes = tuple(
            replace(one, memory_bytes=used_bytes + number)
            for number, one in enumerate(gpu.processes)
        )
        return replace(gpu, processes=processes)

    def blamed(node: GPUNode) -> GPUNode:
        return replace(node, status=replace(node.status, gpus=tuple(map(all_of, node.status.gpus))))

    return plan(replace(snapshot, gpu_nodes=tuple(map(blamed, snapshot.gpu_nodes))), now)


@pytest.mark.parametrize("with_others", [False, True])
def test_a_job_beyond_its_cap_fails_and_the_others_do_not(with_others: bool) -> None:
    """Alone on a GPU as well as beside others, on a GPU that has enough for all of them."""
    others = [
        Submission(f"other{n}", 1.0, make_spec("other", **MODEST_CAP), Workload(2 * GIB, steps=80))
        for n in range(2)
    ]
    simulation = simulation_of(capped(ENDLESS), *(others if with_others else ()))
    stops = stops_of(simulation)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends.pop(f"{TEAM}/job") == "Failed"
    assert set(result.ends.values()) <= {"Succeeded"}
    assert stops == {"MemoryCapExceeded": 4}
    assert result.attempts[f"{TEAM}/job"] == 4


def test_a_context_above_the_cap_is_interrupted_once_and_then_reserved() -> None:
    """The other one holds 21.5 of 23.7 GiB, and uses less: only what is reserved does not fit."""
    large = Submission("other", 0.0, make_spec("other", **LARGE_CAP), Workload(8 * GIB, steps=200))
    context = Workload(int(2.7 * GIB), steps=400, ignores_cap=True)
    simulation = simulation_of(large, capped(context, at=20.0))
    stops = stops_of(simulation)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert set(result.ends.values()) == {"Succeeded"}
    assert stops == {"GPUOvercommitted": 1}
    assert result.attempts[f"{TEAM}/job"] == 2


def test_whoever_lets_it_go_on_is_caught() -> None:
    result = simulation_of(capped(ENDLESS), function=without_stops_for_memory).run()
    assert [one.invariant for one in result.violations] == ["I9"]


def test_whoever_stops_a_job_that_keeps_its_cap_is_caught() -> None:
    job = capped(Workload(int(1.5 * GIB), steps=40))
    beside = Submission("other", 0.0, make_spec("other", **LARGE_CAP), Workload(8 * GIB, steps=80))
    result = simulation_of(job, beside, function=blames_each_for_all).run()
    assert "I15" in {one.invariant for one in result.violations}
    assert any("kept its cap" in one.message for one in result.violations)


def test_a_part_of_the_seeds_has_such_jobs() -> None:
    truths = [one.workload for seed in range(120) for one in make_rough_scenario(seed).submissions]
    beyond = [truth for truth in truths if truth.ignores_cap]
    failing = [truth for truth in beyond if truth.expected == "Failed"]
    assert 5 < len(failing) < len(beyond) - 5
