"""The chart's NetworkPolicies, and a team's own: who reaches whom, and that all goes on."""

import re
from collections.abc import Generator
from typing import Any

import pytest
import yaml

from gpujob_local.kubelets.requirements import Machine, without_policies
from tests.harness.ground import STEPS, Team
from tests.harness.release import SYSTEM, VALUES, Release
from tests.harness.repository import ROOT
from tests.harness.visitors import REACHED, TIMED_OUT, attempts, open_address, visitor
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.promise("I12"), pytest.mark.e2e, pytest.mark.timeout(600)]

Json = dict[str, Any]

REPORTS, METRICS, HEALTH = 8080, 9090, 8081
SERVICE = f"gpujob-reports.{SYSTEM}.svc"
# A change of a policy is known on every node soon; each look takes up to 4 s.
APPLIED_SECONDS = 60.0
DENY_ALL: Json = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
}


@pytest.fixture(autouse=True)
def enforced() -> None:
    if words := without_policies(Machine.look()):
        pytest.skip(words)


@pytest.fixture
def visitors(team: Team) -> dict[str, str]:
    """On every node one, by name, and where it serves."""
    names = [visitor(team, node) for node in team.cluster.nodes]
    return {name: open_address(team, name) for name in names}


def ours(release: Release, component: str) -> dict[str, str]:
    """The addresses of the operator's or the agents' pods, by name."""
    selector = f"app.kubernetes.io/component={component}"
    found = release.cluster.client().get(
        f"/api/v1/namespaces/{SYSTEM}/pods", labelSelector=selector
    )
    return {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in found["items"]}


def guides_policy() -> Json:
    """What docs/guides/security.md has a team allow."""
    text = (ROOT / "docs" / "guides" / "security.md").read_text()
    blocks = re.findall(r"^ *```yaml\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    (found,) = [one for one in map(yaml.safe_load, blocks) if one["kind"] == "NetworkPolicy"]
    return found


def close(team: Team, *policies: Json) -> None:
    """Nothing goes into the team's namespace or out of it but what the policies allow."""
    for policy in (DENY_ALL, *policies):
        metadata = policy["metadata"] | {"namespace": team.namespace}
        team.apply(policy | {"metadata": metadata})


def test_others_reach_no_report_port_and_no_agent(
    release: Release, team: Team, visitors: dict[str, str]
) -> None:
    """On the operator's node, where only a bridge is between them, and on another one."""
    (operator,) = ours(release, "operator").values()
    agents = ours(release, "agent").values()
    shut = [f"{operator}:{REPORTS}", f"{SERVICE}:{REPORTS}"]
    shut += [f"{agent}:{HEALTH}" for agent in agents]
    for name in visitors:
        said = attempts(team.cluster, team.namespace, name, [*shut, *visitors.values()])
        assert said == dict.fromkeys(shut, TIMED_OUT) | dict.fromkeys(visitors.values(), REACHED)
    (pod,) = release.operators()
    assert pod["status"]["containerStatuses"][0]["ready"], "the kubelet's probes come in"


@pytest.fixture
def changeable(release: Release) -> Generator[Release]:
    """Its values are those of before afterwards."""
    yield release
    release.upgrade(values=VALUES)


def test_metrics_are_for_all_until_somebody_is_named(changeable: Release, team: Team) -> None:
    """The operator's health is on the same port."""
    (operator,) = ours(changeable, "operator").values()
    addresses = [f"{operator}:{REPORTS}", f"{operator}:{METRICS}"]
    name = visitor(team, next(iter(team.cluster.nodes)))
    open_address(team, name)

    def wait_for(reports: str, metrics: str) -> None:
        wanted = dict(zip(addresses, (reports, metrics), strict=True))

        def found() -> bool:
            return attempts(team.cluster, team.namespace, name, addresses) == wanted

        wait_until(found, APPLIED_SECONDS, str(wanted))

    def allow(**policy: Any) -> None:
        changeable.upgrade(values={**VALUES, "networkPolicy": policy})

    wait_for(reports=TIMED_OUT, metrics=REACHED)
    theirs = {"kubernetes.io/metadata.name": "monitoring"}
    allow(metricsFrom=[{"namespaceSelector": {"matchLabels": theirs}}])
    wait_for(reports=TIMED_OUT, metrics=TIMED_OUT)
    team_labels = {"kubernetes.io/metadata.name": team.namespace}
    allow(metricsFrom=[{"namespaceSelector": {"matchLabels": team_labels}}])
    wait_for(reports=TIMED_OUT, metrics=REACHED)
    allow(enabled=False)
    wait_for(reports=REACHED, metrics=REACHED)


def test_the_operator_and_agents_reach_what_they_need_and_no_other_pod(
    release: Release, team: Team, visitors: dict[str, str]
) -> None:
    needed = ["kubernetes.default.svc:443"]
    for component, own in (("operator", []), ("agent", [f"{SERVICE}:{REPORTS}"])):
        for name in ours(release, component):
            reached = [*needed, *own]
            said = attempts(release.cluster, SYSTEM, name, [*reached, *visitors.values()])
            assert said == (
                dict.fromkeys(reached, REACHED) | dict.fromkeys(visitors.values(), TIMED_OUT)
            )


def test_a_job_in_a_closed_namespace_reports_with_what_the_guide_allows(
    team: Team, visitors: dict[str, str]
) -> None:
    close(team, guides_policy())
    first, second = visitors

    def shut() -> bool:
        where = visitors[second]
        return attempts(team.cluster, team.namespace, first, [where]) == {where: TIMED_OUT}

    wait_until(shut, APPLIED_SECONDS, "the namespace is closed")
    team.submit("reporting")
    team.wait_for_phase("reporting", "Running")
    # A step is known from reports alone while a job runs.
    wait_until(lambda: team.step("reporting") > 0, 120, "a report")
    assert team.status("reporting")["phase"] == "Running"
    team.wait_for_phase("reporting", "Succeeded")
    assert team.step("reporting") == STEPS


def test_a_job_whose_reports_are_shut_out_is_measured_from_outside_and_succeeds(
    team: Team,
) -> None:
    close(team)
    team.submit("silent", steps=STEPS)
    team.wait_for_phase("silent", "Running")
    measured = lambda: team.status("silent").get("measurement", {}).get("memoryBytes", 0)  # noqa: E731
    wait_until(lambda: measured() > 0, 120, "the agent's measurement")
    assert "step" not in team.status("silent")["measurement"]
    team.wait_for_phase("silent", "Succeeded")
    # What its pod left at its end.
    assert team.step("silent") == STEPS
    assert team.status("silent")["attempt"] == 1
