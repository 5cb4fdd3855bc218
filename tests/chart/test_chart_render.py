"""The chart renders, and what it renders is valid Kubernetes (promise I12 for its own pods)."""

import json
from collections.abc import Mapping
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gpujob_api.field_types import json_fields
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.options import load_configuration_file
from kubectl_gpujob.listing import CONFIGURATION, CONFIGURATION_FILE
from tests.harness.chart import (
    ALL_ON,
    CHART,
    Manifest,
    helm,
    named,
    of_kind,
    pod_spec,
    render,
    restricted_findings,
)
from tests.harness.repository import ROOT

pytestmark = pytest.mark.cluster
KUBERNETES_VERSION = "1.36"
# Kinds of others, whose schemas come with their own operators.
FOREIGN = {"ServiceMonitor", "PrometheusRule", "GPUQueue"}
VALUES: Mapping[str, Mapping[str, Any]] = {"defaults": {}, "all on": ALL_ON}


@pytest.fixture(scope="module", params=VALUES.values(), ids=list(VALUES))
def objects(request: pytest.FixtureRequest) -> list[Manifest]:
    return render(request.param)


def one(objects: list[Manifest], kind: str) -> Manifest:
    (found,) = of_kind(objects, kind)
    return found


@pytest.mark.parametrize("values", VALUES.values(), ids=list(VALUES))
def test_helm_lint_is_content(values: Mapping[str, Any]) -> None:
    done = helm("lint", str(CHART), "--strict", values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_object_fits_its_schema(objects: list[Manifest]) -> None:
    for found in objects:
        if found["kind"] not in FOREIGN:
            kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)


def test_the_command_line_finds_the_operators_configuration(objects: list[Manifest]) -> None:
    found = named(objects, "ConfigMap", "configuration")
    labels = found["metadata"]["labels"]
    assert set(CONFIGURATION.split(",")) <= {f"{name}={value}" for name, value in labels.items()}
    assert list(found["data"]) == [CONFIGURATION_FILE]


def test_objects_have_unique_names(objects: list[Manifest]) -> None:
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(names) == len(set(names))


def test_no_object_names_a_namespace_of_its_own(objects: list[Manifest]) -> None:
    """Helm says where; a template that says otherwise leaves the release."""
    assert [found["kind"] for found in objects if "namespace" in found["metadata"]] == []


def test_the_operator_and_the_test_pod_are_restricted(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "Deployment", "Pod"):
        assert restricted_findings(pod_spec(workload)) == []


def test_the_agent_breaks_nothing_but_the_process_namespace(objects: list[Manifest]) -> None:
    assert restricted_findings(pod_spec(one(objects, "DaemonSet"))) == ["spec.hostPID"]


