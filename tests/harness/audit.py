"""The API server's audit log against the rules that we ship (I12)."""

import json
from collections.abc import Iterator
from contextlib import suppress
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
    return [_request(one) for one in _entries(log.read_text()) if one["user"]["username"] == user]


class AuditTrail:
    """What the API server denied to our parts, of all that it was asked since one last looked."""

    def __init__(self, log: Path, namespace: str = "gpujob-system") -> None:
        self._log = log
        self._users = f"system:serviceaccount:{namespace}:"
        self._read_bytes = 0

    def denied(self) -> list[str]:
        """User, verb and address of each request that no role allows."""
        return [
            f"{one['user']['username']} {one['verb']} {one['requestURI']}"
            for one in _entries(self._new_lines())
            if one["user"]["username"].startswith(self._users)
            and one.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
        ]

    def forget(self) -> None:
        """What was denied until now was to be expected."""
        self._new_lines()

    def _new_lines(self) -> str:
        if self._log.stat().st_size < self._read_bytes:
            # The API server began a new file.
            self._read_bytes = 0
        with self._log.open("rb") as file:
            file.seek(self._read_bytes)
            data = file.read()
        # The last line may be under way.
        whole = data[: data.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        return whole.decode()


def _entries(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with suppress(ValueError):
            yield json.loads(line)


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
