"""The API server's data are restored from a backup: operators, kubelets and jobs go on from there.

Versions go back too, and a version means another state than before. Nobody says what was lost.
"""

import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.observe.cache import Kind
from tests.simulation.faults import Faults, Incident
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import (
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_queue,
    make_spec,
)

pytestmark = pytest.mark.promise("I3", "I5", "I7", "I9")

NODES = (NodePlan("n0", 1), NodePlan("n1", 2))
# All is done after 160 s without a restore, and the periodic full list comes after 300.
END_SECONDS = 600.0


def some_jobs() -> Scenario:
    """Submitted before any backup; they end one after the other."""
    jobs = [
        Submission(
            f"job{number}",
            0.5 * number,
            make_spec(f"job{number}"),
            Workload(memory_bytes=12 * GIB, steps=20 + 15 * number, checkpoint_steps=10),
        )
        for number in range(5)
    ]
    return Scenario(NODES, tuple(jobs))


@pytest.mark.parametrize("operators", [1, 2])
@pytest.mark.parametrize(
    ("at", "lost_seconds"), [(20.0, 3.0), (45.0, 15.0), (70.0, 60.0), (100.0, 15.0), (140.0, 60.0)]
)
def test_jobs_end_as_they_should(at: float, lost_seconds: float, operators: int) -> None:
    """I1, I3, I5, I7, I9, I11: no promise is broken from an older revision on, and every job ends.

    The last one is restored when no job is left to write: the pods that run in the backup do not.
    """
    simulation = Simulation(
        11,
        scenario=some_jobs(),
        faults=Faults(),
        incidents=[Incident(at, "restore", "n0", lost_seconds)],
        operators=operators,
        end_seconds=END_SECONDS,
    )
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.ends.values()) == {"Succeeded"}
    assert simulation.api.restores == 1


@pytest.mark.parametrize("operators", [1, 2])
def test_what_follows_a_restore_is_heard_however_much_was_lost(operators: int) -> None:
    """I11: others wrote so much that it takes hours until the versions of before come again. Until
    then the API server says nothing in a watch that goes on from there."""
    simulation = Simulation(
        11,
        scenario=some_jobs(),
        faults=Faults(),
        incidents=[Incident(30.0, "restore", "n0", 13.0)],
        operators=operators,
        end_seconds=END_SECONDS,
    )
    queue = make_queue("others")

    def write_much() -> None:
        # Operators that list what is lost later: their watches start from there.
        for shell in simulation.shells:
            shell.crash()
        simulation.api.create(Kind.QUEUE, queue, "admin")
        for number in range(2000):
            patch = {"spec": {"weight": number + 1}}
            simulation.api.patch(Kind.QUEUE, "", "others", patch, "admin", spec=True)

    simulation.clock.after(19.0, write_much)
    result = simulation.run()
    assert not result.violations, "\n".join(map(str, result.violations))
    assert set(result.ends.values()) == {"Succeeded"}
    # Half a minute later than without: the operators were away, and 13 s of work are done again.
    assert max(story.ended_at or END_SECONDS for story in result.stories.values()) < 150
