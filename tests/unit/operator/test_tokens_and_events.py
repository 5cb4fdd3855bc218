"""TokenReview answers are remembered for a while; events are posted once and never in the way."""

import asyncio
from typing import Any

import pytest

from gpujob_operator.act.events import QUEUE_MAX, REPEAT_SECONDS, EventPoster
from gpujob_operator.client.api_errors import Forbidden, Throttled, Unavailable
from gpujob_operator.client.kube import EVENTS, TOKEN_REVIEWS, Kube, Manifest, ResourceType
from gpujob_operator.port.review_turns import TooManyReviews
from gpujob_operator.port.tokens import (
    INVALID_SECONDS,
    REFUSED_BURST_MAX,
    REFUSED_PER_SECOND_MAX,
    REVIEWS_AT_ONCE_MAX,
    REVIEWS_OF_SOURCE_AT_ONCE_MAX,
    REVIEWS_WAITING_MAX,
    SAID_AGAIN_SECONDS,
    SOURCES_MAX,
    VALID_SECONDS,
    TokenReviewer,
)
from gpujob_operator.telemetry.logs import JsonFormatter
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.waiting import eventually

SOURCE = "10.0.0.1"
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


class _SlowReviews(_Reviews):
    """Answers when `open` is set."""

    def __init__(self, status: Any) -> None:
        super().__init__(status)
        self.open = asyncio.Event()

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        answer = await super().create(kind, body, namespace)
        await self.open.wait()
        return answer


def _reviewer(kube: Kube, clock: FakeClock) -> TokenReviewer:
    return TokenReviewer(kube, clock.monotonic)


async def test_the_pod_behind_a_token() -> None:
    kube = _Reviews(GOOD)
    identity = await _reviewer(kube, FakeClock()).review("token", SOURCE)
    assert identity == ("team", "default", "job-1-0", "pod-uid", "")
    assert kube.bodies[0]["spec"] == {"token": "token", "audiences": ["gpujob"]}


async def test_the_node_behind_a_token() -> None:
    """A pod's token names its node, too; a token may be bound to a node alone."""
    node = {"authentication.kubernetes.io/node-name": ["n0"]}
    for extra, pod in ((GOOD["user"]["extra"], ("job-1-0", "pod-uid")), ({}, ("", ""))):
        user = {**GOOD["user"], "extra": {**extra, **node}}
        reviewer = _reviewer(_Reviews({**GOOD, "user": user}), FakeClock())
        assert await reviewer.review("token", SOURCE) == ("team", "default", *pod, "n0")


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
    assert await _reviewer(_Reviews(status), FakeClock()).review("token", SOURCE) is None


async def test_answers_are_remembered_for_a_while_and_by_hash() -> None:
    kube, clock = _Reviews(GOOD), FakeClock()
    reviewer = _reviewer(kube, clock)
    for _ in range(3):
        await reviewer.review("secret-token", SOURCE)
    assert len(kube.bodies) == 1
    assert "secret-token" not in repr(reviewer.__dict__)
    clock.advance(VALID_SECONDS + 1)
    await reviewer.review("secret-token", SOURCE)
    assert len(kube.bodies) == 2


async def test_a_refusal_is_remembered_for_a_shorter_while() -> None:
    kube, clock = _Reviews({"authenticated": False}), FakeClock()
    reviewer = _reviewer(kube, clock)
    await reviewer.review("token", SOURCE)
    clock.advance(INVALID_SECONDS + 1)
    kube.status = GOOD
    assert await reviewer.review("token", SOURCE) is not None


async def test_no_answer_is_not_remembered() -> None:
    kube = _Reviews(Unavailable(0, "Timeout", ""))
    reviewer = _reviewer(kube, FakeClock())
    with pytest.raises(Unavailable):
        await reviewer.review("token", SOURCE)
    kube.status = GOOD
    assert await reviewer.review("token", SOURCE) is not None


