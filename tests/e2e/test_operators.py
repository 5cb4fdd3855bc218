"""The operator goes and comes while a job runs: killed, replaced, uninstalled, installed again."""

import os
import signal
from pathlib import Path

import pytest

from gpujob_local.kubelets.cgroups import processes
from gpujob_local.kubelets.cluster import KubeletCluster
from tests.harness.audit import AuditTrail
from tests.harness.ground import Team, closed, wait_for_nodes
from tests.harness.live_attempts import LiveAttempts
from tests.harness.release import SYSTEM, Release
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

# The Lease's 15 s, and a start of a process on a busy machine.
TAKEOVER_SECONDS = 90.0
# The 12 s after which Kubernetes here takes a node for lost, the chart's 30 s, and a takeover.
# Without the chart's toleration Kubernetes alone waits for 300 s.
LOST_NODE_SECONDS = 180.0


def operator_processes(cluster: KubeletCluster) -> list[int]:
    """As this machine counts them."""
    found: list[int] = []
    for node in cluster.nodes.values():
        for process in processes(node.plan.cgroup):
            try:
                command = Path(f"/proc/{process}/cmdline").read_bytes()
            except OSError:
                continue
            if b"gpujob-operator" in command:
                found.append(process)
    return found


def wait_for_report(team: Team, job: str) -> None:
    """The one that acts now hears the job: its step grows."""
    before = team.step(job)
    wait_until(lambda: team.step(job) > before, TAKEOVER_SECONDS + 30, f"a report of {job}")


def test_a_killed_operator_goes_on_where_it_was(
    release: Release, team: Team, live: LiveAttempts
) -> None:
    team.submit("witness", steps=120)
    team.wait_for_phase("witness", "Running")
    for process in operator_processes(release.cluster):
        os.kill(process, signal.SIGKILL)
    wait_for_report(team, "witness")
    assert team.status("witness")["attempt"] == 1
    assert live.of(team.namespace, "witness").alive == {1}


def test_of_two_replicas_the_other_takes_over(
    release: Release, team: Team, live: LiveAttempts
) -> None:
    cluster = release.cluster
    scale = ("--namespace", SYSTEM, "scale", "deployment/gpujob-operator")
    cluster.kubectl(*scale, "--replicas=2")
    try:
        wait_until(lambda: len(release.operators()) == 2, 60, "two operators")
        cluster.kubectl(
            *("--namespace", SYSTEM, "rollout", "status", "deployment/gpujob-operator"),
            "--timeout=60s",
        )
        team.submit("witness", steps=120)
        team.wait_for_phase("witness", "Running")
        leader = release.leader()
        (pod,) = [
            p["metadata"]["name"] for p in release.operators() if p["metadata"]["name"] in leader
        ]
        cluster.kubectl("--namespace", SYSTEM, "delete", "pod", pod, "--wait=false")
        wait_until(
            lambda: release.leader() not in ("", leader), TAKEOVER_SECONDS, f"no longer {leader}"
        )
        wait_for_report(team, "witness")
        assert live.of(team.namespace, "witness").attempts == {1}
    finally:
        cluster.kubectl(*scale, "--replicas=1")
        wait_until(lambda: len(release.operators()) == 1, 60, "one operator again")


@pytest.mark.promise("I3")
def test_the_operators_own_node_is_lost(release: Release, team: Team, live: LiveAttempts) -> None:
    """A new operator is started on another node soon, and goes on with the job that runs there."""
    (operator,) = release.operators()
    name, leader = operator["spec"]["nodeName"], release.leader()
    with closed(team, name):
        team.submit("witness", steps=400)
        team.wait_for_phase("witness", "Running")
    node = release.cluster.nodes[name]
    node.switch_off()
    try:
        wait_until(
            lambda: release.leader() not in ("", leader), LOST_NODE_SECONDS, f"no longer {leader}"
        )
        wait_for_report(team, "witness")
        assert team.status("witness")["attempt"] == 1
        assert live.of(team.namespace, "witness").alive == {1}
    finally:
        node.start_runtime()
        node.start_kubelet()
        wait_for_nodes(release.cluster)
        release.wait_for_readings()


def test_a_release_that_is_installed_again_takes_over(
    release: Release, team: Team, live: LiveAttempts, audit: AuditTrail
) -> None:
    """The jobs, their pods and what was measured stay; the new release goes on with them."""
    team.submit("witness", steps=200)
    team.wait_for_phase("witness", "Running")
    release.uninstall()
    # The roles go first, and what the parts still write at their end is refused.
    audit.forget()
    assert live.of(team.namespace, "witness").alive == {1}
    Release.install(release.cluster)
    wait_until(lambda: bool(release.leader()), TAKEOVER_SECONDS, "a leader")
    wait_for_report(team, "witness")
    assert team.status("witness")["attempt"] == 1
    assert live.of(team.namespace, "witness").attempts == {1}
