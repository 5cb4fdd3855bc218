"""Reads what a pod's service account token claims, without proof.

Only the API server can prove a token (TokenReview). The claims suffice to refuse most bad tokens
without a review: a token that is malformed, for another audience, long expired, or of a pod that is
not a worker. The issuer is not compared, because a cluster has several while its issuer changes.
"""

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpujob_api.json_values import FieldError, parse_json
from gpujob_api.settings import TOKEN_AUDIENCE
from gpujob_operator.read.shapes import mapping, text

TOKEN_CHARACTERS_MAX = 16 * 1024
# The API server uses its own clock. A token is refused here only if no clock that is roughly right
# would accept it.
CLOCK_ERROR_SECONDS_MAX = 3600.0


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """The pod that a token was issued for."""

    namespace: str
    pod_name: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The service account and the node that a token was issued for, and the pod's UID.

    The UID is "" if the token is bound to the node alone.
    """

    namespace: str
    account: str
    node: str
    pod_uid: str


def claimed_identity(token: str, now_seconds: float) -> PodIdentity | None:
    """Returns the pod that the token claims, or None if no API server would accept the token for
    us.

    `now_seconds` is a Unix time. The claims are those of bound service account tokens: `aud`,
    `exp`, and `kubernetes.io` with `namespace` and `pod`.
    """
    bound = _bound(token, now_seconds)
    pod = mapping(bound.get("pod"))
    identity = PodIdentity(
        text(bound.get("namespace")), text(pod.get("name")), text(pod.get("uid"))
    )
    return identity if identity.namespace and identity.pod_name and identity.pod_uid else None


def claimed_agent(token: str, now_seconds: float) -> AgentIdentity | None:
    """Returns the account and the node that the token claims.

    Returns None if no API server would accept the token for us. The claims also need `node` and
    `serviceaccount` (Kubernetes 1.30 or newer).
    """
    bound = _bound(token, now_seconds)
    identity = AgentIdentity(
        text(bound.get("namespace")),
        text(mapping(bound.get("serviceaccount")).get("name")),
        text(mapping(bound.get("node")).get("name")),
        text(mapping(bound.get("pod")).get("uid")),
    )
    return identity if identity.namespace and identity.account and identity.node else None


def _bound(token: str, now_seconds: float) -> Mapping[str, Any]:
    """Returns what the token is bound to. Empty if no API server would accept the token for us."""
    claims = _claims(token)
    if TOKEN_AUDIENCE not in _audiences(claims.get("aud")):
        return {}
    if _seconds(claims.get("exp")) + CLOCK_ERROR_SECONDS_MAX < now_seconds:
        return {}
    return mapping(claims.get("kubernetes.io"))


def _claims(token: str) -> Mapping[str, Any]:
    """Returns the second of the three parts of a JSON Web Token (RFC 7519). Empty for
    other text.
    """
    parts = token.split(".") if len(token) <= TOKEN_CHARACTERS_MAX and token.isascii() else []
    if len(parts) != 3 or not all(parts):
        return {}
    padding = "=" * (-len(parts[1]) % 4)
    try:
        return mapping(parse_json(base64.b64decode(parts[1] + padding, b"-_", validate=True)))
    except (binascii.Error, FieldError):
        return {}


def _audiences(value: object) -> list[object]:
    """Returns one audience or a list of audiences as a list."""
    return list[object](value) if isinstance(value, list) else [value]


def _seconds(value: object) -> float:
    """Returns a Unix time in seconds, or 0 for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    try:
        return float(value) if math.isfinite(value) else 0.0
    except OverflowError:
        return 0.0
