"""Seeded fault schedules around the real plan: no promise is broken, and every check can fail.

`python -m tests.simulation.run --seeds 0-9999` runs many more.
"""

import subprocess
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.plan_items import said_beside
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.mutants import MUTANTS, PlanFunction
from tests.simulation.result import Result
from tests.simulation.run import main
from tests.simulation.simulation import Simulation, run_calm, run_seed
from tests.simulation.workloads import (
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_crowded_scenario,
    make_spec,
)

pytestmark = pytest.mark.promise("I4")

SEEDS = 64
SEEDS_A_TEST = 8
CRASHES_MAX = 60


def explain(result: Result) -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    found = "\n".join(map(str, result.violations[:5]))
    replay = f"python -m tests.simulation.run --seeds {result.seed}"
    return f"seed {result.seed} at commit {commit}:\n{found}\nreplay: {replay}"


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_no_promise_is_broken_under_faults(first: int) -> None:
    """I1-I9, I11, I13, I14: crashes, lags, lost answers or nodes, unmanaged processes, rivals."""
    for seed in range(first, first + SEEDS_A_TEST):
        result = run_seed(seed)
        assert not result.violations, explain(result)


@pytest.mark.parametrize("seed", [1, 5])
def test_what_planning_remembers_changes_no_plan(seed: int) -> None:
    """I9: decided anew from nothing in every cycle, every plan is the same. What is being written
    may be left out, and changes nothing of the rest."""
    remembering: dict[int, tuple[Planner, Planner]] = {}
    cycles: list[int] = []

    def both(snapshot: Snapshot, now: datetime) -> Plan:
        fresh = plan(snapshot, now)
        key = id(snapshot.configuration)
        planner, shipped = remembering.setdefault(key, (Planner(), Planner()))
        assert planner(replace(snapshot, writing=()), now).items == fresh.items
        found = shipped(snapshot, now)
        assert said_beside(found, snapshot.writing) == said_beside(fresh, snapshot.writing)
        cycles.append(len(fresh.items))
        return fresh

    result = run_seed(seed, plan=both)
    assert not result.violations, explain(result)
    assert len(cycles) > 50


@pytest.mark.parametrize("seed", [3, 11, 24])
def test_the_end_is_that_of_the_run_without_faults(seed: int) -> None:
    """I9: every job ends in the same phase, and attempts stay few."""
    calm, rough = run_calm(seed), run_seed(seed)
    assert not calm.violations, explain(calm)
    assert not rough.violations, explain(rough)
    assert rough.ends == calm.ends
    assert max(rough.attempts.values()) <= max(calm.attempts.values()) + 12
    assert rough.writes <= 4 * calm.writes + 100


def small_scenario() -> Scenario:
    gang: dict[str, Any] = {"workers": 2}
    return Scenario(
        (NodePlan("n0", 2),),
        (
            Submission("job0", 0.0, make_spec("job0"), Workload(steps=12)),
            Submission("job1", 1.0, make_spec("job1", **gang), Workload(steps=12)),
            Submission("job2", 2.0, make_spec("job2"), Workload(steps=12), suspend_at=20.0,
                       resume_at=40.0),
        ),
    )  # fmt: skip


def run_small(crash_after: int | None) -> Result:
    crashes = [] if crash_after is None else [crash_after]
    return Simulation(
        1,
        scenario=small_scenario(),
        faults=Faults(crashes=crashes, watch_delay_max=1.0),
        incidents=[],
        operators=1,
    ).run()


def test_a_crash_after_every_single_write_changes_nothing() -> None:
    """I1, I3, I4, I8, I9: whatever was the last write, the next operator goes on from there."""
    calm = run_small(None)
    assert not calm.violations, explain(calm)
    assert 15 < calm.writes <= CRASHES_MAX, "the scenario is small, or this test takes long"
    for crash_after in range(1, calm.writes + 1):
        result = run_small(crash_after)
        assert not result.violations, f"crash after write {crash_after}: {explain(result)}"
        assert result.ends == calm.ends