async def test_that_no_token_can_be_checked_is_said_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operator that lacks the right takes no report, and its log says why."""
    words = "cannot create resource tokenreviews"
    kube, clock = _Reviews(Forbidden(403, "Forbidden", words)), FakeClock()
    reviewer = _reviewer(kube, clock)

    async def ask(number: int) -> None:
        with pytest.raises(Forbidden):
            await reviewer.review(f"token-{number}", SOURCE)

    for number in range(5):
        await ask(number)
    (line,) = caplog.records
    assert words in JsonFormatter().format(line)
    clock.advance(SAID_AGAIN_SECONDS)
    await ask(5)
    assert len(caplog.records) == 2


async def test_one_question_for_everybody_who_asks_the_same() -> None:
    kube = _SlowReviews(GOOD)
    reviewer = _reviewer(kube, FakeClock())
    asked = [asyncio.ensure_future(reviewer.review("token", SOURCE)) for _ in range(5)]
    await eventually(lambda: len(kube.bodies) == 1)
    asked[0].cancel()
    kube.open.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [("team", "default", "job-1-0", "pod-uid", "")] * 4
    assert len(kube.bodies) == 1


async def test_few_questions_at_once_and_a_bounded_number_waits() -> None:
    """Three quarters of either are for addresses of which nothing is known."""
    kube = _SlowReviews(GOOD)
    reviewer = _reviewer(kube, FakeClock())
    at_once, waiting = REVIEWS_AT_ONCE_MAX * 3 // 4, REVIEWS_WAITING_MAX * 3 // 4
    asked = [
        asyncio.ensure_future(reviewer.review(f"token-{n}", f"10.0.0.{n}")) for n in range(waiting)
    ]
    await eventually(lambda: len(kube.bodies) == at_once)
    asked += [
        asyncio.ensure_future(reviewer.review(f"more-{n}", f"10.0.1.{n}")) for n in range(at_once)
    ]
    await eventually(lambda: len(reviewer.__dict__["_asked"]) == at_once + waiting)
    with pytest.raises(TooManyReviews, match=str(waiting)):
        await reviewer.review("one-more", "10.9.9.9")
    assert len(kube.bodies) == at_once
    kube.open.set()
    assert None not in await asyncio.gather(*asked)
    assert await reviewer.review("one-more", "10.9.9.9") is not None


async def test_one_address_does_not_take_all_the_questions() -> None:
    kube = _SlowReviews({"authenticated": False})
    reviewer = _reviewer(kube, FakeClock())
    flood = [asyncio.ensure_future(reviewer.review(f"forged-{n}", SOURCE)) for n in range(100)]
    await eventually(lambda: len(kube.bodies) == REVIEWS_OF_SOURCE_AT_ONCE_MAX)
    other = asyncio.ensure_future(reviewer.review("true", "10.0.0.2"))
    await eventually(lambda: len(kube.bodies) == REVIEWS_OF_SOURCE_AT_ONCE_MAX + 1)
    kube.open.set()
    await other
    refused = await asyncio.gather(*flood, return_exceptions=True)
    assert sum(isinstance(one, TooManyReviews) for one in refused) >= 95
    assert len(kube.bodies) <= REFUSED_BURST_MAX + REVIEWS_OF_SOURCE_AT_ONCE_MAX + 1


async def test_an_address_whose_tokens_are_refused_is_asked_about_seldom() -> None:
    kube, clock = _Reviews({"authenticated": False}), FakeClock()
    reviewer = _reviewer(kube, clock)
    for number in range(int(REFUSED_BURST_MAX)):
        assert await reviewer.review(f"forged-{number}", SOURCE) is None
    with pytest.raises(TooManyReviews, match=SOURCE):
        await reviewer.review("forged-again", SOURCE)
    assert len(kube.bodies) == REFUSED_BURST_MAX
    kube.status = GOOD
    assert await reviewer.review("true", "10.0.0.2") is not None, "another address"
    clock.advance(1 / REFUSED_PER_SECOND_MAX)
    assert await reviewer.review("true too", SOURCE) is not None, "time heals"


async def test_an_address_of_many_workers_is_asked_about_as_often_as_need_be() -> None:
    kube = _Reviews(GOOD)
    reviewer = _reviewer(kube, FakeClock())
    for number in range(10 * int(REFUSED_BURST_MAX)):
        assert await reviewer.review(f"true-{number}", SOURCE) is not None
    kube.status = Unavailable(0, "Timeout", "")
    for number in range(10 * int(REFUSED_BURST_MAX)):
        with pytest.raises(Unavailable):
            await reviewer.review(f"unanswered-{number}", SOURCE)


async def test_addresses_are_forgotten_in_time() -> None:
    reviewer = _reviewer(_Reviews({"authenticated": False}), FakeClock())
    for number in range(SOURCES_MAX + 10):
        await reviewer.review("forged", f"address-{number}")
        await reviewer.review(f"forged-{number}", f"address-{number}")
    assert len(reviewer.__dict__["_sources"]) == SOURCES_MAX


def _event(reason: str = "Started", name: str = "e") -> Manifest:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "involvedObject": {"uid": "uid-job"},
        "reason": reason,
        "message": "text",
    }


async def test_the_same_event_is_posted_once_in_a_while() -> None:
    kube, clock = FakeKube(), FakeClock()
    poster = EventPoster(kube, Metrics(), clock.monotonic)
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
    poster = EventPoster(kube, Metrics(), FakeClock().monotonic)
    task = asyncio.create_task(poster.run())
    poster.post(_event("First", "one"))
    poster.post(_event("Second", "two"))
    await poster.flush(5)
    assert kube.names(EVENTS) == ["two"]
    task.cancel()


async def test_an_event_that_was_not_stored_may_come_again() -> None:
    """And where the API server asks to slow down, the ones after it wait."""
    kube, clock, metrics = FakeKube(), FakeClock(), Metrics()
    kube.fail("create", "events", Throttled("slow down", 7.0))
    poster = EventPoster(kube, metrics, clock.monotonic, sleep=clock.sleep)
    task = asyncio.create_task(poster.run())
    assert poster.post(_event(name="one"))
    await poster.flush(5)
    assert clock.slept == [7.0]
    assert poster.post(_event(name="two"))
    await poster.flush(5)
    assert kube.names(EVENTS) == ["two"]
    lost = metrics.registry.get_sample_value("gpujob_events_lost_total", {"reason": "not_posted"})
    assert lost == 1
    task.cancel()


async def test_the_queue_is_bounded_and_flush_gives_up() -> None:
    metrics = Metrics()
    poster = EventPoster(FakeKube(), metrics, FakeClock().monotonic)
    posted = [poster.post(_event(f"Reason{number}")) for number in range(QUEUE_MAX + 5)]
    assert posted.count(True) == QUEUE_MAX
    lost = metrics.registry.get_sample_value("gpujob_events_lost_total", {"reason": "queue_full"})
    assert lost == 5
    await poster.flush(0.01)
