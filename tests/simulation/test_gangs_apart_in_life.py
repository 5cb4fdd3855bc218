"""I4, I15: kube-scheduler refuses by combination, or all pods of a job that others made way for."""

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.decide.preemption import preemptor
from tests.simulation.faults import Faults
from tests.simulation.pod_starts import SCHEDULER_WORDS, NodeRefusal
from tests.simulation.scenes import EXCLUSIVE
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec


def calm(nodes: list[NodePlan], *submissions: Submission, end: float = 3000.0) -> Simulation:
    scenario = Scenario(tuple(nodes), submissions)
    return Simulation(
        2, scenario=scenario, faults=Faults(), incidents=[], operators=1, end_seconds=end
    )


def job(name: str, at: float, workload: Workload, **spec: Any) -> Submission:
    return Submission(name, at, make_spec(name, **EXCLUSIVE, **spec), workload)


def test_a_gang_that_is_taken_apart_only_runs_apart_at_its_second_attempt() -> None:
    """The first node could hold both workers."""
    apart = Workload(steps=20, one_on_a_node=True)
    simulation = calm([NodePlan("n0", 2), NodePlan("n1", 1)], job("gang", 0.0, apart, workers=2))
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends == {"team/gang": "Succeeded"}
    assert set(result.attempts.values()) == {2}


def greedy() -> Simulation:
    refusal = NodeRefusal(("n0", "n1"), SCHEDULER_WORDS[2])
    picky = Workload(steps=20, refusal=refusal, expected="Pending")
    long = Workload(steps=1500)
    return calm(
        [NodePlan("n0", 1), NodePlan("n1", 1)],
        job("low0", 0.0, long),
        job("low1", 0.0, replace(long)),
        job("greedy", 20.0, picky, priority=5),
        end=2500.0,
    )


def test_for_a_job_that_never_starts_one_other_is_stopped() -> None:
    simulation = greedy()
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    counts = [one.status.counters.preemptions for one in simulation.jobs()]
    assert sum(counts) == 1


def test_the_check_sees_jobs_that_are_stopped_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: GPUJob, __: datetime) -> float:
        return 0.0

    monkeypatch.setattr(preemptor, "barred_seconds", never)
    violations = greedy().run().violations
    assert any("after it did not use that" in one.message for one in violations)
