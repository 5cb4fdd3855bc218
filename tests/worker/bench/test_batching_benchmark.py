"""The benchmark of batching: its fixed delay, its goals, and one row of its table."""

import pytest

from bench.batching.__main__ import Goal, burst_row, virtual_row
from bench.batching.policies import FixedDelay, Profile
from bench.batching.virtual import play, poisson
from gpujob_api.serving import BatchingPolicy
from gpujob_worker.serving.batch_time import Line

pytestmark = pytest.mark.any_torch

PROFILE = Profile(Line(0.00192, 0.00006), 10.0)


def test_a_fixed_delay_waits_for_its_delay_or_a_full_batch() -> None:
    arrivals = [0.0, 0.001, 0.5, 0.5, 0.5]
    found = play(arrivals, FixedDelay(0.01, size_max=3), lambda size, _: 0.001)
    assert [(moment, batch.samples) for moment, batch in found.dispatched] == [(0.01, 2), (0.5, 3)]
    assert found.latencies[0] == pytest.approx(0.011)
    assert found.busy_seconds == pytest.approx(0.002)


def test_arrivals_have_the_rate_asked_for() -> None:
    moments = poisson(1000, 20_000, seed=4)
    assert moments == sorted(moments)
    assert 20_000 / moments[-1] == pytest.approx(1000, rel=0.03)
    assert moments == poisson(1000, 20_000, seed=4)


def test_deadline_takes_less_device_time_than_the_best_fixed_delay() -> None:
    row = virtual_row(PROFILE, rate=500, count=2000)
    assert row["of_immediate"] <= 0.45
    assert row["of_fixed"] <= 1.0
    assert row["within_percent"] >= 99.9
    assert row["refused"] == 0


def test_a_burst_does_not_collapse() -> None:
    row = burst_row(PROFILE, BatchingPolicy.DEADLINE)
    assert row["goodput"] >= 0.9
    assert row["kept_percent"] >= 99.0
    assert row["refused_percent"] > 50


def test_a_goal_that_is_missed_is_printed_as_such() -> None:
    assert Goal("ratio", 0.5, 0.45, at_most=True).row()["met"] == "NOT MET"
    assert Goal("ratio", 0.45, 0.45, at_most=True).row()["met"] == "met"
    assert Goal("share", 99.8, 99.9, at_most=False).row()["met"] == "NOT MET"
    assert Goal("share", 99.9, 99.9, at_most=False).row()["goal"] == "share >= 99.9"
