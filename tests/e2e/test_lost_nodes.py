"""A node goes, in every way that one can, under a job that resumes.

Each scene shows three things: never two live attempts, by processes and not by objects; the next
attempt goes on behind the durable step; the final weights are those of an undisturbed run.
"""

import json

import pytest

from gpujob_local.kubelets.node import KubeletNode
from tests.harness.ground import STEPS, Team, closed, drained, wait_for_nodes
from tests.harness.live_attempts import LiveAttempts
from tests.harness.release import Release
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# Two attempts are alive together while the new one starts, and until the old one's next checkpoint.
START_SECONDS = 180.0
FENCED_SECONDS = 45.0


@pytest.fixture(scope="module")
def undisturbed(release: Release) -> str:
    """The weights of a run that nothing disturbed."""
    team = Team(release.cluster, "undisturbed")
    team.create()
    team.submit("quiet", pause_seconds=0.0)
    team.wait_for_phase("quiet", "Succeeded")
    digest = team.final_digest("quiet")
    team.remove()
    return digest


class Interrupted:
    """A job that runs, with a durable step, on a node that is about to go."""

    def __init__(
        self, release: Release, team: Team, live: LiveAttempts, pause_seconds: float
    ) -> None:
        self.team = team
        self.live = live
        # The node that goes is not the operator's: that is a scene of its own.
        (operator,) = release.operators()
        with closed(team, operator["spec"]["nodeName"]):
            team.submit("traveller", pause_seconds=pause_seconds)
            team.wait_for_phase("traveller", "Running")
        self.durable_step = team.wait_for_checkpoint("traveller")
        self.node: KubeletNode = team.cluster.nodes[team.node_of("traveller")]

    def wait_until_it_is_back(self, seconds: float = 240) -> None:
        """Running in its second attempt."""
        self.wait_for_attempt(2, seconds)
        self.team.wait_for_phase("traveller", "Running", seconds)

    def wait_for_attempt(self, attempt: int, seconds: float = 240) -> None:
        team = self.team
        wait_until(
            lambda: team.status("traveller").get("attempt") == attempt,
            seconds,
            f"attempt {attempt}; the job said before: {team.said('traveller')}",
        )

    def check_the_end(self, digest: str, together_seconds_max: float = 0.0) -> None:
        team, attempt = self.team, self.team.status("traveller")["attempt"]
        team.wait_for_phase("traveller", "Succeeded")
        seen = self.live.of(team.namespace, "traveller")
        assert seen.together_seconds <= together_seconds_max
        assert attempt in seen.attempts
        assert team.final_digest("traveller") == digest
        steps = team.steps_of("traveller", attempt)
        assert steps == list(range(steps[0], STEPS + 1))
        if attempt > 1:
            assert steps[0] == team.status("traveller")["resumedFromStep"] + 1
            assert steps[0] > self.durable_step


@pytest.fixture
def interrupted(
    request: pytest.FixtureRequest,
    release: Release,
    team: Team,
    live: LiveAttempts,
    undisturbed: str,
) -> Interrupted:
    """Its parameter is how long the job rests after each of its steps."""
    assert undisturbed
    return Interrupted(release, team, live, getattr(request, "param", 0.3))


@pytest.mark.promise("I6", "I13")
def test_an_evicted_pod_moves(interrupted: Interrupted, undisturbed: str) -> None:
    """By the API's eviction, as a descheduler does: the pod has its grace and saves."""
    team = interrupted.team
    pod = f"/api/v1/namespaces/{team.namespace}/pods/traveller-1-0"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "traveller-1-0"}}
    team.client.create(f"{pod}/eviction", body)
    interrupted.wait_until_it_is_back()
    interrupted.check_the_end(undisturbed)


@pytest.mark.promise("I6", "I13")
def test_a_drained_node_is_left(interrupted: Interrupted, undisturbed: str) -> None:
    team, node = interrupted.team, interrupted.node.plan.name
    with drained(team, node):
        interrupted.wait_until_it_is_back()
        assert team.node_of("traveller") != node
    interrupted.check_the_end(undisturbed)


