"""Jobs in containers of our image on real nodes, in a namespace with Pod Security "restricted"."""

import json

import pytest

from tests.harness.ground import STEPS, WORKER_IMAGE, Team
from tests.harness.live_attempts import LiveAttempts
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.promise("I12")
def test_a_job_is_measured_and_succeeds(team: Team, live: LiveAttempts) -> None:
    team.submit("first")
    team.wait_for_phase("first", "Running")
    # Over HTTP to the Service's name: DNS, kube-proxy, the worker's own token.
    wait_until(lambda: team.step("first") > 0, 120, "a report of the first job")
    usage = lambda: team.status("first").get("measurement", {}).get("memoryBytes", 0)  # noqa: E731
    wait_until(lambda: usage() > 0, 120, "a measurement of the first job")
    team.wait_for_phase("first", "Succeeded")
    (pod,) = team.pods("first")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert ended["exitCode"] == 0
    report = json.loads(ended["message"])
    assert report["step"] == STEPS, report
    assert team.steps_of("first", 1) == list(range(1, STEPS + 1))
    assert live.of(team.namespace, "first").attempts == {1}


def test_two_jobs_share_a_gpu_by_measurement(team: Team) -> None:
    """A whole GPU at first, for who was never measured; what was measured leaves room for another.

    The other node takes nothing new meanwhile.
    """
    team.submit("known", steps=8)
    team.wait_for_phase("known", "Succeeded")
    team.wait_for_profile()
    node = team.node_of("known")
    (other,) = {name for name in team.cluster.nodes if name != node}
    team.cluster.kubectl("cordon", other)
    try:
        for name in ("left", "right"):
            team.submit(name, steps=100)
        for name in ("left", "right"):
            team.wait_for_phase(name, "Running")
        both = [team.status(name) for name in ("left", "right")]
        assert [status["placement"]["workers"][0]["node"] for status in both] == [node, node]
        assert {tuple(s["placement"]["workers"][0]["gpus"]) for s in both} == {
            tuple(team.status("known")["placement"]["workers"][0]["gpus"])
        }
        for name in ("left", "right"):
            team.wait_for_phase(name, "Succeeded")
    finally:
        team.cluster.kubectl("uncordon", other)


def test_a_sidecar_does_not_keep_a_finished_job(team: Team) -> None:
    sidecar = {
        "name": "sidecar",
        "image": WORKER_IMAGE,
        "command": ["python", "-c", "import time; time.sleep(3600)"],
    }
    team.submit("accompanied", steps=4, template={"containers": [sidecar]})
    team.wait_for_phase("accompanied", "Succeeded")
    wait_until(lambda: not team.pods("accompanied"), 120, "the sidecar's pod is gone")


def test_a_failing_script_says_so_in_the_job(team: Team) -> None:
    command = ["gpujob-run", "--", "python", "-c", "raise SystemExit('no data in /nowhere')"]
    team.submit("broken", command=command, spec={"retry": {"limit": 1}})
    team.wait_for_phase("broken", "Failed")
    assert team.status("broken")["attempt"] == 2
    assert "no data in /nowhere" in team.condition("broken", "Failed")["message"]
