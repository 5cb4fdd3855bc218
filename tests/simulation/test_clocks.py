"""Clocks that jump: of nodes, of agents, of the operator's machine. Nothing is placed, stopped, or
kept waiting for it."""

from collections.abc import Callable
from datetime import datetime

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.leadership.cluster_clock import ClusterClock
from tests.simulation.faults import Faults, Incident
from tests.simulation.operator_shell import Parts
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I9")

HOUR = 3600.0
# Clocks of nodes may cost a reading or two, in which nothing new is placed.
LATER_SECONDS_MAX = 90.0
NODES = (NodePlan("n0", 1), NodePlan("n1", 2))


def steady_jobs(utilization_percent: float = 40.0) -> Scenario:
    """More jobs than GPUs, of some minutes in all."""
    jobs = [
        Submission(
            f"job{number}",
            4.0 * number,
            make_spec(f"job{number}"),
            Workload(memory_bytes=12 * GIB, steps=60, utilization_percent=utilization_percent),
        )
        for number in range(6)
    ]
    return Scenario(NODES, tuple(jobs))


def play(
    *incidents: Incident,
    parts: Parts | None = None,
    operators: int = 2,
    directly: bool = True,
    scenario: Scenario | None = None,
) -> Result:
    """Where readings do not go directly, they go by statuses."""
    simulation = Simulation(
        7, scenario=scenario or steady_jobs(), faults=Faults(), incidents=list(incidents),
        operators=operators, parts=parts,
    )  # fmt: skip
    if not directly:
        simulation.cluster.agents.breaks = lambda: True
    return simulation.run()


@pytest.fixture(scope="module")
def calm() -> Result:
    return play()


JUMPS: dict[str, Callable[[float], list[Incident]]] = {
    "a node": lambda error: [Incident(40.0, "node-clock", "n0", error)],
    "every node, there and back": lambda error: [
        *[Incident(30.0, "node-clock", node, error) for node in ("n0", "n1")],
        *[Incident(70.0, "node-clock", node, -error) for node in ("n0", "n1")],
    ],
    "the leader": lambda error: [Incident(40.0, "operator-clock", "n0", error)],
    "the next leaders": lambda error: [
        Incident(30.0, "operator-clock", "n0", error),
        Incident(32.0, "operator-killed", "n0", 0.0),
    ],
    "all, and the agent of one dies": lambda error: [
        *[Incident(30.0, "node-clock", node, error) for node in ("n0", "n1")],
        Incident(31.0, "operator-clock", "n0", -error),
        Incident(45.0, "operator-killed", "n0", 0.0),
        Incident(50.0, "agent", "n0", 20.0),
    ],
}


@pytest.mark.parametrize("error_seconds", [HOUR, -HOUR], ids=["ahead", "behind"])
@pytest.mark.parametrize("jumps", JUMPS)
def test_a_clock_that_jumps_an_hour_moves_nobody(
    calm: Result, jumps: str, error_seconds: float
) -> None:
    """I9, I14: no job is stopped, none waits much longer, and none ends otherwise."""
    result, without_jump = (play(*JUMPS[jumps](error)) for error in (error_seconds, 0.0))
    assert not result.violations, "\n".join(map(str, result.violations))
    assert result.ends == calm.ends
    assert set(result.ends.values()) == {"Succeeded"}
    # The first number of jobs that wait when their operator is killed is passed over.
    assert result.attempts == without_jump.attempts
    for name, story in result.stories.items():
        assert story.ended_at is not None
        assert story.ended_at - (calm.stories[name].ended_at or 0.0) < LATER_SECONDS_MAX, name


class WallClock(ClusterClock):
    """What the operator's machine says."""

    def now(self) -> datetime:
        return self._wall()


def test_an_operator_that_believes_its_wall_clock_is_caught() -> None:
    """Of jobs that prepare data and leave their GPUs idle, the time since the last report shows
    whether they hang.
    """
    jump, idle = Incident(40.0, "operator-clock", "n0", HOUR), steady_jobs(0.5)
    assert set(play(jump, operators=1, scenario=idle).attempts.values()) == {1}
    result = play(jump, parts=Parts(clock=WallClock), operators=1, scenario=idle)
    assert result.violations or set(result.attempts.values()) != {1}


def test_nobody_waits_where_readings_go_by_statuses_either(calm: Result) -> None:
    """The age of a reading in a status is told by clocks."""
    result = play(*JUMPS["the next leaders"](-HOUR), directly=False)
    assert not result.violations, "\n".join(map(str, result.violations))
    latest = max(story.ended_at or 0.0 for story in result.stories.values())
    before = max(story.ended_at or 0.0 for story in calm.stories.values())
    assert latest - before < LATER_SECONDS_MAX
