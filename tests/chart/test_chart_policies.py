"""The admission policies as values choose them. What they refuse: tests/integration/admission."""

from collections.abc import Mapping
from typing import Any

import pytest

from gpujob_local.cluster.admission import POLICIES_FOLDER, policy_spec
from tests.harness.chart import Manifest, named, of_kind, render, template

pytestmark = pytest.mark.cluster
POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
# File and value.
POLICIES = {
    "job-creators": "jobCreators",
    "operator-scope": "operatorScope",
    "pod-ownership": "podOwnership",
    "pod-security": "podSecurity",
    "priority-classes": "priorityClasses",
    "service-accounts": "serviceAccounts",
    "tokens": "tokens",
}


def of_jobs(values: Mapping[str, Any] | None = None, kind: str = POLICY) -> dict[str, Manifest]:
    """By file; the agent's own policy is another template's."""
    found = of_kind(render(values), kind)
    names = {one["metadata"]["name"].removeprefix("gpujob-"): one for one in found}
    return {name: one for name, one in names.items() if name != "agent-own-node"}


def test_all_are_on_and_deny() -> None:
    assert of_jobs().keys() == POLICIES.keys() == {path.stem for path in POLICIES_FOLDER.iterdir()}
    for name, binding in of_jobs(kind=BINDING).items():
        assert binding["spec"] == {
            "policyName": f"gpujob-{name}",
            "validationActions": ["Deny"],
        }
    assert all(policy["spec"]["failurePolicy"] == "Fail" for policy in of_jobs().values())


@pytest.mark.parametrize(("name", "value"), POLICIES.items())
def test_each_has_a_value_that_opens_it(name: str, value: str) -> None:
    for kind in (POLICY, BINDING):
        left = of_jobs({"admissionPolicies": {value: False}}, kind)
        assert left.keys() == POLICIES.keys() - {name}


def test_without_an_operator_there_is_nothing_to_protect() -> None:
    assert of_jobs({"operator": {"enabled": False}}) == {}


def test_the_operators_account_is_the_releases() -> None:
    account = {"operator": {"create": False, "name": "scheduler"}}
    spec = named(render({"serviceAccount": account}), POLICY, "pod-ownership")["spec"]
    assert "system:serviceaccount:gpujob-system:scheduler" in spec["variables"][0]["expression"]


def test_audiences_are_added_to_the_operators() -> None:
    values = {"admissionPolicies": {"tokenAudiences": ["vault", "gpujob"]}}
    spec = named(render(values), POLICY, "tokens")["spec"]
    assert spec["variables"][0]["expression"] == '["gpujob","vault"]'
    wrong = template({"admissionPolicies": {"tokenAudiences": ["a'b"]}})
    assert wrong.returncode != 0
    assert "tokenAudiences" in wrong.stderr


def test_namespaces_can_be_exempt() -> None:
    values = {"admissionPolicies": {"exemptNamespaces": ["drivers"]}}
    for binding in of_jobs(values, BINDING).values():
        (expression,) = binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
        assert expression == {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["drivers"],
        }


@pytest.mark.parametrize("name", POLICIES)
def test_the_local_cluster_has_the_same_ones(name: str) -> None:
    account = "system:serviceaccount:gpujob-system:gpujob-operator"
    assert policy_spec(POLICIES_FOLDER / f"{name}.yaml", account) == of_jobs()[name]["spec"]
