"""Choices of a platform team that would fail late: they are refused at once, or they agree."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gpujob_api.codec import decode
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.chart import (
    ALL_ON,
    CHART,
    NAMESPACE,
    RELEASE,
    Manifest,
    helm,
    named,
    of_kind,
    pod_spec,
    render,
    template,
)

pytestmark = pytest.mark.cluster


def one(objects: list[Manifest], kind: str) -> Manifest:
    (found,) = of_kind(objects, kind)
    return found


def configuration_of(objects: list[Manifest]) -> Configuration:
    text = named(objects, "ConfigMap", "configuration")["data"]["configuration.yaml"]
    return decode(Configuration, yaml.safe_load(text) or {}, "configuration")


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ({"image": {"tag": "7"}}, "gpujob-operator:7"),
        ({"image": {"repository": "host/a", "digest": "sha256:" + "0" * 64}}, "host/a@sha256:"),
        ({"configuration": {"workerPackageImage": "mine:1"}}, "mine:1"),
    ],
    ids=str,
)
def test_workers_packages_come_from_the_image_that_every_node_has(
    values: Mapping[str, Any], image: str
) -> None:
    found = configuration_of(render(values)).worker_package_image
    assert found is not None
    assert found.startswith(image)
    assert found == found.strip()


def test_gates_run_in_the_operators_image_unless_another_is_named() -> None:
    assert configuration_of(render({"image": {"tag": "7"}})).gate_image == "gpujob-operator:7"
    given = {"configuration": {"gateImage": "mine:1"}}
    assert configuration_of(render(given)).gate_image == "mine:1"


def test_workers_packages_can_be_left_out() -> None:
    without = {"configuration": {"workerPackageImage": ""}}
    assert configuration_of(render(without)).worker_package_image == ""


@pytest.mark.parametrize(
    ("values", "agents", "workers"),
    [
        ({}, "nvidia", "nvidia"),
        ({"agent": {"runtimeClassName": ""}}, None, None),
        ({"agent": {"runtimeClassName": "gpu"}}, "gpu", "gpu"),
        ({"configuration": {"runtimeClassName": "other"}}, "nvidia", "other"),
        ({"configuration": {"runtimeClassName": ""}}, "nvidia", ""),
        ({"agent": {"enabled": False}}, None, "nvidia"),
    ],
    ids=str,
)
def test_workers_get_the_runtime_class_of_the_agent_unless_told(
    values: Mapping[str, Any], agents: str | None, workers: str | None
) -> None:
    """With another one than the agent's, a worker would run and see no GPU."""
    objects = render(values)
    for agent in of_kind(objects, "DaemonSet"):
        assert pod_spec(agent).get("runtimeClassName") == agents
    assert configuration_of(objects).runtime_class_name == workers


@pytest.mark.parametrize(
    ("interval", "stale", "is_taken"),
    [
        *((15, None, True), (16, None, False), (60, 120, True), (60.5, 1000, False)),
        # GPUs on which nothing happens are told again after 10 s, or after five shorter intervals.
        *((2, 11, False), (2, 12, True), (1, 5, False), (1, 6, True)),
    ],
)
def test_an_agent_reads_often_enough_for_its_readings_to_count(
    interval: float, stale: float | None, is_taken: bool
) -> None:
    configuration = {} if stale is None else {"telemetryStaleSeconds": stale}
    done = template({"agent": {"intervalSeconds": interval}, "configuration": configuration})
    assert (done.returncode == 0) is is_taken, done.stderr
    assert is_taken or "intervalSeconds" in done.stderr


def test_editors_make_jobs_and_forget_profiles_but_write_no_measurement() -> None:
    roles = of_kind(render(), "ClusterRole")
    (edit,) = [role for role in roles if role["metadata"]["name"] == "gpujob-editor"]
    granted = {rule["resources"][0]: set(rule["verbs"]) for rule in edit["rules"]}
    assert {"create", "patch", "delete"} <= granted["gpujobs"]
    assert granted["gpuprofiles"] == {"get", "list", "watch", "delete", "deletecollection"}
    assert granted.keys() == {"gpujobs", "gpuprofiles"}


CLASHING: Mapping[str, str] = {
    "app.kubernetes.io/part-of": "ml",
    "app.kubernetes.io/component": "theirs",
    "team": "ml",
}


def test_labels_of_the_users_clash_with_none_of_ours() -> None:
    """A key that was there twice was refused as bad YAML; what selectors look at stays ours."""
    objects = render(
        {
            "operator": {"podLabels": CLASHING},
            "agent": {"podLabels": CLASHING},
            "metrics": {"serviceMonitor": {"enabled": True, "labels": CLASHING}},
        }
    )
    for workload in of_kind(objects, "Deployment", "DaemonSet"):
        labels = workload["spec"]["template"]["metadata"]["labels"]
        assert (labels["app.kubernetes.io/part-of"], labels["team"]) == ("ml", "ml")
        assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    labels = one(objects, "ServiceMonitor")["metadata"]["labels"]
    assert (labels["app.kubernetes.io/component"], labels["team"]) == ("operator", "ml")


