"""Asks the API server which pod a worker's token belongs to, and caches the answer."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from gpujob_api.settings import TOKEN_AUDIENCE
from gpujob_operator.act.kube import TOKEN_REVIEWS, ApiError, Kube

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_PREFIX = "system:serviceaccount:"
TOKEN_CHARACTERS_MAX = 16 * 1024
VALID_SECONDS = 60.0
INVALID_SECONDS = 10.0
ANSWERS_MAX = 20_000

# namespace, pod name, pod UID
Identity = tuple[str, str, str]


class TokenReviewer:
    """TokenReview with a bounded cache. Its keys are hashes, so no token stays in memory."""

    def __init__(self, kube: Kube, monotonic: Callable[[], float]) -> None:
        self._kube = kube
        self._monotonic = monotonic
        self._answers: OrderedDict[bytes, tuple[float, Identity | None]] = OrderedDict()

    async def review(self, token: str) -> Identity | None:
        """Namespace, name and UID of the token's pod, or None. Raises `ApiError` if the API server
        cannot say.
        """
        if len(token) > TOKEN_CHARACTERS_MAX:
            return None
        # Bytes of a header that are not UTF-8 arrive as surrogates.
        key = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        known = self._answers.get(key)
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        identity = _identity(await self._ask(token))
        seconds = VALID_SECONDS if identity is not None else INVALID_SECONDS
        self._answers[key] = (self._monotonic() + seconds, identity)
        self._answers.move_to_end(key)
        if len(self._answers) > ANSWERS_MAX:
            self._answers.popitem(last=False)
        return identity

    async def _ask(self, token: str) -> dict[str, Any]:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [TOKEN_AUDIENCE]},
        }
        answer = await self._kube.create(TOKEN_REVIEWS, review)
        status = answer.get("status")
        if not isinstance(status, dict):
            raise ApiError(0, "BadAnswer", "TokenReview without status")
        return status


def _identity(status: dict[str, Any]) -> Identity | None:
    if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (
        status.get("audiences") or ()
    ):
        return None
    user = status.get("user") or {}
    extra = user.get("extra") or {}
    names, uids = extra.get(_POD_NAME) or (), extra.get(_POD_UID) or ()
    username = str(user.get("username") or "")
    if len(names) != 1 or len(uids) != 1 or not username.startswith(_PREFIX):
        return None
    namespace = username.removeprefix(_PREFIX).partition(":")[0]
    return namespace, names[0], uids[0]