@pytest.mark.promise("I3")
def test_a_node_whose_containers_died_with_the_kubelet(
    interrupted: Interrupted, undisturbed: str
) -> None:
    """Nobody reports the death: the job waits and says why, until the kubelet is back and knows."""
    team, node = interrupted.team, interrupted.node
    try:
        node.kill_containers()
        said = team.wait_for_words("traveller", "NodeUnreachable")
        assert node.plan.name in said
        assert team.status("traveller")["attempt"] == 1
    finally:
        node.start_kubelet()
        wait_for_nodes(team.cluster)
    interrupted.wait_until_it_is_back()
    interrupted.check_the_end(undisturbed)


@pytest.mark.promise("I3")
@pytest.mark.parametrize("interrupted", [1.5], indirect=True)
def test_a_node_that_is_cut_off_and_comes_back_keeps_its_job(
    interrupted: Interrupted, undisturbed: str
) -> None:
    """The worker goes on meanwhile, and nothing is started beside it."""
    team, node = interrupted.team, interrupted.node
    node.cut_network()
    try:
        team.wait_for_words("traveller", "NodeUnreachable")
        assert interrupted.live.of(team.namespace, "traveller").alive == {1}
    finally:
        node.restore_network()
        wait_for_nodes(team.cluster)
    interrupted.check_the_end(undisturbed)
    assert team.status("traveller")["attempt"] == 1


@pytest.mark.parametrize("interrupted", [2.0], indirect=True)
def test_a_pod_that_is_deleted_by_force_while_it_lives(
    interrupted: Interrupted, undisturbed: str
) -> None:
    """Whoever deletes it by force says that nothing runs there, and here that is wrong.

    The worker cannot be reached. It ends by itself at its next checkpoint, which the new attempt's
    fence refuses; until then both are alive. Removing a Node object says the same, 60 s later.
    """
    team, node = interrupted.team, interrupted.node
    node.cut_network()
    try:
        team.wait_for_words("traveller", "NodeUnreachable")
        force = ("--force", "--grace-period=0", "--wait=false")
        team.cluster.kubectl(
            "--namespace", team.namespace, "delete", "pod", "traveller-1-0", *force
        )
        seen = interrupted.live.of(team.namespace, "traveller")
        assert seen.alive == frozenset({1})
        wait_until(lambda: fence(team) == 2, START_SECONDS, "the new attempt's fence")
        wait_until(
            lambda: seen.alive == frozenset({2}),
            FENCED_SECONDS,
            f"the old attempt is gone; {team.said('traveller')}",
        )
    finally:
        node.restore_network()
        wait_for_nodes(team.cluster)
    interrupted.check_the_end(undisturbed, together_seconds_max=START_SECONDS + FENCED_SECONDS)
    assert interrupted.team.node_of("traveller") != node.plan.name


def fence(team: Team) -> int:
    """The attempt that the checkpoint directory belongs to."""
    # Deeper folders come and go while the worker saves.
    (path,) = team.folder.glob("*/*/FENCE")
    return json.loads(path.read_text())["attempt"]


@pytest.mark.promise("I3")
def test_a_node_that_is_switched_off_and_given_up(
    interrupted: Interrupted, undisturbed: str
) -> None:
    """As a cloud takes a machine without notice, and later its Node object."""
    team, node = interrupted.team, interrupted.node
    try:
        node.switch_off()
        team.wait_for_words("traveller", "NodeUnreachable")
        delete_node(team, node.plan.name)
        interrupted.wait_until_it_is_back(300)
        assert team.node_of("traveller") != node.plan.name
    finally:
        node.start_runtime()
        node.start_kubelet()
        wait_for_nodes(team.cluster)
    interrupted.check_the_end(undisturbed)


def delete_node(team: Team, name: str) -> None:
    team.client.delete(f"/api/v1/nodes/{name}")
