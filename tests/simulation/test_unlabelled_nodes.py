"""I5, I9: nodes lose the label by which they are managed, under jobs that run or start there."""

import pytest

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.scenes import EXCLUSIVE
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I5")

BACK_SECONDS = 200.0


def played(
    nodes: int, workers: int, removed_at: float, *more: Incident, is_silent: bool
) -> Simulation:
    """A job on all nodes, which all lose the label, and one that waits for its GPUs."""
    names = [f"n{number}" for number in range(nodes)]
    steps = Workload(steps=60, checkpoint_steps=1000, is_silent=is_silent)
    first = make_spec("first", workers=workers, retry={"limit": 0}, **EXCLUSIVE)
    last = make_spec("last", workers=workers, **EXCLUSIVE)
    return Simulation(
        2,
        scenario=Scenario(
            tuple(NodePlan(name, workers // nodes) for name in names),
            (
                Submission("first", 0.0, first, steps),
                Submission("last", 5.0, last, Workload(steps=10)),
            ),
        ),
        faults=Faults(),
        incidents=[
            *(Incident(removed_at, "label-removed", name, BACK_SECONDS) for name in names),
            *more,
        ],
        operators=1,
    )


@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("removed_at", [1.5, 40.0])
@pytest.mark.parametrize("killed_at", [None, 45.0])
@pytest.mark.parametrize(("nodes", "workers"), [(1, 1), (2, 2)])
def test_the_job_there_is_done_once_and_the_next_one_waits_for_the_label(
    nodes: int, workers: int, killed_at: float | None, removed_at: float, *, is_silent: bool
) -> None:
    killed = [Incident(killed_at, "operator-killed", "", 0.0)] if killed_at is not None else []
    simulation = played(nodes, workers, removed_at, *killed, is_silent=is_silent)
    created: list[tuple[float, str]] = []

    def note(revision: Revision) -> None:
        if revision.kind is Kind.POD and revision.type == "ADDED":
            created.append((revision.at, revision.object["metadata"]["name"]))

    simulation.api.recorders.append(note)
    result = simulation.run()
    assert not result.violations, result.violations[:3]
    assert result.ends == {"team/first": "Succeeded", "team/last": "Succeeded"}
    of_first = {name for _, name in created if name.startswith("first")}
    assert of_first == {f"first-1-{rank}" for rank in range(workers)}
    assert len(created) == 2 * workers
    assert min(at for at, name in created if name not in of_first) > removed_at + BACK_SECONDS
