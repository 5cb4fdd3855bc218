"""The API server's audit log against the rules that we ship (I12)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.harness.repository import ROOT

RULES_FOLDER = ROOT / "charts" / "gpujob" / "files"
# Group, resource with its subresource, verb.
Right = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """One answered request of an account of ours; `right` None is one for no resource."""

    right: Right | None
    uri: str
    code: int


def read_audit(log: Path, account: str, namespace: str = "gpujob-system") -> list[Request]:
    """All requests of a service account. The last line may be under way."""
    user = f"system:serviceaccount:{namespace}:{account}"
    found: list[Request] = []
    for line in log.read_text().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry["user"]["username"] == user:
            found.append(_request(entry))
    return found


def granted(account: str) -> set[Right]:
    """What the rules of `operator` or `agent` allow."""
    rules = yaml.safe_load((RULES_FOLDER / f"{account}-rules.yaml").read_text())
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def refused(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.code == 403]


def used(requests: list[Request]) -> set[Right]:
    return {request.right for request in requests if request.right is not None}


def _request(entry: dict[str, Any]) -> Request:
    reference = entry.get("objectRef")
    right = None
    if reference is not None and "resource" in reference:
        parts = (reference["resource"], reference.get("subresource"))
        resource = "/".join(part for part in parts if part)
        right = (reference.get("apiGroup", ""), resource, entry["verb"])
    code = (entry.get("responseStatus") or {}).get("code", 0)
    return Request(right, entry["requestURI"], code)
