"""Who may do what, and who reaches whom: roles for people, network policies, choices of a pod."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from gpujob_operator.agent.__main__ import TOKEN_FILE
from tests.harness.chart import (
    CHART,
    EXTRAS,
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
from tests.harness.guides import commands
from tests.harness.repository import ROOT, relative, text_of, tracked

pytestmark = pytest.mark.cluster
READ = {"get", "list", "watch"}
# Documents that install the operator and the agents as two releases.
SEPARATE_AGENTS = [
    path for path in tracked("*.md") if "operator.agentAccount=" in (text_of(path) or "")
]
WRITE = {"create", "update", "patch", "delete", "deletecollection"}


def one(objects: list[Manifest], kind: str) -> Manifest:
    (found,) = of_kind(objects, kind)
    return found


def rights(objects: list[Manifest], role: str) -> dict[str, set[str]]:
    rules = named(objects, "ClusterRole", role)["rules"]
    return {name: set(rule["verbs"]) for rule in rules for name in rule["resources"]}


def aggregated(values: Mapping[str, Any]) -> set[str]:
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    labels = [role["metadata"]["labels"] for role in of_kind(render(values), "ClusterRole")]
    return {name.removeprefix(prefix) for one in labels for name in one if name.startswith(prefix)}


# Roles


def test_a_viewer_an_editor_and_an_admin_can_be_bound() -> None:
    objects = render()
    assert rights(objects, "viewer") == {
        "gpujobs": READ,
        "gpuservices": READ,
        "gpuprofiles": READ,
    }
    forget = READ | {"delete", "deletecollection"}
    assert rights(objects, "editor") == {
        "gpujobs": READ | WRITE,
        "gpuservices": READ | WRITE,
        "gpuprofiles": forget,
    }
    every = READ | WRITE
    assert rights(objects, "admin") == {
        "gpujobs": every,
        "gpuservices": every,
        "gpunodes": every,
        "gpuqueues": every,
        "gpuprofiles": forget,
    }


def test_nobody_but_the_operator_and_the_agents_writes_status() -> None:
    for name in ("viewer", "editor", "admin"):
        assert not [one for one in rights(render(), name) if "/" in one]


def test_only_looking_is_given_away_by_itself() -> None:
    assert aggregated({}) == {"view"}
    for name in ("view", "edit", "admin"):
        every = dict.fromkeys(("view", "edit", "admin"), False)
        assert aggregated({"rbac": {"aggregate": {**every, name: True}}}) == {name}


def test_without_rbac_there_is_no_role_but_that_of_a_test() -> None:
    objects = render({"rbac": {"create": False}})
    roles = of_kind(objects, "ClusterRole", "Role")
    assert {role["metadata"]["name"] for role in roles} == {"gpujob-job-test"}


# Network policies


def ports(rule: Manifest) -> set[Any]:
    return {port["port"] for port in rule["ports"]}


def test_policies_are_on_and_name_both_directions() -> None:
    for name in ("operator", "agent"):
        policy = named(render(), "NetworkPolicy", name)["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert of_kind(render({"networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


def test_workers_and_gates_of_every_namespace_reach_the_report_port_alone() -> None:
    rules = named(render(), "NetworkPolicy", "operator")["spec"]["ingress"]
    (*reporters, _) = [rule for rule in rules if "namespaceSelector" in str(rule)]
    for rule, label in zip(reporters, ("gpujob.dev/job", "gpujob.dev/gate"), strict=True):
        (peer,) = rule["from"]
        assert peer["namespaceSelector"] == {}
        assert label in str(peer["podSelector"])
        assert ports(rule) == {"reports"}


def test_agents_reach_the_report_port_and_the_port_lets_them_in() -> None:
    objects = render()
    agent = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    operator = named(objects, "Deployment", "operator")["spec"]["template"]["metadata"]["labels"]
    (*_, agents) = [
        rule
        for rule in named(objects, "NetworkPolicy", "operator")["spec"]["ingress"]
        if "namespaceSelector" in str(rule)
    ]
    (peer,) = agents["from"]
    assert peer["podSelector"]["matchLabels"].items() <= agent.items()
    assert ports(agents) == {"reports"}
    *_, readings = named(objects, "NetworkPolicy", "agent")["spec"]["egress"]
    (peer,) = readings["to"]
    assert peer["podSelector"]["matchLabels"].items() <= operator.items()
    (container,) = pod_spec(named(objects, "Deployment", "operator"))["containers"]
    listening = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports(readings) == {listening["reports"]}


def test_agents_are_told_where_and_operators_of_whom_readings_come() -> None:
    objects = render()
    agent, operator = (
        pod_spec(one(objects, "DaemonSet")),
        pod_spec(named(objects, "Deployment", "operator")),
    )
    service = named(objects, "Service", "reports")
    (url,) = _values(agent, "--readings-url")
    assert url == f"http://{service['metadata']['name']}.{NAMESPACE}.svc:8080/readings"
    (account,) = _values(operator, "--agent-account")
    assert account == f"{NAMESPACE}:{agent['serviceAccountName']}"
    (volume,) = agent["volumes"]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "gpujob"
    (mount,) = agent["containers"][0]["volumeMounts"]
    folder, file = Path(mount["mountPath"]), source["serviceAccountToken"]["path"]
    assert (folder / file, mount["readOnly"]) == (TOKEN_FILE, True)


@pytest.mark.parametrize(
    ("values", "url", "account"),
    [
        ({"agent": {"readings": {"direct": False}}}, [], []),
        ({"operator": {"enabled": False}}, [], None),
        (
            {"operator": {"enabled": False}, "agent": {"readings": {"url": "http://a:1/readings"}}},
            ["http://a:1/readings"],
            None,
        ),
        ({"agent": {"enabled": False}}, None, []),
        (
            {"agent": {"enabled": False}, "operator": {"agentAccount": "gpu:agent"}},
            None,
            ["gpu:agent"],
        ),
    ],
)
def test_operator_and_agents_may_be_of_two_releases(
    values: Manifest, url: list[str] | None, account: list[str] | None
) -> None:
    objects = render(values)
    for kind, option, wanted in (
        ("DaemonSet", "--readings-url", url),
        ("Deployment", "--agent-account", account),
    ):
        found = [_values(pod_spec(each), option) for each in of_kind(objects, kind)]
        assert found == ([] if wanted is None else [wanted])
    if url is not None:
        agent = pod_spec(one(objects, "DaemonSet"))
        assert bool(url) == ("volumes" in agent)
        egress = named(objects, "NetworkPolicy", "agent")["spec"]["egress"]
        assert len(egress) == (3 if url else 2)


@pytest.mark.parametrize("document", SEPARATE_AGENTS, ids=relative)
def test_a_document_names_the_agents_account_and_the_operators_address(document: Path) -> None:
    """Agents write into the status if either is wrong, so an installation does not show it."""
    operator, agent = map(_documented, filter(_is_of_two_releases, commands(document)))
    agents = pod_spec(one(agent.objects, "DaemonSet"))
    account = _values(pod_spec(one(operator.objects, "Deployment")), "--agent-account")
    assert account == [f"{agent.namespace}:{agents['serviceAccountName']}"]
    services = of_kind(operator.objects, "Service")
    assert _values(agents, "--readings-url") in [
        [f"http://{each['metadata']['name']}.{operator.namespace}.svc:{port['port']}/readings"]
        for each in services
        for port in each["spec"]["ports"]
        if port["name"] == "reports"
    ]


def test_some_document_has_both_releases() -> None:
    assert ROOT / "docs" / "guides" / "install.md" in SEPARATE_AGENTS


class _Release(NamedTuple):
    namespace: str
    objects: list[Manifest]


def _is_of_two_releases(command: str) -> bool:
    return command.startswith("helm install") and (
        "operator.agentAccount=" in command or "agent.readings.url=" in command
    )


def _documented(command: str) -> _Release:
    """The release that a document's command installs."""
    _helm, _install, name, chart, *flags = shlex.split(command)
    done = helm("template", name, str(ROOT / chart), *flags)
    assert done.returncode == 0, done.stderr
    objects = [found for found in yaml.safe_load_all(done.stdout) if found]
    return _Release(flags[flags.index("--namespace") + 1], objects)


