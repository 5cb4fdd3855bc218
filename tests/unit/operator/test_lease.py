"""At most one process acts, by monotonic time alone; takeover is bounded; release is at once."""

from gpujob_operator.client.api_errors import Unavailable
from gpujob_operator.client.kube import LEASES
from gpujob_operator.leadership.lease import HOLD_FRACTION
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.lease_candidates import SECONDS, Candidate


def _holder(kube: FakeKube) -> str:
    return kube.stored(LEASES, "gpujob-operator", "gpujob-system")["spec"]["holderIdentity"]


async def test_the_first_takes_it_and_the_second_waits(one: Candidate, two: Candidate) -> None:
    assert await one.attempt()
    assert not await two.attempt()
    assert (one.changes, two.changes) == ([True], [])


async def test_renewal_keeps_it(one: Candidate, two: Candidate, clock: FakeClock) -> None:
    for _ in range(20):
        assert await one.attempt()
        assert not await two.attempt()
        clock.advance(SECONDS / 3)
    assert one.changes == [True]


async def test_a_lease_that_is_older_than_it_was_is_told_once(
    one: Candidate, two: Candidate, kube: FakeKube
) -> None:
    """I9: the API server's data was restored from a backup; leader and standby hear of it."""
    for _ in range(3):
        assert await one.attempt()
        assert not await two.attempt()
    assert (one.restores, two.restores) == (0, 0)
    kube.stored(LEASES, "gpujob-operator", "gpujob-system")["metadata"]["resourceVersion"] = "1"
    for _ in range(3):
        assert not await two.attempt()
        assert await one.attempt()
    assert (one.restores, two.restores) == (1, 1)


async def test_another_lease_of_the_name_is_no_restored_one(one: Candidate, kube: FakeKube) -> None:
    await one.attempt()
    await one.attempt()
    metadata = kube.stored(LEASES, "gpujob-operator", "gpujob-system")["metadata"]
    metadata.update(uid="another", resourceVersion="1")
    await one.attempt()
    assert one.restores == 0


async def test_takeover_after_a_whole_duration_without_renewal(
    one: Candidate, two: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    await one.attempt()
    await two.attempt()
    clock.advance(SECONDS - 0.1)
    assert not await two.attempt()
    clock.advance(0.2)
    assert await two.attempt()
    assert _holder(kube) == "two"
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    assert lease["spec"]["leaseTransitions"] == 1


async def test_the_old_leader_stops_before_another_can_start(
    one: Candidate, two: Candidate, clock: FakeClock
) -> None:
    """Whenever the other takes over, the first has known for a third of the duration."""
    await one.attempt()
    await two.attempt()
    for _ in range(200):
        clock.advance(0.1)
        await two.attempt()
        assert not (one.leads and two.leads)
        if two.leads:
            break
    assert two.leads
    assert not one.leads


async def test_it_stops_by_itself_when_nobody_answers(
    one: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    await one.attempt()
    kube.fail("get", "leases", times=99)
    kube.fail("replace", "leases", times=99)
    clock.advance(SECONDS * HOLD_FRACTION - 0.1)
    assert await one.attempt(), "not knowing is not losing"
    clock.advance(0.2)
    assert not one.leads
    assert not await one.attempt()
    assert one.changes == [True, False]


async def test_a_slow_renewal_counts_from_its_beginning(
    one: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    kube.before = lambda call: clock.advance(4.0) if call.verb == "create" else None
    started = clock.monotonic()
    await one.attempt()
    clock.seconds = started + SECONDS * HOLD_FRACTION + 0.01
    assert not one.leads


async def test_the_loser_of_a_race_does_not_lead(
    one: Candidate, two: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    """Both see an expired Lease; the resourceVersion lets one write through."""
    third = Candidate(kube, clock, "three")
    await third.attempt()
    await one.attempt()
    await two.attempt()
    clock.advance(SECONDS + 1)
    raced = False

    def race(call: object) -> None:
        nonlocal raced
        if getattr(call, "verb", "") == "replace" and not raced:
            raced = True
            lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
            lease["spec"]["holderIdentity"] = "two"
            kube.put(LEASES, lease)

    kube.before = race
    assert not await one.attempt()
    assert _holder(kube) == "two"


async def test_a_lost_answer_to_create_is_found_out(one: Candidate, kube: FakeKube) -> None:
    error = Unavailable(0, "ServerDisconnected", "")
    kube.fail("create", "leases", error, after_effect=True)
    assert not await one.attempt()
    assert await one.attempt()


async def test_release_lets_the_next_one_in_at_once(
    one: Candidate, two: Candidate, kube: FakeKube
) -> None:
    await one.attempt()
    await one.leadership.release()
    assert not one.leads
    assert await two.attempt()
    assert _holder(kube) == "two"


async def test_release_leaves_anothers_lease_alone(
    one: Candidate, two: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    await one.attempt()
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    lease["spec"]["holderIdentity"] = "two"
    await one.leadership.release()
    assert _holder(kube) == "two"


async def test_taking_it_back_is_said_even_if_it_was_never_said_to_be_lost(
    one: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    """Somebody led and released between two of our attempts: the cache may have missed things."""
    await one.attempt()
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    lease["spec"]["holderIdentity"] = ""
    kube.put(LEASES, lease)
    await one.attempt()
    assert one.changes == [True, True]


async def test_leading_again_is_said_even_if_nobody_else_has_led(
    one: Candidate, clock: FakeClock
) -> None:
    """It was frozen: what it was about to write when it thawed was given up."""
    await one.attempt()
    clock.advance(SECONDS * HOLD_FRACTION)
    await one.attempt()
    assert one.changes == [True, True]


# -- what is left for the next holder


def _left(kube: FakeKube) -> str:
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    return lease["metadata"]["annotations"]["known"]


async def test_the_next_holder_inherits_what_the_last_renewal_said(
    one: Candidate, two: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    await one.attempt()
    assert (one.inherited, _left(kube)) == ([""], "one")
    one.knows = "more"
    await one.attempt()
    await two.attempt()
    assert two.inherited == []
    clock.advance(SECONDS + 0.1)
    await two.attempt()
    assert (one.inherited, two.inherited, _left(kube)) == ([""], ["more"], "two")


async def test_what_was_left_survives_giving_the_lease_back(
    one: Candidate, two: Candidate, kube: FakeKube
) -> None:
    await one.attempt()
    await one.leadership.release()
    await two.attempt()
    assert two.inherited == ["one"]


async def test_a_holder_of_the_same_name_inherits_from_itself_once(
    one: Candidate, clock: FakeClock, kube: FakeKube
) -> None:
    """The same pod, started again before its Lease ran out."""
    await one.attempt()
    again = Candidate(kube, clock, "one")
    await again.attempt()
    await again.attempt()
    assert again.inherited == ["one"]


async def test_annotations_of_others_stay(one: Candidate, kube: FakeKube) -> None:
    await one.attempt()
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    lease["metadata"]["annotations"]["theirs"] = "kept"
    await kube.replace(LEASES, "gpujob-operator", lease, "gpujob-system")
    await one.attempt()
    lease = kube.stored(LEASES, "gpujob-operator", "gpujob-system")
    assert lease["metadata"]["annotations"] == {"theirs": "kept", "known": "one"}
