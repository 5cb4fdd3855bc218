"""Whether what the last holder of the Lease sent may still arrive."""

import asyncio
from contextlib import suppress

import pytest

from gpujob_operator.client.api_errors import Unavailable
from gpujob_operator.client.kube import LEASES
from gpujob_operator.decide.planner import plan
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.leadership.lease import RENEWAL_FRACTION
from gpujob_operator.options import parse_arguments, run_options
from gpujob_operator.run import Operator
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.lease_candidates import SECONDS, Candidate


async def test_who_creates_the_lease_has_no_doubt(one: Candidate) -> None:
    await one.attempt()
    assert not one.leadership.in_doubt


async def test_who_takes_a_released_lease_has_no_doubt(
    one: Candidate, two: Candidate, clock: FakeClock
) -> None:
    await one.attempt()
    await one.leadership.release()
    for _ in range(3):
        await two.attempt()
        assert two.leads
        assert not two.leadership.in_doubt
        clock.advance(SECONDS / 3)


async def test_who_takes_a_lease_that_was_released_in_doubt_is_in_doubt_a_second_later(
    one: Candidate, two: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    await one.attempt()
    await one.leadership.release(in_doubt=True)
    assert not one.leads
    assert not await two.attempt()
    clock.advance(0.9)
    assert not await two.attempt()
    clock.advance(0.1)
    assert await two.attempt()
    assert two.leadership.in_doubt
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    assert lease["spec"]["leaseDurationSeconds"] == SECONDS


async def test_whoever_waits_tries_again_when_the_lease_ends(
    one: Candidate, two: Candidate, clock: FakeClock
) -> None:
    """And not only five times in the duration of its own."""
    await one.attempt()
    await one.leadership.release(in_doubt=True)
    began = clock.monotonic()

    async def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if two.leads:
            raise asyncio.CancelledError

    two.leadership._sleep = sleep
    with suppress(asyncio.CancelledError):
        await two.leadership.keep()
    led_after = clock.monotonic() - SECONDS * RENEWAL_FRACTION - began
    assert led_after == pytest.approx(1.0, abs=0.1)


async def test_who_takes_an_expired_lease_is_in_doubt_as_long_as_it_leads(
    one: Candidate, two: Candidate, clock: FakeClock
) -> None:
    await one.attempt()
    await two.attempt()
    assert not two.leadership.in_doubt, "it does not lead"
    clock.advance(SECONDS + 0.1)
    for _ in range(3):
        await two.attempt()
        assert two.leads
        assert two.leadership.in_doubt
        clock.advance(SECONDS / 3)


async def test_who_finds_its_own_name_when_it_starts_is_in_doubt(
    one: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    """The same pod, started again: what its last process sent may still arrive."""
    await one.attempt()
    again = Candidate(kube, clock, "one")
    await again.attempt()
    assert again.leads
    assert again.leadership.in_doubt
    await again.attempt()
    assert again.leadership.in_doubt


async def test_who_has_not_led_for_a_while_is_in_doubt_of_itself(
    one: Candidate, clock: FakeClock
) -> None:
    """Nobody else led, but it stopped in the middle of what it did."""
    await one.attempt()
    clock.advance(SECONDS)
    assert not one.leads
    await one.attempt()
    assert one.leads
    assert one.leadership.in_doubt


async def test_doubt_ends_with_the_next_term(
    one: Candidate, two: Candidate, clock: FakeClock
) -> None:
    await one.attempt()
    await two.attempt()
    clock.advance(SECONDS + 0.1)
    await two.attempt()
    assert two.leadership.in_doubt
    await two.leadership.release()
    await one.attempt()
    await one.leadership.release()
    await two.attempt()
    assert two.leads
    assert not two.leadership.in_doubt


async def test_a_lost_answer_to_create_leaves_a_doubt(one: Candidate, kube: FakeKube) -> None:
    error = Unavailable(0, "ServerDisconnected", "")
    kube.fail("create", "leases", error, after_effect=True)
    await one.attempt()
    await one.attempt()
    assert one.leads
    assert one.leadership.in_doubt, "it cannot tell its own Lease from that of a process before it"


@pytest.mark.parametrize(("in_doubt", "holder"), [(False, ""), (True, "me")])
async def test_a_stopped_operator_hands_its_doubt_over(
    kube: FakeKube, in_doubt: bool, holder: str
) -> None:
    """As `run.py` does it: a pending job that another process may have placed is doubted on."""
    operator = Operator(run_options(parse_arguments(["run"]), "me"), plan, plan_services)
    leadership = operator._leadership(kube)
    assert await leadership.try_once()
    if in_doubt:
        operator._cache.placements.withdraw("uid", in_doubt=True)
    await operator._hand_over(leadership)
    (lease,) = (await kube.list(LEASES)).items
    spec = lease["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (holder, 1)
