"""TokenReview answers are remembered for a while; events are posted once and never in the way."""

import asyncio
from typing import Any

import pytest

from gpujob_operator.act.events import QUEUE_MAX, REPEAT_SECONDS, EventPoster
from gpujob_operator.act.kube import (
    EVENTS,
    TOKEN_REVIEWS,
    Kube,
    Manifest,
    ResourceType,
    Unavailable,
)
from gpujob_operator.act.tokens import INVALID_SECONDS, VALID_SECONDS, TokenReviewer
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.waiting import eventually

GOOD: dict[str, Any] = {
    "authenticated": True,
    "audiences": ["gpujob"],
    "user": {
        "username": "system:serviceaccount:team:default",
        "extra": {
            "authentication.kubernetes.io/pod-name": ["job-1-0"],
            "authentication.kubernetes.io/pod-uid": ["pod-uid"],
        },
    },
}


class _Reviews(FakeKube):
    """Answers every TokenReview with `status`."""

    def __init__(self, status: Any) -> None:
        super().__init__()
        self.status = status
        self.bodies: list[Manifest] = []

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        assert kind is TOKEN_REVIEWS
        self.bodies.append(body)
        if isinstance(self.status, Exception):
            raise self.status
        return {**body, "status": self.status}


def _reviewer(kube: Kube, clock: FakeClock) -> TokenReviewer:
    return TokenReviewer(kube, clock.monotonic)


async def test_the_pod_behind_a_token() -> None:
    kube = _Reviews(GOOD)
    identity = await _reviewer(kube, FakeClock()).review("token")
    assert identity == ("team", "job-1-0", "pod-uid")
    assert kube.bodies[0]["spec"] == {"token": "token", "audiences": ["gpujob"]}


@pytest.mark.parametrize(
    "status",
    [
        {"authenticated": False},
        {**GOOD, "authenticated": "true"},
        {**GOOD, "audiences": ["https://kubernetes.default.svc"]},
        {**GOOD, "audiences": None},
        {**GOOD, "user": {"username": "alice", "extra": GOOD["user"]["extra"]}},
        {**GOOD, "user": {"username": "system:serviceaccount:team:default"}},
        {},
    ],
)
async def test_no_pod_of_ours_behind_it(status: dict[str, Any]) -> None:
    assert await _reviewer(_Reviews(status), FakeClock()).review("token") is None


async def test_answers_are_remembered_for_a_while_and_by_hash() -> None:
    kube, clock = _Reviews(GOOD), FakeClock()
    reviewer = _reviewer(kube, clock)
    for _ in range(3):
        await reviewer.review("secret-token")
    assert len(kube.bodies) == 1
    assert "secret-token" not in repr(reviewer.__dict__)
    clock.advance(VALID_SECONDS + 1)
    await reviewer.review("secret-token")
    assert len(kube.bodies) == 2


async def test_a_refusal_is_remembered_for_a_shorter_while() -> None:
    kube, clock = _Reviews({"authenticated": False}), FakeClock()
    reviewer = _reviewer(kube, clock)
    await reviewer.review("token")
    clock.advance(INVALID_SECONDS + 1)
    kube.status = GOOD
    assert await reviewer.review("token") is not None


async def test_a_monstrous_token_is_not_even_asked_about() -> None:
    kube = _Reviews(GOOD)
    assert await _reviewer(kube, FakeClock()).review("x" * 100_000) is None
    assert kube.bodies == []


async def test_no_answer_is_not_remembered() -> None:
    kube = _Reviews(Unavailable(0, "Timeout", ""))
    reviewer = _reviewer(kube, FakeClock())
    with pytest.raises(Unavailable):
        await reviewer.review("token")
    kube.status = GOOD
    assert await reviewer.review("token") is not None


def _event(reason: str = "Started", name: str = "e") -> Manifest:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "involvedObject": {"uid": "uid-job"},
        "reason": reason,
        "message": "text",
    }


async def test_the_same_event_is_posted_once_in_a_while() -> None:
    kube, clock = FakeKube(), FakeClock()
    poster = EventPoster(kube, clock.monotonic)
    task = asyncio.create_task(poster.run())
    assert poster.post(_event(name="one"))
    assert not poster.post(_event(name="two"))
    assert poster.post(_event("Stopped", name="three"))
    clock.advance(REPEAT_SECONDS + 1)
    assert poster.post(_event(name="four"))
    await eventually(lambda: len(kube.names(EVENTS)) == 3)
    assert kube.names(EVENTS) == ["four", "one", "three"]
    task.cancel()


async def test_an_event_that_cannot_be_posted_is_let_go() -> None:
    kube = FakeKube()
    kube.fail("create", "events")
    poster = EventPoster(kube, FakeClock().monotonic)
    task = asyncio.create_task(poster.run())
    poster.post(_event("First", "one"))
    poster.post(_event("Second", "two"))
    await poster.flush(5)
    assert kube.names(EVENTS) == ["two"]
    task.cancel()


async def test_the_queue_is_bounded_and_flush_gives_up() -> None:
    poster = EventPoster(FakeKube(), FakeClock().monotonic)
    posted = [poster.post(_event(f"Reason{number}")) for number in range(QUEUE_MAX + 5)]
    assert posted.count(True) == QUEUE_MAX
    assert poster.dropped == 5
    await poster.flush(0.01)
