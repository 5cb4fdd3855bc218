"""Installs the chart's admission policies as the chart does with its own values."""

from pathlib import Path

import yaml

from gpujob_local.control_plane.api_client import ApiClient, Json
from gpujob_local.control_plane.manifests import REPOSITORY

POLICIES_FOLDER = REPOSITORY / "charts" / "gpujob" / "files" / "policies"
TOKEN_AUDIENCES = ("gpujob",)

_GROUP = "admissionregistration.k8s.io/v1"


def install_policies(client: ApiClient, operator_account: str) -> list[str]:
    """Applies every policy and its binding, and returns their names.

    `operator_account` is a user name. The API server enforces a policy about a second later.
    """
    names: list[str] = []
    for folder in sorted(POLICIES_FOLDER.iterdir()):
        name = f"gpujob-{folder.name}"
        _apply(client, "ValidatingAdmissionPolicy", name, policy_spec(folder, operator_account))
        bound = {"policyName": name, "validationActions": ["Deny"]}
        _apply(client, "ValidatingAdmissionPolicyBinding", name, bound)
        names.append(name)
    return names


def policy_spec(folder: Path, operator_account: str) -> Json:
    """Returns the rules in the files of this folder as one policy, with the installation's values
    filled in.
    """
    parts = [_part(path, operator_account) for path in sorted(folder.glob("*.yaml"))]
    rules: list[Json] = []
    for part in parts:
        rules += [one for one in part["matchConstraints"]["resourceRules"] if one not in rules]
    applies = " || ".join(f"({part['applies']})" for part in parts)
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": [{"name": "a-rule-applies", "expression": applies}],
        "variables": [one for part in parts for one in part.get("variables", ())],
        "validations": [one for part in parts for one in part["validations"]],
    }


def _part(path: Path, operator_account: str) -> Json:
    audiences = "[" + ", ".join(f'"{audience}"' for audience in TOKEN_AUDIENCES) + "]"
    text = path.read_text().replace("OPERATOR_ACCOUNT", operator_account)
    return yaml.safe_load(text.replace("TOKEN_AUDIENCES", f"'{audiences}'"))


def _apply(client: ApiClient, kind: str, name: str, spec: Json) -> None:
    plural = {
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }[kind]
    body = {"apiVersion": _GROUP, "kind": kind, "metadata": {"name": name}, "spec": spec}
    client.apply(f"/apis/{_GROUP}/{plural}/{name}", body)
