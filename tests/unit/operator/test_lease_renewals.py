"""The Lease is renewed in time, by one request each, whatever an answer takes."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from gpujob_operator.client.api_errors import Unavailable
from gpujob_operator.client.kube import LEASES, REQUEST_SECONDS_MAX, Manifest
from gpujob_operator.leadership.lease import Leadership, LeaseSettings
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import Call, FakeKube

SECONDS = 15.0


class SlowKube(FakeKube):
    """Answers to replacing something take so long, in turn; an answer that takes longer than a
    request may is none."""

    def __init__(self, clock: FakeClock, answers: list[float]) -> None:
        super().__init__()
        self._clock = clock
        self._answers = answers

    async def replace(self, *arguments: Any, **options: Any) -> Manifest:
        seconds = self._answers.pop(0) if self._answers else 0.0
        self._clock.advance(min(seconds, REQUEST_SECONDS_MAX))
        found = await super().replace(*arguments, **options)
        if seconds > REQUEST_SECONDS_MAX:
            raise Unavailable(0, "TimeoutError", "no answer")
        return found


class Enough(Exception):  # noqa: N818
    pass


@dataclass
class Kept:
    """What happened while a process kept the Lease. `led` is asked before and after each pause."""

    pauses: list[float] = field(default_factory=list[float])
    led: list[bool] = field(default_factory=list[bool])
    changes: list[bool] = field(default_factory=list[bool])


async def keep(kube: FakeKube, clock: FakeClock, tries: int) -> Kept:
    kept = Kept()

    async def sleep(seconds: float) -> None:
        kept.pauses.append(seconds)
        kept.led.append(one.leads)
        clock.advance(seconds)
        kept.led.append(one.leads)
        if len(kept.pauses) == tries:
            raise Enough

    one = Leadership(
        kube,
        LeaseSettings("gpujob-system", "one", seconds=SECONDS),
        monotonic=clock.monotonic,
        sleep=sleep,
        changed=kept.changes.append,
    )
    with pytest.raises(Enough):
        await one.keep()
    return kept


async def test_the_lease_is_renewed_five_times_in_its_duration() -> None:
    kept = await keep(FakeKube(), FakeClock(), 5)
    assert kept.pauses == [SECONDS / 5] * 5
    assert all(kept.led)


async def test_a_renewal_is_one_request() -> None:
    kube = FakeKube()
    await keep(kube, FakeClock(), 5)
    assert [call.verb for call in kube.calls] == ["get", "create", *["replace"] * 4]


@pytest.mark.parametrize("answers", [[6.0], [0.0, 6.0, 0.0, 6.0], [3.0] * 8, [4.0] * 8], ids=str)
async def test_slow_answers_do_not_end_leadership(answers: list[float]) -> None:
    """A renewal that hangs once, and an API server that is slow for long."""
    clock = FakeClock()
    kept = await keep(SlowKube(clock, answers), clock, 12)
    assert all(kept.led)
    assert kept.changes == [True]


async def test_an_api_server_that_does_not_answer_ends_it() -> None:
    clock = FakeClock()
    kept = await keep(SlowKube(clock, [0.0] + [6.0] * 9), clock, 4)
    assert not kept.led[-1]
    assert kept.changes == [True, False]


async def test_who_thaws_gives_the_next_holder_the_whole_duration() -> None:
    """It was frozen in a renewal, and somebody else has led for long and renews."""
    clock, kube = FakeClock(), FakeKube()
    one = Leadership(
        kube,
        LeaseSettings("gpujob-system", "one", seconds=SECONDS),
        monotonic=clock.monotonic,
        sleep=clock.sleep,
    )
    assert await one.try_once()
    clock.advance(SECONDS / 5)

    def freeze(call: Call) -> None:
        if call.verb == "replace":
            kube.before = lambda _: None
            clock.advance(24.0)
            lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
            lease["spec"]["holderIdentity"] = "two"
            kube.put(LEASES, lease)

    kube.before = freeze
    assert not await one.try_once()
    for _ in range(int(SECONDS) - 1):
        clock.advance(1.0)
        assert not await one.try_once()