def test_a_large_job_is_not_starved_by_an_endless_stream_of_small_ones() -> None:
    """I11: it waits for the jobs that run when its patience ends, not for all that come."""
    small = [
        Submission(f"small{n}", n * 7.0, make_spec(f"small{n}"), Workload(steps=30))
        for n in range(24)
    ]
    large = Submission("large", 5.0, make_spec("large", gpusPerWorker=2), Workload(steps=10))
    scenario = Scenario((NodePlan("n0", 2),), (*small, large))
    simulation = Simulation(1, scenario=scenario, faults=Faults(), incidents=[], operators=1)
    placed: dict[str, float] = {}

    def note(revision: Revision) -> None:
        status = revision.object.get("status") or {}
        if revision.kind.value == "GPUJob" and status.get("placement"):
            placed.setdefault(revision.object["metadata"]["name"], revision.at)

    simulation.api.recorders.append(note)
    result = simulation.run()
    assert not result.violations, explain(result)
    assert placed["large"] < 5.0 + 60.0 + 60.0
    assert sum(at > placed["large"] for at in placed.values()) > 5


def crowded_incidents(seed: int) -> list[Incident]:
    return [
        Incident(20 + seed, "unmanaged", "n0", 80),
        Incident(10 + seed, "agent", "n1", 90),
        Incident(70 + seed, "pod-deleted", "n0", 1),
        Incident(0.0, "collector-away", "n0", 1),
    ]


def run_crowded(seed: int, plan: PlanFunction | None = None) -> Result:
    return Simulation(
        seed,
        scenario=make_crowded_scenario(seed),
        incidents=crowded_incidents(seed),
        operators=1,
        end_seconds=600.0 if plan is None else 420.0,
        plan=plan,
    ).run()


@pytest.mark.parametrize("seed", range(4))
def test_no_promise_is_broken_in_a_crowd(seed: int) -> None:
    """I1, I2, I7: the ground of the mutants below, with the real plan."""
    result = run_crowded(seed)
    assert not result.violations, explain(result)


@pytest.mark.parametrize(
    ("invariant", "mutant"), [pytest.param(*one, id=one[1].__name__) for one in MUTANTS]
)
def test_a_plan_that_breaks_a_promise_is_caught(invariant: str, mutant: PlanFunction) -> None:
    """I1-I6, I8, I9, I11, I13, I14: no check passes whatever happens; `test_isolation` has more."""
    caught: set[str] = set()
    for seed in range(40):
        caught |= {violation.invariant for violation in run_crowded(seed, mutant).violations}
        if invariant in caught:
            return
    pytest.fail(f"caught {sorted(caught)} instead of {invariant}")


def test_two_leaders_at_once_are_caught() -> None:
    """I1, I3: the Lease is what keeps two operators from placing on one GPU."""
    caught: set[str] = set()
    for seed in range(20, 44):
        faults = Faults(split_brain=True, watch_delay_max=5.0)
        result = Simulation(
            seed,
            scenario=make_crowded_scenario(seed),
            faults=faults,
            incidents=[],
            operators=2,
            end_seconds=400,
        ).run()
        caught |= {violation.invariant for violation in result.violations}
        if caught & {"I1", "I2", "I3"}:
            return
    pytest.fail(f"caught {sorted(caught)}")


def test_a_seed_is_deterministic() -> None:
    """A failing seed can be replayed."""
    one, other = run_seed(5), run_seed(5)
    assert (one.revisions, one.writes, one.cycles, one.attempts, one.ends) == (
        other.revisions,
        other.writes,
        other.cycles,
        other.attempts,
        other.ends,
    )


def test_the_command_reports_what_it_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2-3", "--every", "1"]) == 0
    said = capsys.readouterr().out
    assert "2 seeds, 0 failed" in said
    assert "seeds/s, commit" in said
