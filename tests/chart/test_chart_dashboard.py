"""The dashboard of the chart: off by default, with rights to read alone."""

import pytest

from gpujob_dashboard.__main__ import options_of
from tests.harness.chart import ALL_ON, Manifest, named, of_kind, pod_spec, render, template

pytestmark = pytest.mark.cluster
COMPONENT = "app.kubernetes.io/component"


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    return render({"dashboard": {"enabled": True}})


def test_nothing_of_it_is_there_by_default() -> None:
    assert [one for one in render() if one["metadata"]["name"].endswith("-dashboard")] == []


def test_it_may_read_and_review_and_nothing_else(objects: list[Manifest]) -> None:
    rules = named(objects, "ClusterRole", "dashboard")["rules"]
    reading = [rule for rule in rules if "create" not in rule["verbs"]]
    assert all(set(rule["verbs"]) <= {"get", "list", "watch"} for rule in reading)
    assert {name for rule in rules if rule not in reading for name in rule["resources"]} == {
        "tokenreviews",
        "subjectaccessreviews",
    }
    assert all("secrets" not in rule["resources"] for rule in rules)
    assert all("configmaps" not in rule["resources"] for rule in rules)
    binding = named(objects, "ClusterRoleBinding", "dashboard")
    account = pod_spec(named(objects, "Deployment", "dashboard"))["serviceAccountName"]
    assert [subject["name"] for subject in binding["subjects"]] == [account]


def test_its_program_takes_the_arguments(objects: list[Manifest]) -> None:
    spec = pod_spec(named(objects, "Deployment", "dashboard"))
    [container] = spec["containers"]
    assert container["command"][-1] == "gpujob_dashboard"
    options = options_of(container["args"])
    assert options.in_cluster
    assert options.port == container["ports"][0]["containerPort"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(options.configuration.parent) in mounted


def test_service_and_policy_select_it_alone() -> None:
    objects = render(ALL_ON)
    labels = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in of_kind(objects, "Deployment", "DaemonSet")
    }
    policy = named(objects, "NetworkPolicy", "dashboard")["spec"]
    selectors = [
        named(objects, "Service", "dashboard")["spec"]["selector"],
        policy["podSelector"]["matchLabels"],
        named(objects, "Deployment", "dashboard")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        chosen = [name for name, own in labels.items() if selector.items() <= own.items()]
        assert chosen == ["gpujob-dashboard"]
    [rule] = policy["ingress"]
    assert rule["from"] == ALL_ON["networkPolicy"]["dashboardFrom"]


def test_without_an_operator_it_reads_no_configuration() -> None:
    objects = render({"dashboard": {"enabled": True}, "operator": {"enabled": False}})
    spec = pod_spec(named(objects, "Deployment", "dashboard"))
    assert "configuration" not in {volume["name"] for volume in spec["volumes"]}
    assert options_of(spec["containers"][0]["args"]).configuration is None


@pytest.mark.parametrize(
    ("values", "name"),
    [({"enabled": "yes"}, "enabled"), ({"port": 80}, "port"), ({"replicas": 2}, "replicas")],
)
def test_wrong_values_are_refused(values: dict[str, object], name: str) -> None:
    done = template({"dashboard": values})
    assert done.returncode != 0
    assert name in done.stderr
