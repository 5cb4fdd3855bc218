"""Service account tokens, in the form that the API server issues; nothing is signed."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from gpujob_api.settings import TOKEN_AUDIENCE

NEVER_SECONDS = 4_000_000_000


def pod_token(
    namespace: str,
    name: str,
    uid: str,
    *,
    signature: str = "true",
    audience: Any = (TOKEN_AUDIENCE,),
    expires: Any = NEVER_SECONDS,
) -> str:
    """What stands for the signature is the last part: a fake reviewer judges by it."""
    bound = {"namespace": namespace, "pod": {"name": name, "uid": uid}}
    return token_of({"aud": audience, "exp": expires, "kubernetes.io": bound}, signature)


def agent_token(
    node: str,
    *,
    namespace: str = "gpujob-system",
    account: str = "gpujob-agent",
    pod_uid: str = "",
    signature: str = "true",
    audience: Any = (TOKEN_AUDIENCE,),
    expires: Any = NEVER_SECONDS,
) -> str:
    """Of an agent's pod on the node; without a UID bound to the node alone."""
    bound: dict[str, Any] = {
        "namespace": namespace,
        "node": {"name": node},
        "serviceaccount": {"name": account},
    }
    if pod_uid:
        bound["pod"] = {"name": f"agent-{node}", "uid": pod_uid}
    return token_of({"aud": audience, "exp": expires, "kubernetes.io": bound}, signature)


def token_of(claims: Any, signature: str = "true") -> str:
    return ".".join([_part({"alg": "RS256"}), _part(claims), signature])


def claims_of(token: str) -> Mapping[str, Any]:
    payload = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


def reviewed(token: str) -> dict[str, Any]:
    """What a TokenReview says: only tokens whose signature is `true` are real."""
    if token.count(".") != 2 or not token.endswith(".true"):
        return {"authenticated": False}
    bound = claims_of(token)["kubernetes.io"]
    parts = {
        "pod-name": bound.get("pod", {}).get("name"),
        "pod-uid": bound.get("pod", {}).get("uid"),
        "node-name": bound.get("node", {}).get("name"),
    }
    extra = {f"authentication.kubernetes.io/{name}": [one] for name, one in parts.items() if one}
    account = bound.get("serviceaccount", {}).get("name", "default")
    user = {"username": f"system:serviceaccount:{bound['namespace']}:{account}", "extra": extra}
    return {"authenticated": True, "audiences": [TOKEN_AUDIENCE], "user": user}


def _part(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).decode().rstrip("=")
