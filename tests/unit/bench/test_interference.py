import pytest

from bench.sharing_model.interference import (
    OBSERVATIONS_MAX,
    Calibration,
    Observation,
    Use,
    calibrate,
    corrected,
    law_speed,
    may_share,
    predicted_speeds,
)
from gpujob_operator.decide.capacity.slowdown_law import SPEED_MIN, slowdown_percent

LAW = Calibration()


@pytest.mark.parametrize(
    ("summed", "speeds"),
    [(0, 2.0), (49.9, 2.0), (50, 1.93), (79.9, 1.93), (80, 1.79), (95, 1.58), (200, 1.58)],
)
def test_law_is_the_published_one(summed: float, speeds: float) -> None:
    assert law_speed(summed) * 2 == speeds


def test_alone_a_job_runs_at_full_speed() -> None:
    assert predicted_speeds([Use(100)], LAW) == (1.0,)


def test_a_pair_by_hand() -> None:
    # 30 + 40 = 70 %: the law says 1.93 together, 0.965 each, a step 3.6 % longer.
    speeds = predicted_speeds([Use(30), Use(40)], LAW)
    assert speeds == pytest.approx((0.965, 0.965))
    assert slowdown_percent(speeds[0]) == pytest.approx(3.627, abs=0.001)


def test_never_more_is_used_than_there_is() -> None:
    # 90 + 90 = 180 %: the law alone would say 0.79 each, which is 142 % of the GPU.
    assert predicted_speeds([Use(90), Use(90)], LAW) == pytest.approx((100 / 180,) * 2)


def test_what_is_used_most_together_decides() -> None:
    loading = Use(5, {"data loading": 90})
    computing = Use(60, {"data loading": 2})
    # GPU 65 % would cost 3.5 %; data loading 92 % costs 10.5 %.
    assert predicted_speeds([loading, computing], LAW) == pytest.approx((0.895, 0.895))
    assert predicted_speeds([loading, loading], LAW) == pytest.approx((100 / 180,) * 2)


def test_each_further_neighbour_costs() -> None:
    speeds = predicted_speeds([Use(30), Use(30), Use(30)], LAW)
    assert speeds == pytest.approx((0.965**2,) * 3)


def test_the_limit_of_either_job_forbids_sharing() -> None:
    uses = [Use(50), Use(50)]
    assert may_share(uses, [30, 30], LAW).allowed
    verdict = may_share(uses, [30, 20], LAW)
    assert not verdict.allowed
    assert verdict.reason == "job 2 of 2 would be 26.6 % slower; its limit is 20 %"


def test_sharing_must_gain_work() -> None:
    verdict = may_share([Use(100), Use(100)], [500, 500], LAW)
    assert not verdict.allowed
    assert verdict.reason == "together 1.00 of a GPU's work; more than 1.00 is needed"


def test_one_limit_a_job() -> None:
    with pytest.raises(ValueError, match="zip"):
        may_share([Use(1), Use(1)], [10], LAW)


def test_without_utilization_the_mean_seen_counts() -> None:
    seen = Observation(Use(traits=(9.0,)), Use(traits=(9.0,)), 0.6)
    calibration = calibrate([seen])
    assert predicted_speeds([Use(), Use()], calibration)[0] == pytest.approx(0.6)


def test_an_identical_pair_that_was_seen_outweighs_the_law() -> None:
    calibration = calibrate([Observation(Use(40), Use(40), 0.5)])
    # (0.1 x 0.895 + 1 x 0.5) / 1.1
    assert predicted_speeds([Use(40), Use(40)], calibration)[0] == pytest.approx(0.5359, abs=1e-4)


def test_a_pair_quite_unlike_leaves_the_law() -> None:
    far = Observation(Use(40, traits=(9.0,), kind="a"), Use(40, traits=(9.0,), kind="a"), 0.5)
    uses = [Use(40, traits=(0.0,), kind="b")] * 2
    assert predicted_speeds(uses, calibrate([far]))[0] == pytest.approx(0.895, abs=1e-6)


def test_another_kind_counts_less() -> None:
    same, other = (
        calibrate([Observation(Use(40, kind=kind), Use(40, kind=kind), 0.5)]) for kind in ("a", "b")
    )
    uses = [Use(40, kind="a")] * 2
    assert predicted_speeds(uses, same)[0] < predicted_speeds(uses, other)[0] < 0.895


@pytest.mark.parametrize("absurd", [0.0, -1.0, 2.1, float("nan"), float("inf")])
def test_absurd_observations_are_left_out(absurd: float) -> None:
    assert calibrate([Observation(Use(1), Use(1), absurd)]) == LAW


def test_observations_are_bounded_and_the_newest_kept() -> None:
    many = [Observation(Use(1), Use(1), 0.5)] * OBSERVATIONS_MAX
    newest = Observation(Use(1), Use(1), 0.9)
    calibration = calibrate([*many, newest])
    assert len(calibration.observations) == OBSERVATIONS_MAX
    assert calibration.observations[-1] is newest


def test_a_prediction_is_never_nothing() -> None:
    assert min(predicted_speeds([Use(100)] * 40, LAW)) == SPEED_MIN


def test_what_the_running_pair_shows_takes_over() -> None:
    assert corrected(0.9, 0.6, samples=0) == 0.9
    assert corrected(0.9, 0.6, samples=3) == pytest.approx(0.75)
    assert corrected(0.9, 0.6, samples=300) == pytest.approx(0.6, abs=0.004)
