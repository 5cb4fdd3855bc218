"""Answers the token checks of the report port by TokenReview."""

from collections.abc import Callable

from gpujob_operator.act.kube import ApiError, Kube
from gpujob_operator.act.tokens import Identity, TokenReviewer, TooManyReviews
from gpujob_operator.observe.pod_tokens import AgentIdentity, PodIdentity
from gpujob_operator.observe.port import TokenCheckFailed
from gpujob_operator.observe.readings import AGENTS_MAX


class TokenChecks:
    """Agents have questions of their own: all of them come when a leader begins, and those of
    workers are not to wait for them."""

    def __init__(self, kube: Kube, monotonic: Callable[[], float]) -> None:
        self._of_workers = TokenReviewer(kube, monotonic)
        self._of_agents = TokenReviewer(kube, monotonic, waiting_max=AGENTS_MAX)

    async def check(self, token: str, source: str) -> PodIdentity | None:
        one = await _reviewed(self._of_workers, token, source)
        if one is None or not one.pod_name or not one.pod_uid:
            return None
        return PodIdentity(one.namespace, one.pod_name, one.pod_uid)

    async def check_agent(self, token: str, source: str) -> AgentIdentity | None:
        one = await _reviewed(self._of_agents, token, source)
        if one is None or not one.node:
            return None
        return AgentIdentity(one.namespace, one.account, one.node, one.pod_uid)


async def _reviewed(reviewer: TokenReviewer, token: str, source: str) -> Identity | None:
    try:
        return await reviewer.review(token, source)
    except (ApiError, TooManyReviews) as error:
        raise TokenCheckFailed(str(error)) from error
