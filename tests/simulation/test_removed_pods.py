"""I3: a pod that was taken away by force before it ran is not created again under its name.

Its node may have started it all the same. Only the number of the next attempt fences it off.
"""

import pytest

from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import Revision
from tests.simulation.faults import Faults, Incident
from tests.simulation.pods import worker_ended
from tests.simulation.result import Result
from tests.simulation.simulation import Simulation
from tests.simulation.workloads import NodePlan, Scenario, Submission, Workload, make_spec

pytestmark = pytest.mark.promise("I3")

# The image comes so slowly that no pod runs when it is taken away.
PULL_SECONDS = 20.0


class Scene:
    """A job whose first pod is removed by force so long after its creation; at the same moment
    the operator is killed, or not."""

    def __init__(self, *, workers: int, after_seconds: float, operator_killed: bool) -> None:
        workload = Workload(steps=20, pull_seconds=PULL_SECONDS)
        job = Submission("job", 1.0, make_spec("job", workers=workers), workload)
        nodes = NodePlan("n0", 1), NodePlan("n1", 1)
        self.created: list[str] = []
        self._simulation = Simulation(
            3, scenario=Scenario(nodes, (job,)), faults=Faults(), incidents=[], operators=1
        )
        self._after_seconds = after_seconds
        self._operator_killed = operator_killed
        self._simulation.api.recorders.append(self._note)
        self.result: Result = self._simulation.run()

    def _note(self, revision: Revision) -> None:
        if revision.kind is not Kind.POD or revision.type != "ADDED":
            return
        uid = revision.object["metadata"]["uid"]
        self.created.append(revision.object["metadata"]["name"])
        if len(self.created) == 1:
            self._simulation.clock.after(self._after_seconds, lambda: self._remove(uid))

    def _remove(self, uid: str) -> None:
        self._simulation.api.remove(Kind.POD, uid, "user")
        if self._operator_killed:
            for shell in self._simulation.shells:
                shell.crash()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("operator_killed", [False, True])
@pytest.mark.parametrize("after_seconds", [0.0, 0.1, 5.0])
def test_it_is_not_created_again(
    workers: int, after_seconds: float, *, operator_killed: bool
) -> None:
    scene = Scene(workers=workers, after_seconds=after_seconds, operator_killed=operator_killed)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert len(set(scene.created)) == len(scene.created), scene.created
    assert "job-1-0" in scene.created
    assert "job-2-0" in scene.created
    assert scene.result.ends == {"team/job": "Succeeded"}


class DoneScene:
    """A gang of silent workers. The pod of the first that is done, which another container keeps,
    is removed while the others have a step to take; at that moment the operator is killed, or
    not."""

    def __init__(self, *, operator_killed: bool) -> None:
        workload = Workload(steps=20, is_silent=True)
        job = Submission("job", 1.0, make_spec("job", workers=2, sidecar=True), workload)
        nodes = NodePlan("n0", 1), NodePlan("n1", 1)
        # Before the job is submitted: with it nobody expects that an operator sees every end.
        killed = [Incident(0.5, "operator-killed", "n0", 0.0)] if operator_killed else []
        self._simulation = Simulation(
            3, scenario=Scenario(nodes, (job,)), faults=Faults(), incidents=killed, operators=1
        )
        self._operator_killed = operator_killed
        self.removed: list[str] = []
        self._simulation.api.recorders.append(self._note)
        self.result: Result = self._simulation.run()

    def _note(self, revision: Revision) -> None:
        if revision.kind is not Kind.POD or self.removed or worker_ended(revision.object) is None:
            return
        metadata = revision.object["metadata"]
        self.removed.append(metadata["name"])
        running = [one for m in self._simulation.cluster.machines.values() for one in m.workers]
        assert len(running) == 1, "the other rank runs"
        self._simulation.clock.after(0.3, lambda: self._remove(metadata["uid"]))

    def _remove(self, uid: str) -> None:
        self._simulation.api.remove(Kind.POD, uid, "user")
        if self._operator_killed:
            for shell in self._simulation.shells:
                shell.crash()


@pytest.mark.parametrize("operator_killed", [False, True])
def test_the_others_of_a_gang_do_not_wait_for_one_that_was_done(*, operator_killed: bool) -> None:
    scene = DoneScene(operator_killed=operator_killed)
    assert not scene.result.violations, "\n".join(map(str, scene.result.violations))
    assert scene.removed
    assert scene.result.ends == {"team/job": "Succeeded"}
    assert scene.result.attempts == {"team/job": 1}
