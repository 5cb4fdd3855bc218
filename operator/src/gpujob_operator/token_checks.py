"""Answers the token checks of the report port by TokenReview."""

from collections.abc import Awaitable, Callable

from gpujob_operator.act.kube import ApiError, Kube
from gpujob_operator.act.review_turns import TooManyReviews
from gpujob_operator.act.tokens import Identity, TokenReviewer
from gpujob_operator.observe.pod_tokens import AgentIdentity, PodIdentity
from gpujob_operator.observe.port import TokenCheckFailed
from gpujob_operator.observe.readings import AGENTS_MAX

# When a leader begins, a thousand agents connect at once and are to be heard within two seconds,
# which leaves 60 ms for a review. Three quarters of it are theirs; see `review_turns`.
AGENT_REVIEWS_AT_ONCE_MAX = 48


class TokenChecks:
    """Agents have questions of their own: all of them come when a leader begins, and those of
    workers are not to wait for them."""

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
