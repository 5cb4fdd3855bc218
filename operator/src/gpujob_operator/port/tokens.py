"""Asks the API server whom a token belongs to, a worker's pod or a node's agent, and caches the
answer.

Questions are bounded: one per token, a few at once, and few from an address whose tokens were
refused. No client can therefore keep the API server busy through the report port, nor block the
questions about others (`review_turns`).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from cachetools import LRUCache, TLRUCache

from gpujob_api.settings import TOKEN_AUDIENCE
from gpujob_operator.client.api_errors import ApiError
from gpujob_operator.client.kube import TOKEN_REVIEWS, Kube
from gpujob_operator.port.pod_tokens import AgentIdentity, PodIdentity
from gpujob_operator.port.readings import AGENTS_MAX
from gpujob_operator.port.requests import TokenCheckFailed
from gpujob_operator.port.review_turns import ReviewTurns, Standing, TooManyReviews
from gpujob_operator.rate_limit import RateLimit
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

_POD_NAME = "authentication.kubernetes.io/pod-name"
_POD_UID = "authentication.kubernetes.io/pod-uid"
_NODE_NAME = "authentication.kubernetes.io/node-name"
_PREFIX = "system:serviceaccount:"
# A pod that is gone is refused whatever its token proves, so a proven token may be cached for
# longer than a refused one.
VALID_SECONDS = 300.0
INVALID_SECONDS = 10.0
ANSWERS_MAX = 20_000
REVIEWS_AT_ONCE_MAX = 8
REVIEWS_WAITING_MAX = 512
# When a leader begins, a thousand agents connect at once and should be admitted within two seconds,
# which leaves 60 ms per review. Three quarters of these slots are for agents. See `review_turns`.
AGENT_REVIEWS_AT_ONCE_MAX = 48
# Limits for one address: questions at once, refused tokens before it must wait, and the rate after
# that.
REVIEWS_OF_SOURCE_AT_ONCE_MAX = 2
REFUSED_BURST_MAX = 4.0
REFUSED_PER_SECOND_MAX = 0.1
SOURCES_MAX = 4096
# Every worker tries again within seconds, so one log line covers all of them.
SAID_AGAIN_SECONDS = 60.0


class Identity(NamedTuple):
    """A service account, and what its token is bound to. "" for what it is not bound to.

    The token of a pod names the pod and the node to which the pod was bound. A token can also be
    bound to a node alone.
    """

    namespace: str
    account: str
    pod_name: str
    pod_uid: str
    node: str


class TokenReviewer:
    """TokenReview with a bounded cache. Its keys are hashes, so no token stays in memory."""

    def __init__(
        self,
        kube: Kube,
        monotonic: Callable[[], float],
        *,
        at_once_max: int = REVIEWS_AT_ONCE_MAX,
        waiting_max: int = REVIEWS_WAITING_MAX,
    ) -> None:
        self._kube = kube
        self._monotonic = monotonic
        self._answers: TLRUCache[bytes, tuple[Identity | None]] = TLRUCache(
            ANSWERS_MAX, ttu=_believed_until, timer=monotonic
        )
        self._asked: dict[bytes, asyncio.Future[Identity | None]] = {}
        self._turns = ReviewTurns(at_once_max, REVIEWS_OF_SOURCE_AT_ONCE_MAX, waiting_max)
        self._sources: LRUCache[str, _Source] = LRUCache(SOURCES_MAX)
        self._said_at = float("-inf")

    async def review(
        self, token: str, source: str, *, from_its_pod: bool = False
    ) -> Identity | None:
        """Returns the token's identity, or None if the token is not valid.

        `source` is the address that sent the token. `from_its_pod` means that the claimed pod has
        this address. Raises `TooManyReviews` if the bounds forbid the question, and `ApiError` if
        the API server gives no answer.
        """
        # Headers store bytes that are not UTF-8 as halves of surrogate pairs.
        key = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        known = self._answers.get(key)
        if known is not None:
            return known[0]
        asked = self._asked.get(key)
        if asked is None:
            sender = self._source(source)
            if not sender.may_ask(self._monotonic()):
                raise TooManyReviews(sender.too_many)
            standing = sender.standing(from_its_pod=from_its_pod)
            asked = asyncio.ensure_future(self._ask(key, token, sender, standing))
            self._asked[key] = asked
            asked.add_done_callback(lambda done: self._answered(key, done))
        # The first asker may be gone before the answer arrives, but others still wait for it.
        return await asyncio.shield(asked)

    def _answered(self, key: bytes, done: asyncio.Future[Identity | None]) -> None:
        self._asked.pop(key, None)
        if not done.cancelled():
            # Read the exception here too, because every waiting caller may be gone.
            done.exception()

    async def _ask(
        self, key: bytes, token: str, source: "_Source", standing: Standing
    ) -> Identity | None:
        async with self._turns.turn(source.address, standing):
            identity = _identity(await self._status(token))
            if identity is None:
                self._refuse(source)
        self._answers[key] = (identity,)
        return identity

    def _refuse(self, source: "_Source") -> None:
        source.refused(self._monotonic())
        self._turns.refused(source.address)
        if not source.may_ask(self._monotonic()):
            self._turns.drop(source.address, source.too_many)

    async def _status(self, token: str) -> dict[str, Any]:
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [TOKEN_AUDIENCE]},
        }
        try:
            status = (await self._kube.create(TOKEN_REVIEWS, review)).get("status")
            if not isinstance(status, dict):
                raise ApiError(0, "BadAnswer", "TokenReview without status")
        except ApiError as error:
            self._say(error)
            raise
        return status

    def _say(self, error: ApiError) -> None:
        """Logs that no token is accepted meanwhile, which otherwise only the senders
        would notice.
        """
        if self._monotonic() - self._said_at >= SAID_AGAIN_SECONDS:
            self._said_at = self._monotonic()
            log.warning("tokens cannot be checked", error=str(error))

    def _source(self, address: str) -> "_Source":
        return self._sources.setdefault(address, _Source(address, self._monotonic()))


def _believed_until(_: bytes, answer: tuple[Identity | None], now: float) -> float:
    return now + (VALID_SECONDS if answer[0] is not None else INVALID_SECONDS)


class _Source:
    """An address that sends tokens, and how many more of its tokens may be refused."""

    def __init__(self, address: str, now: float) -> None:
        self.address = address
        self.too_many = f"too many tokens from {address} were refused"
        self._refused = RateLimit(now, per_second=REFUSED_PER_SECOND_MAX, burst=REFUSED_BURST_MAX)
        # Stays True as long as the address is remembered, because it may belong to an attacker who
        # waits.
        self._was_refused = False

    def standing(self, *, from_its_pod: bool) -> Standing:
        if self._was_refused:
            return Standing.REFUSED
        return Standing.EXPECTED if from_its_pod else Standing.UNKNOWN

    def may_ask(self, now: float) -> bool:
        return self._refused.seconds_left(now) == 0

    def refused(self, now: float) -> None:
        self._was_refused = True
        self._refused.spend(now)


def _identity(status: dict[str, Any]) -> Identity | None:
    if status.get("authenticated") is not True or TOKEN_AUDIENCE not in (
        status.get("audiences") or ()
    ):
        return None
    user = status.get("user") or {}
    username = str(user.get("username") or "")
    namespace, _, account = username.removeprefix(_PREFIX).partition(":")
    if not username.startswith(_PREFIX):
        return None
    extra = user.get("extra") or {}
    pod_name, pod_uid, node = (_only(extra.get(key)) for key in (_POD_NAME, _POD_UID, _NODE_NAME))
    if not (pod_name and pod_uid) and not node:
        return None
    return Identity(namespace, account, pod_name, pod_uid, node)


def _only(values: list[str] | None) -> str:
    """Returns the value if there is exactly one, else ""."""
    return values[0] if values is not None and len(values) == 1 else ""


class TokenChecks:
    """Reviews tokens of workers and of agents separately.

    All agents ask when a leader begins, and workers must not wait for them.
    """

    def __init__(self, kube: Kube, monotonic: Callable[[], float]) -> None:
        self._of_workers = TokenReviewer(kube, monotonic)
        self._of_agents = TokenReviewer(
            kube, monotonic, at_once_max=AGENT_REVIEWS_AT_ONCE_MAX, waiting_max=AGENTS_MAX
        )

    async def check(self, token: str, source: str, *, from_its_pod: bool) -> PodIdentity | None:
        review = self._of_workers.review(token, source, from_its_pod=from_its_pod)
        one = await _answered(review)
        if one is None or not one.pod_name or not one.pod_uid:
            return None
        return PodIdentity(one.namespace, one.pod_name, one.pod_uid)

    async def check_agent(self, token: str, source: str) -> AgentIdentity | None:
        one = await _answered(self._of_agents.review(token, source))
        if one is None or not one.node:
            return None
        return AgentIdentity(one.namespace, one.account, one.node, one.pod_uid)


async def _answered(review: Awaitable[Identity | None]) -> Identity | None:
    try:
        return await review
    except (ApiError, TooManyReviews) as error:
        raise TokenCheckFailed(str(error)) from error
