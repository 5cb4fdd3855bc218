"""How often checkpoints are written, and what becomes of one under way at a stop."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.checkpoint.interval import (
    CheckpointCost,
    StopPlan,
    interval_seconds,
    plan_stop,
)

HOUR = 3600.0
SECONDS = st.floats(0.0, 1000.0)


def test_the_interval_follows_the_training_lost_and_the_notice() -> None:
    assert interval_seconds(30, CheckpointCost(5.0), 30.0) == 30.0
    assert interval_seconds(None, None, 30.0) == 10.0
    fits = interval_seconds(None, CheckpointCost(0.1, 2.0), 30.0)
    assert fits == pytest.approx(math.sqrt(2 * 0.1 * 4 * HOUR))
    too_long = interval_seconds(None, CheckpointCost(0.1, 25.0), 30.0)
    assert too_long == pytest.approx(50.0), "half of the time is the disk's"
    assert interval_seconds(None, CheckpointCost(0.4, 25.0), 30.0) == pytest.approx(
        math.sqrt(2 * 0.4 * HOUR)
    ), "without a last checkpoint every reclaimed node costs an interval"
    assert interval_seconds(None, CheckpointCost(0.0001), 30.0) == 10.0
    assert interval_seconds(None, CheckpointCost(60.0), 30.0) == 6000.0


@given(SECONDS, SECONDS, st.floats(0.0, 0.9), st.floats(1.0, 600.0))
def test_the_interval_costs_one_percent_at_most(
    blocked: float, write: float, slowdown: float, notice: float
) -> None:
    cost = CheckpointCost(blocked, write, slowdown)
    interval = interval_seconds(None, cost, notice)
    assert interval >= 10.0
    assert interval >= cost.lost_seconds / 0.01 * (1 - 1e-9)
    assert interval >= 2.0 * write * (1 - 1e-9)


@pytest.mark.parametrize(
    ("remaining", "save", "rest", "expected"),
    [
        (30.0, 2.0, 1.0, StopPlan.FINISH_THEN_SAVE),
        (30.0, None, None, StopPlan.FINISH_THEN_SAVE),
        (30.0, 18.0, 17.0, StopPlan.CANCEL_AND_SAVE),
        (30.0, 21.0, 5.0, StopPlan.FINISH_ONLY),
    ],
)
def test_at_a_stop_the_newest_step_goes_first_if_it_fits(
    remaining: float, save: float | None, rest: float | None, expected: StopPlan
) -> None:
    assert plan_stop(remaining, save, rest) is expected