def test_pods_stay_on_linux_and_agents_on_nodes_that_joined() -> None:
    mine = {"kubernetes.io/os": "linux", "pool": "a"}
    for values in ({}, {"operator": {"nodeSelector": mine}, "agent": {"nodeSelector": mine}}):
        objects = render(values)
        for workload in of_kind(objects, "Deployment", "DaemonSet", "Pod"):
            selector = pod_spec(workload)["nodeSelector"]
            assert selector["kubernetes.io/os"] == "linux"
            assert ("pool" in selector) is bool(values)
        agent = pod_spec(one(objects, "DaemonSet"))["nodeSelector"]
        assert agent["gpujob.dev/managed"] == "true"


def test_reports_and_metrics_have_ports_of_their_own() -> None:
    done = template({"reports": {"port": 9000}, "metrics": {"port": 9000}})
    assert done.returncode != 0
    assert "metrics.port: must differ from reports.port" in done.stderr


def test_large_numbers_reach_the_operator_as_they_are() -> None:
    """Helm keeps numbers as floating point; the operator takes whole bytes only."""
    values = {"memoryMarginBytes": 3 * 2**40 + 1, "terminationGraceSeconds": 86_400}
    found = configuration_of(render({"configuration": values}))
    assert found.memory_margin_bytes == 3 * 2**40 + 1
    assert found.termination_grace_seconds == 86_400


def test_the_notes_name_what_the_cluster_must_have() -> None:
    def notes(values: Mapping[str, Any]) -> str:
        arguments = ("install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE)
        done = helm(*arguments, values=values)
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("\nNOTES:\n")[2]

    assert "runtime class nvidia" in notes({})
    assert "helm test gpujob --namespace gpujob-system" in notes({})
    assert "runtime class" not in notes({"agent": {"runtimeClassName": ""}})
    assert "hostPID" not in notes({"agent": {"enabled": False}})


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({"reports": {"url": "https://a/report"}}, "https://a/report"),
        ({"configuration": {"reportUrl": "https://b/report"}}, "https://b/report"),
        (
            {
                "reports": {"url": "https://a/report"},
                "configuration": {"reportUrl": "https://b/report"},
            },
            "https://b/report",
        ),
    ],
    ids=["value", "configuration", "both"],
)
def test_helm_test_asks_the_address_that_workers_are_told(
    values: Mapping[str, Any], address: str
) -> None:
    objects = render(values)
    (argument,) = [
        text.removeprefix("--report-url=")
        for text in pod_spec(named(objects, "Deployment", "operator"))["containers"][0]["args"]
        if text.startswith("--report-url=")
    ]
    environment = pod_spec(named(objects, "Pod", "test"))["containers"][0]["env"]
    told = configuration_of(objects).report_url or argument
    assert told == address
    assert {"name": "REPORT_URL", "value": told} in environment


def test_helm_test_gets_through_the_network_policy() -> None:
    objects = render(ALL_ON)
    labels = named(objects, "Pod", "test")["metadata"]["labels"]
    ports: set[str] = set()
    for rule in named(objects, "NetworkPolicy", "operator")["spec"]["ingress"]:
        for peer in rule.get("from", ()):
            wanted = peer.get("podSelector", {}).get("matchLabels", {})
            if wanted and "namespaceSelector" not in peer and wanted.items() <= labels.items():
                ports |= {port["port"] for port in rule["ports"]}
    assert ports == {"reports", "metrics"}


def test_helm_test_runs_where_the_operator_may() -> None:
    objects = render(ALL_ON)
    operator = pod_spec(named(objects, "Deployment", "operator"))
    for probe in of_kind(objects, "Pod"):
        assert pod_spec(probe)["nodeSelector"] == operator["nodeSelector"]
        assert pod_spec(probe)["tolerations"] == ALL_ON["operator"]["tolerations"]


@pytest.mark.parametrize(("given", "seconds"), [({}, 30), ({"tolerationSeconds": 5}, 5)])
def test_the_operator_leaves_a_lost_node_soon(given: Mapping[str, Any], seconds: int) -> None:
    """Kubernetes itself gives a pod 300 s. Tolerations of a user's own are added."""
    own = {"key": "infra", "operator": "Exists"}
    found = pod_spec(
        named(render({"operator": {**given, "tolerations": [own]}}), "Deployment", "operator")
    )
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
    assert found["tolerations"] == [
        {"key": "node.kubernetes.io/not-ready", **lost},
        {"key": "node.kubernetes.io/unreachable", **lost},
        own,
    ]
