"""Interruptions without progress: they end, and the waits between them grow."""

from typing import Any

import pytest

from gpujob_api.gpujob import Counters, StopReason
from gpujob_api.report import CheckpointReport
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.lifecycle.retry import FRUITLESS_INTERRUPTIONS_MAX, interrupted
from gpujob_operator.decide.model.configuration import Configuration
from tests.harness.builders import after, make_job, running

CONFIGURATION = Configuration()
INTERRUPTION = Outcome(AttemptEnd.INTERRUPTED)


def test_fruitless_interruptions_end() -> None:
    job = running(make_job(), counters=Counters(fruitless=FRUITLESS_INTERRUPTIONS_MAX))
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
    assert not decision.retry
    assert decision.message == "interrupted 51 times in a row without progress (no checkpoint)"


@pytest.mark.promise("I4")
@pytest.mark.parametrize(
    ("status", "fruitless"),
    [
        ({"checkpoint": CheckpointReport(3)}, 0),
        ({"checkpoint": CheckpointReport(3), "interrupted_at_step": 2}, 0),
        ({"checkpoint": CheckpointReport(3), "interrupted_at_step": 3}, 8),
        ({}, 8),
    ],
    ids=["a first checkpoint", "it grew", "the same as before", "none"],
)
def test_progress_alone_lets_interruptions_go_on(status: dict[str, Any], fruitless: int) -> None:
    """I4: a checkpoint that is there is no progress; the durable step has to grow."""
    job = running(make_job(), counters=Counters(fruitless=7), **status)
    decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
    assert decision.counters.fruitless == fruitless


@pytest.mark.parametrize("reason", ["Preempted", "Reclaimed", "Migrated", "Slowed", "Suspended"])
def test_what_others_or_the_user_interrupt_says_nothing_of_the_job(reason: str) -> None:
    stop = StopReason(reason, "because", after(30))
    job = running(make_job(), stop=stop, counters=Counters(fruitless=7))
    assert interrupted(job, INTERRUPTION, CONFIGURATION, after(60)).counters.fruitless == 7


def test_fruitless_attempts_wait_longer_each_time() -> None:
    """I15: whatever follows the job does not come to every node in an hour."""
    delays: list[float] = []
    for fruitless in (2, 3, 4, 5, FRUITLESS_INTERRUPTIONS_MAX - 1):
        job = running(make_job(), counters=Counters(fruitless=fruitless))
        decision = interrupted(job, INTERRUPTION, CONFIGURATION, after(60))
        assert decision.next_attempt_at is not None
        delays.append((decision.next_attempt_at - after(60)).total_seconds())
    assert delays == [0, 10, 20, 40, CONFIGURATION.retry_backoff_max_seconds]