def _values(spec: Manifest, option: str) -> list[str]:
    arguments = spec["containers"][0]["args"]
    return [text.partition("=")[2] for text in arguments if text.startswith(f"{option}=")]


def test_nobody_reaches_an_agent() -> None:
    assert "ingress" not in named(render(), "NetworkPolicy", "agent")["spec"]


@pytest.mark.parametrize("name", ["operator", "agent"])
def test_both_reach_the_api_server_and_dns(name: str) -> None:
    dns, server, *_ = named(render(), "NetworkPolicy", name)["spec"]["egress"]
    assert ports(dns) == {53}
    assert {port["protocol"] for port in dns["ports"]} == {"UDP", "TCP"}
    assert "to" not in dns, "a node's own DNS cache is no pod"
    assert {443, 6443} <= ports(server)
    values = {"networkPolicy": {"apiServerPorts": [6443], "apiServerCIDRs": ["10.0.0.1/32"]}}
    _dns, server, *_ = named(render(values), "NetworkPolicy", name)["spec"]["egress"]
    assert ports(server) == {6443}
    assert server["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}]


# Choices of a pod


@pytest.mark.parametrize(("part", "kind"), [("operator", "Deployment"), ("agent", "DaemonSet")])
def test_a_pod_gets_what_a_platform_team_adds(part: str, kind: str) -> None:
    added = {**EXTRAS, "extraArgs": ["--log-format=text"], "logLevel": "debug"}
    before, after = (
        pod_spec(named(render(values), kind, part)) for values in ({}, {part: dict(added)})
    )
    (old,), (new,) = before["containers"], after["containers"]
    assert new["args"][-2:] == ["--log-level=debug", "--log-format=text"]
    assert old["args"][-1] == "--log-level=info"
    assert new["env"] == old["env"] + EXTRAS["extraEnv"]
    for name, value in (("volumes", after), ("volumeMounts", new)):
        wanted = EXTRAS["extraVolumes" if name == "volumes" else "extraVolumeMounts"]
        assert value[name] == (before if name == "volumes" else old).get(name, []) + wanted


@pytest.mark.parametrize(
    ("values", "named_value"),
    [
        ({"operator": {"extraEnv": [{"value": "x"}]}}, "extraEnv"),
        ({"operator": {"extraEnv": [{"name": "A", "val": "x"}]}}, "extraEnv"),
        ({"operator": {"extraArgs": ["verbose"]}}, "extraArgs"),
        ({"operator": {"logLevel": "chatty"}}, "logLevel"),
        ({"agent": {"extraVolumes": [{"configMap": {"name": "x"}}]}}, "extraVolumes"),
        ({"agent": {"extraVolumeMounts": [{"name": "x"}]}}, "extraVolumeMounts"),
        ({"agent": {"tolerations": [{"keys": "x"}]}}, "tolerations"),
        ({"operator": {"affinity": {"podAfinity": {}}}}, "affinity"),
        ({"rbac": {"aggregate": True}}, "aggregate"),
        ({"rbac": {"aggregate": {"views": True}}}, "aggregate"),
        ({"networkPolicy": {"apiServerPorts": []}}, "apiServerPorts"),
        ({"networkPolicy": {"apiServerCIDRs": ["10.0.0.1"]}}, "apiServerCIDRs"),
        ({"networkPolicy": {"metricsFrom": [{"namespace": {}}]}}, "metricsFrom"),
        ({"metrics": {"prometheusRule": {"runbookUrl": "ftp://x"}}}, "runbookUrl"),
        ({"defaultQueue": {"spec": {"nominal": {"cards": 8}}}}, "defaultQueue"),
        ({"defaultQueue": {"spec": {"nominal": {"gpus": -1}}}}, "defaultQueue"),
        ({"tests": {"job": {"timeoutSeconds": 0}}}, "timeoutSeconds"),
    ],
    ids=str,
)
def test_nonsense_in_it_is_refused(values: Mapping[str, Any], named_value: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert named_value in done.stderr


# The default queue and the test's job


def fields(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: fields(part) if "properties" in part else None
        for name, part in schema["properties"].items()
    }


def test_the_default_queues_values_are_those_of_the_crd() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    crd = yaml.safe_load((ROOT / "crds/gpujob.dev_gpuqueues.yaml").read_text(encoding="utf-8"))
    (version,) = crd["spec"]["versions"]
    ours = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    assert fields(schema["definitions"]["queue"]) == fields(ours)


def test_the_default_queue_is_made_once_and_then_left_alone() -> None:
    assert of_kind(render(), "GPUQueue") == []
    values = {"defaultQueue": {"create": True, "spec": {"nominal": {"gpus": 4}}}}
    (queue,) = of_kind(render(values), "GPUQueue")
    assert queue["metadata"]["name"] == "default"
    assert queue["spec"]["nominal"] == {"gpus": 4}
    # A part of the release would be set back by an upgrade and deleted with the release.
    assert queue["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"


def test_what_the_job_test_may_do_is_there_for_the_test_only() -> None:
    objects = render()
    mine = [one for one in objects if one["metadata"]["name"] == "gpujob-job-test"]
    kinds = {"Pod", "ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    assert {one["kind"] for one in mine} == kinds
    for one in mine:
        annotations = one["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        assert "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    (pod,) = of_kind(mine, "Pod")
    early = {one["metadata"]["annotations"].get("helm.sh/hook-weight") for one in mine}
    assert "helm.sh/hook-weight" not in pod["metadata"]["annotations"]
    assert early == {None, "-1"}


def test_the_job_of_a_long_release_name_is_one_that_the_api_takes() -> None:
    """A GPUJob's name has at most 52 characters."""
    values = {"fullnameOverride": "a" * 63}
    pod = next(
        one
        for one in of_kind(render(values), "Pod")
        if one["metadata"]["name"].endswith("-job-test")
    )
    environment = {e["name"]: e["value"] for e in pod_spec(pod)["containers"][0]["env"]}
    assert len(json.loads(environment["JOB"])["metadata"]["name"]) <= 52


def test_the_job_test_can_be_left_out() -> None:
    objects = render({"tests": {"job": {"enabled": False}}})
    assert [one["metadata"]["name"] for one in of_kind(objects, "Pod")] == ["gpujob-test"]


# The notes


def notes(values: Mapping[str, Any]) -> str:
    arguments = ("install", RELEASE, str(CHART), "--dry-run=client", "--namespace", NAMESPACE)
    done = helm(*arguments, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("\nNOTES:\n")[2]


def test_the_notes_are_the_next_three_commands() -> None:
    commands = [line.strip() for line in notes({}).splitlines() if line.startswith("  ")]
    assert [command.split()[:2] for command in commands] == [
        ["kubectl", "label"],
        ["helm", "test"],
        ["kubectl", "apply"],
    ]


def test_a_release_without_an_operator_recommends_no_test() -> None:
    assert "helm test" not in notes({"operator": {"enabled": False}})


def test_the_notes_name_cpu_cards() -> None:
    assert "CPU cards" in notes({"agent": {"devices": "cpu"}})
    assert "runtime class" not in notes({"agent": {"devices": "cpu"}})
    assert "CPU cards" not in notes({})


# Namespaces to watch

WATCHED: Mapping[str, Any] = {"operator": {"watchNamespaces": ["team-a", "team-b"]}}


def granted(rules: list[Manifest]) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_with_namespaces_to_watch_the_operator_writes_in_those_alone() -> None:
    objects = render(WATCHED)
    everywhere = granted(named(objects, "ClusterRole", "operator")["rules"])
    writes = {(resource, verb) for _group, resource, verb in everywhere if verb not in READ}
    assert writes == {("gpuqueues/status", "update"), ("tokenreviews", "create")}
    roles = [one for one in of_kind(objects, "Role") if "-operator-jobs" in one["metadata"]["name"]]
    assert [role["metadata"]["namespace"] for role in roles] == ["team-a", "team-b"]
    there = granted(roles[0]["rules"])
    assert ("", "pods", "create") in there
    assert [one for one in there if one[2] in READ] == [("", "persistentvolumeclaims", "get")]
    leases = granted(named(objects, "Role", "operator")["rules"])
    rules = yaml.safe_load((CHART / "files" / "operator-rules.yaml").read_text(encoding="utf-8"))
    assert everywhere | there | leases == granted(rules)


def test_each_role_of_a_namespace_is_bound_there() -> None:
    bindings = [one for one in of_kind(render(WATCHED), "RoleBinding") if "namespace" in str(one)]
    found = {
        (one["metadata"].get("namespace"), one["roleRef"]["name"])
        for one in bindings
        if one["roleRef"]["name"].startswith("gpujob-operator")
    }
    assert found == {
        (None, "gpujob-operator"),
        ("team-a", "gpujob-operator-jobs"),
        ("team-b", "gpujob-operator-jobs"),
    }


def test_the_operator_is_told_which_namespaces_to_watch() -> None:
    def arguments(values: Mapping[str, Any]) -> list[str]:
        return pod_spec(named(render(values), "Deployment", "operator"))["containers"][0]["args"]

    assert "--watch-namespaces=team-a,team-b" in arguments(WATCHED)
    assert not [text for text in arguments({}) if text.startswith("--watch-namespaces")]


def test_helm_test_runs_its_job_only_where_the_operator_watches() -> None:
    assert [one["metadata"]["name"] for one in of_kind(render(WATCHED), "Pod")] == ["gpujob-test"]
    values = {"operator": {"watchNamespaces": [NAMESPACE]}}
    assert len(of_kind(render(values), "Pod")) == 2


@pytest.mark.parametrize("names", [["Team"], ["a", "a"], "team", [""]], ids=str)
def test_names_that_no_namespace_has_are_refused(names: object) -> None:
    done = template({"operator": {"watchNamespaces": names}})
    assert done.returncode != 0
    assert "watchNamespaces" in done.stderr
