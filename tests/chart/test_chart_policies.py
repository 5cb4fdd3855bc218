"""The admission policies as values choose them. What they refuse: tests/integration/admission."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from gpujob_local.cluster.admission import POLICIES_FOLDER, policy_spec
from tests.harness.chart import Manifest, named, of_kind, render, template

pytestmark = pytest.mark.cluster
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
# By policy: the file of each rule, and its value.
RULES = {
    "jobs": {
        "gpu-resources": "gpuResources",
        "job-creators": "jobCreators",
        "pod-security": "podSecurity",
        "priority-classes": "priorityClasses",
        "service-accounts": "serviceAccounts",
        "tokens": "tokens",
    },
    "pods": {"operator-scope": "operatorScope", "pod-ownership": "podOwnership"},
}
ALL = [(policy, file, value) for policy, rules in RULES.items() for file, value in rules.items()]
FOLDERS = sorted(POLICIES_FOLDER.iterdir())
ACCOUNT = "system:serviceaccount:gpujob-system:gpujob-operator"


def policies(values: Mapping[str, Any] | None = None, kind: str = POLICY) -> dict[str, Manifest]:
    """By name; the agent's own policy is another template's."""
    found = of_kind(render(values), kind)
    names = {one["metadata"]["name"].removeprefix("gpujob-"): one for one in found}
    return {name: one for name, one in names.items() if name != "agent-own-node"}


def test_all_are_on_and_deny() -> None:
    found = policies()
    files = {folder.name: {one.stem for one in folder.iterdir()} for folder in FOLDERS}
    assert files == {name: set(rules) for name, rules in RULES.items()}
    assert found.keys() == RULES.keys()
    for name, binding in policies(kind=BINDING).items():
        assert binding["spec"] == {
            "policyName": f"gpujob-{name}",
            "validationActions": ["Deny"],
        }
    assert all(policy["spec"]["failurePolicy"] == "Fail" for policy in found.values())


@pytest.mark.parametrize(("policy", "file", "value"), ALL)
def test_each_rule_has_a_value_that_opens_it(policy: str, file: str, value: str) -> None:
    rule = yaml.safe_load((POLICIES_FOLDER / policy / f"{file}.yaml").read_text())
    whole, left = policies(), policies({"admissionPolicies": {value: False}})
    assert left.keys() == whole.keys()
    for name in whole:
        lost = len(rule["validations"]) if name == policy else 0
        assert (
            len(left[name]["spec"]["validations"]) == len(whole[name]["spec"]["validations"]) - lost
        )


@pytest.mark.parametrize("policy", RULES)
def test_a_policy_without_rules_is_not_installed(policy: str) -> None:
    off = dict.fromkeys(RULES[policy].values(), False)
    for kind in (POLICY, BINDING):
        assert policies({"admissionPolicies": off}, kind).keys() == RULES.keys() - {policy}


@pytest.mark.parametrize("policy", RULES)
def test_no_rule_takes_another_ones_variable(policy: str) -> None:
    names = [one["name"] for one in policies()[policy]["spec"]["variables"]]
    assert len(set(names)) == len(names)


def test_only_what_a_rule_is_about_is_looked_at() -> None:
    pods = policies({"admissionPolicies": {"podOwnership": False}})["pods"]["spec"]
    operations = [one["operations"] for one in pods["matchConstraints"]["resourceRules"]]
    assert operations == [["CREATE", "DELETE"], ["CREATE"], ["CREATE", "UPDATE"], ["CREATE"]]
    jobs, services = policies()["jobs"]["spec"]["matchConstraints"]["resourceRules"]
    assert (jobs["resources"], jobs["operations"]) == (["gpujobs"], ["CREATE"])
    # The template of a service may be edited.
    assert services["resources"] == ["gpuservices"]
    assert services["operations"] == ["CREATE", "UPDATE"]


@pytest.mark.parametrize(("policy", "file", "value"), ALL)
def test_each_rule_says_in_its_policys_condition_where_it_applies(
    policy: str, file: str, value: str
) -> None:
    """A rule that is switched off is no reason to look at an object."""
    rule = yaml.safe_load((POLICIES_FOLDER / policy / f"{file}.yaml").read_text())
    (whole,) = policies()[policy]["spec"]["matchConditions"]
    left = policies({"admissionPolicies": {value: False}})[policy]["spec"]["matchConditions"]
    applies = f"({rule['applies']})".replace("OPERATOR_ACCOUNT", ACCOUNT)
    assert applies in whole["expression"]
    assert applies not in left[0]["expression"]


def test_without_an_operator_there_is_nothing_to_protect() -> None:
    assert policies({"operator": {"enabled": False}}) == {}


def test_the_operators_account_is_the_releases() -> None:
    account = {"operator": {"create": False, "name": "scheduler"}}
    spec = named(render({"serviceAccount": account}), POLICY, "pods")["spec"]
    (allowed,) = [one for one in spec["variables"] if one["name"] == "allowed"]
    assert "system:serviceaccount:gpujob-system:scheduler" in allowed["expression"]


def test_audiences_are_added_to_the_operators() -> None:
    values = {"admissionPolicies": {"tokenAudiences": ["vault", "gpujob"]}}
    spec = named(render(values), POLICY, "jobs")["spec"]
    (audiences,) = [one for one in spec["variables"] if one["name"] == "audiences"]
    assert audiences["expression"] == '["gpujob","vault"]'
    wrong = template({"admissionPolicies": {"tokenAudiences": ["a'b"]}})
    assert wrong.returncode != 0
    assert "tokenAudiences" in wrong.stderr


def test_namespaces_can_be_exempt() -> None:
    values = {"admissionPolicies": {"exemptNamespaces": ["drivers"]}}
    for binding in policies(values, BINDING).values():
        (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert expression == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["drivers"],
        }


@pytest.mark.parametrize("policy", RULES)
def test_the_local_cluster_has_the_same_ones(policy: str) -> None:
    assert policy_spec(POLICIES_FOLDER / policy, ACCOUNT) == policies()[policy]["spec"]
