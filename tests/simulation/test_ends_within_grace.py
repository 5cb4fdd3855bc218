"""I5: a worker that is done within its grace is done, although its pod goes at once."""

import pytest

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I5")

STEPS = 40
# It is done this long after it is asked to go, by and large.
LEFT_SECONDS = 8.0


class Scene:
    """A job that does not heed SIGTERM. It is asked to go once, shortly before it is done."""

    def __init__(self, seed: int, *, suspended: bool) -> None:
        workload = Workload(steps=STEPS, ignores_sigterm=True)
        asked_at = STEPS - LEFT_SECONDS
        job = Submission(
            "job",
            1.0,
            make_spec("job"),
            workload,
            suspend_at=asked_at if suspended else None,
            resume_at=asked_at + 60.0 if suspended else None,
        )
        nodes = NodePlan("n0", 1), NodePlan("n1", 1)
        self._simulation = Simulation(
            seed, scenario=Scenario(nodes, (job,)), faults=Faults(), incidents=[], operators=1
        )
        self.created: list[str] = []
        self._simulation.api.recorders.append(self._note)
        if not suspended:
            self._simulation.clock.after(asked_at, self._delete_pods)
        self.result: Result = self._simulation.run()

    def _note(self, revision: Revision) -> None:
        if revision.kind is Kind.POD and revision.type == "ADDED":
            self.created.append(revision.object["metadata"]["name"])

    def _delete_pods(self) -> None:
        for pod in self._simulation.api.list(Kind.POD):
            self._simulation.cluster.delete_pod(pod, "user")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("suspended", [False, True])
def test_it_is_not_run_again(seed: int, *, suspended: bool) -> None:
    scene = Scene(seed, suspended=suspended)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.result.ends == {"team/job": "Succeeded"}
    assert scene.created == ["job-1-0"]
