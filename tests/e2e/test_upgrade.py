"""An upgrade from an earlier release under running jobs, by the commands of the guide."""

import sys
from collections.abc import Generator
from typing import Any

import pytest

from tests.harness.audit import AuditTrail
from tests.harness.earlier import TAG, check_out_earlier
from tests.harness.ground import Team, resumable_job
from tests.harness.live_attempts import LiveAttempts
from tests.harness.release import VALUES, Release
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

Json = dict[str, Any]

JOBS = 20
START_SECONDS = 300.0
TAKEOVER_SECONDS = 90.0
# A small CPU card for each of the jobs.
CARDS: Json = {"count": JOBS // 2, "memory": "200Mi", "besideGPUs": True}
WAIT = "import signal, time; signal.signal(15, lambda *_: exit(143)); time.sleep(3600)"


@pytest.fixture
def earlier_release(release: Release, audit: AuditTrail) -> Generator[Release]:
    """In place of this checkout's, which is there again afterwards."""
    cluster = release.cluster
    earlier = check_out_earlier(cluster.directory / "earlier")
    sys.stdout.write(f"upgraded from {earlier.words}\n")
    cluster.add_image(earlier.image())
    release.uninstall()
    audit.forget()
    values = {**VALUES, "agent": {**VALUES["agent"], "cpu": CARDS}}
    yield Release.install(cluster, f"--set=image.tag={TAG}", chart=earlier.chart, values=values)
    release.upgrade(values=VALUES)
    release.wait_for_readings()


@pytest.mark.promise("I3")
def test_no_running_job_notices_an_upgrade(
    earlier_release: Release, team: Team, live: LiveAttempts, audit: AuditTrail
) -> None:
    release, names = earlier_release, [f"job-{number}" for number in range(JOBS)]
    team.apply(*(waiting_job(team.namespace, name) for name in names))
    wait_until(
        lambda: all(team.status(name).get("phase") == "Running" for name in names),
        START_SECONDS,
        f"{JOBS} jobs run",
    )
    before = {name: containers(team, name) for name in names}
    old = {pod["metadata"]["name"] for pod in release.operators()}

    release.upgrade("--set=image.tag=")
    wait_until(
        lambda: release.leader() not in {"", *old}, TAKEOVER_SECONDS, "the new operator leads"
    )
    # Until it ended, the earlier operator had the later one's rights.
    audit.forget()
    (operator,) = release.operators()
    assert TAG not in operator["spec"]["containers"][0]["image"]

    # It acts on what the earlier one began.
    ended = names.pop()
    team.client.merge(f"{team.jobs_path}/{ended}", {"spec": {"suspend": True}})
    wait_until(lambda: not team.pods(ended), 90, f"the pod of {ended} is gone")
    assert {name: containers(team, name) for name in names} == {
        name: before[name] for name in names
    }
    for name in names:
        assert team.status(name)["attempt"] == 1
        assert live.of(team.namespace, name).attempts == {1}, name
        assert live.of(team.namespace, name).alive == {1}, name


def waiting_job(namespace: str, name: str) -> Json:
    """It trains nothing, so that twenty fit, and ends when it is told to."""
    return resumable_job(
        namespace,
        name,
        command=["gpujob-run", "--", "python", "-c", WAIT],
        spec={"gpu": {"memory": "100Mi"}, "sharing": {"mode": "Exclusive"}},
    )


def containers(team: Team, name: str) -> list[tuple[str, int]]:
    """Id and restarts of each."""
    return [
        (status["containerID"], status["restartCount"])
        for pod in team.pods(name)
        for status in pod["status"]["containerStatuses"]
    ]
