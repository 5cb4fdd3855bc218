"""Of which ends of workers the present leader can know, as the recorder counts them."""

from tests.harness.worker_ends import (
    RENEWALS_UNTIL_LISTED,
    RENEWALS_UNTIL_LISTED_AGAIN,
    WorkerEnds,
)

ATTEMPT = "uid-job", 1


def led_by(holder: str, renewals: int = RENEWALS_UNTIL_LISTED) -> WorkerEnds:
    ends = WorkerEnds()
    for _ in range(renewals + 1):
        renew(ends, holder)
    return ends


def renew(ends: WorkerEnds, holder: str, times: int = 1) -> None:
    for _ in range(times):
        ends.fold_lease({"spec": {"holderIdentity": holder}})


def ends_and_goes(ends: WorkerEnds) -> None:
    ends.done(ATTEMPT, 0)
    ends.gone(ATTEMPT, 0)


def test_a_leader_that_has_listed_the_pods_knows_of_an_end() -> None:
    ends = led_by("one")
    ends_and_goes(ends)
    assert (ends.count(ATTEMPT), ends.known(ATTEMPT)) == (1, 1)
    renew(ends, "two")
    assert ends.known(ATTEMPT) == 0


def test_a_leader_that_has_not_listed_them_does_not() -> None:
    ends = led_by("one", RENEWALS_UNTIL_LISTED - 1)
    ends_and_goes(ends)
    assert ends.known(ATTEMPT) == 0


def test_a_pod_that_is_still_there_tells_whoever_leads() -> None:
    ends = led_by("one", 0)
    ends.done(ATTEMPT, 0)
    renew(ends, "two")
    assert ends.known(ATTEMPT) == 1


def test_what_goes_while_the_watches_are_cut_is_not_known() -> None:
    """A watch that failed several times pauses beyond a few renewals of the Lease."""
    ends = led_by("one")
    ends.watches_cut()
    renew(ends, "one", RENEWALS_UNTIL_LISTED_AGAIN - 1)
    ends_and_goes(ends)
    assert ends.known(ATTEMPT) == 0


def test_what_goes_once_they_have_listed_again_is_known() -> None:
    ends = led_by("one")
    ends.watches_cut()
    renew(ends, "one", RENEWALS_UNTIL_LISTED_AGAIN)
    ends_and_goes(ends)
    assert ends.known(ATTEMPT) == 1


def test_exit_0_of_a_worker_that_was_asked_to_end_proves_nothing() -> None:
    ends = led_by("one")
    ends.done(ATTEMPT, 0, asked=True)
    assert (ends.count(ATTEMPT), ends.known(ATTEMPT)) == (1, 0)
    ends.done(ATTEMPT, 1)
    ends.done(ATTEMPT, 1, asked=True)
    assert ends.known(ATTEMPT) == 1, "it was done when that was seen first"


def test_a_leader_that_stood_still_cannot_tell_an_end_from_one_after_an_eviction() -> None:
    ends = led_by("one")
    ends.done(ATTEMPT, 0)
    ends.asked_later(ATTEMPT, 1)
    assert ends.known(ATTEMPT) == 1
    ends.asked_later(ATTEMPT, 0)
    assert (ends.count(ATTEMPT), ends.known(ATTEMPT)) == (1, 0)