def test_every_container_has_a_read_only_root_and_limits(objects: list[Manifest]) -> None:
    for workload in of_kind(objects, "Deployment", "DaemonSet", "Pod"):
        for container in pod_spec(workload)["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["resources"]["requests"]
            assert container["resources"]["limits"]["memory"]


@pytest.mark.promise("I12")
def test_no_rule_has_a_wildcard_or_a_dangerous_verb(objects: list[Manifest]) -> None:
    dangerous = {"*", "escalate", "bind", "impersonate"}
    for role in of_kind(objects, "ClusterRole", "Role"):
        for rule in role["rules"]:
            words = {*rule.get("apiGroups", ()), *rule.get("resources", ()), *rule["verbs"]}
            assert not words & dangerous, rule


def test_nobody_reads_secrets(objects: list[Manifest]) -> None:
    for role in of_kind(objects, "ClusterRole", "Role"):
        assert all("secrets" not in rule.get("resources", ()) for rule in role["rules"])


def test_the_kubelet_asks_the_agent_whether_it_still_reads(objects: list[Manifest]) -> None:
    (container,) = one(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    assert f"--health-listen=0.0.0.0:{port['containerPort']}" in container["args"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": port["name"]}


@pytest.mark.parametrize("name", ["operator", "agent"])
def test_the_roles_are_the_files_that_the_local_cluster_uses(
    objects: list[Manifest], name: str
) -> None:
    roles = of_kind(objects, "ClusterRole", "Role")
    ours = [role for role in roles if role["metadata"]["name"] == f"gpujob-{name}"]
    granted = [rule for role in ours for rule in role["rules"]]
    rules = yaml.safe_load((CHART / "files" / f"{name}-rules.yaml").read_text(encoding="utf-8"))
    assert sorted(granted, key=str) == sorted(rules, key=str)


def test_what_is_the_operators_own_is_granted_in_its_namespace_alone(
    objects: list[Manifest],
) -> None:
    own = ["leases", "endpointslices"]
    role = named(objects, "Role", "operator")
    assert [name for rule in role["rules"] for name in rule["resources"]] == own
    cluster = [rule for role in of_kind(objects, "ClusterRole") for rule in role["rules"]]
    assert all(set(own).isdisjoint(rule["resources"]) for rule in cluster)


def test_reports_go_to_the_leader_alone(objects: list[Manifest]) -> None:
    """The operator is told the name of a Service without a selector, and writes its endpoints."""
    arguments = pod_spec(named(objects, "Deployment", "operator"))["containers"][0]["args"]
    service = named(objects, "Service", "reports")
    assert f"--report-service={service['metadata']['name']}" in arguments
    assert "selector" not in service["spec"]


def test_services_and_policies_select_the_operator_alone(objects: list[Manifest]) -> None:
    operator = named(objects, "Deployment", "operator")["spec"]["template"]["metadata"]["labels"]
    agent = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [named(objects, "Service", "operator")["spec"]["selector"]]
    policy = named(objects, "NetworkPolicy", "operator")
    selectors.append(policy["spec"]["podSelector"]["matchLabels"])
    selectors += [
        found["spec"]["selector"]["matchLabels"]
        for found in of_kind(objects, "PodDisruptionBudget")
    ]
    for selector in selectors:
        assert selector.items() <= operator.items()
        assert not selector.items() <= agent.items()


def test_the_crds_are_ours_and_survive_an_uninstall(objects: list[Manifest]) -> None:
    rendered = {found["metadata"]["name"]: found for found in of_kind(objects, KIND_CRD)}
    assert len(rendered) == len(list((ROOT / "crds").glob("*.yaml")))
    for path in (ROOT / "crds").glob("*.yaml"):
        ours = yaml.safe_load(path.read_text(encoding="utf-8"))
        found = rendered[ours["metadata"]["name"]]
        kept = {"annotations": {"helm.sh/resource-policy": "keep"}}
        assert found == ours | {"metadata": ours["metadata"] | kept}


KIND_CRD = "CustomResourceDefinition"


def test_crds_can_be_left_to_somebody_else() -> None:
    assert of_kind(render({"crds": {"install": False}}), KIND_CRD) == []


def test_operator_and_agent_can_be_installed_apart() -> None:
    alone = render({"operator": {"enabled": False}, "crds": {"install": False}})
    assert {found["kind"] for found in alone} == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "DaemonSet",
        "NetworkPolicy",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    }
    without = render({"agent": {"enabled": False}})
    assert of_kind(without, "DaemonSet") == []
    policies = {one["metadata"]["name"] for one in of_kind(without, "ValidatingAdmissionPolicy")}
    assert {"gpujob-jobs", "gpujob-pods"} <= policies
    assert "gpujob-agent-own-node" not in policies
    accounts = {account["metadata"]["name"] for account in of_kind(without, "ServiceAccount")}
    assert accounts == {"gpujob-operator", "gpujob-job-test"}


def test_the_configuration_file_is_read_by_the_operator(
    objects: list[Manifest], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("configuration") / "configuration.yaml"
    path.write_text(named(objects, "ConfigMap", "configuration")["data"]["configuration.yaml"])
    assert load_configuration_file(path).waiting_stretch_max in (15.0, 10.0)


def test_a_changed_configuration_restarts_the_operator() -> None:
    def checksum(configuration: Mapping[str, Any]) -> str:
        deployment = named(render({"configuration": configuration}), "Deployment", "operator")
        return deployment["spec"]["template"]["metadata"]["annotations"]["checksum/configuration"]

    assert checksum({}) == checksum({})
    assert checksum({}) != checksum({"nominateAfterSeconds": 5})


def test_the_schema_knows_every_field_of_the_configuration() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    known = set(schema["properties"]["configuration"]["properties"])
    assert known == set(json_fields(Configuration))


def test_the_configuration_reference_names_every_field() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    assert [name for name in json_fields(Configuration) if f"`{name}`" not in text] == []


def test_a_digest_wins_over_a_tag() -> None:
    digest = "sha256:" + "a" * 64
    found = named(render({"image": {"tag": "9", "digest": digest}}), "Deployment", "operator")
    assert pod_spec(found)["containers"][0]["image"] == f"gpujob-operator@{digest}"


def test_the_test_pod_checks_the_address_that_workers_are_told(objects: list[Manifest]) -> None:
    (argument,) = [
        text.removeprefix("--report-url=")
        for text in pod_spec(named(objects, "Deployment", "operator"))["containers"][0]["args"]
        if text.startswith("--report-url=")
    ]
    environment = pod_spec(named(objects, "Pod", "test"))["containers"][0]["env"]
    assert {"name": "REPORT_URL", "value": argument} in environment
    assert argument == "http://gpujob-reports.gpujob-system.svc:8080/report"


def test_a_pod_of_the_operator_is_ready_when_events_of_every_kind_arrive(
    objects: list[Manifest],
) -> None:
    """Or else a rollout would be content with an operator that hears nothing."""
    operator = next(
        one for one in of_kind(objects, "Deployment") if "operator" in one["metadata"]["name"]
    )
    (container,) = pod_spec(operator)["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz/events"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_test_pods_programs_compile(objects: list[Manifest]) -> None:
    for pod in of_kind(objects, "Pod"):
        name = pod["metadata"]["name"]
        compile(pod_spec(pod)["containers"][0]["args"][0], f"{name}.py", "exec")
