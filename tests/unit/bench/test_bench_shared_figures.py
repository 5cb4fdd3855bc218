"""Claims of jobs that share a device hold exactly if the figures are so."""

from dataclasses import replace

import pytest

from bench.shared import figures
from bench.shared.figures import Alone, Pair, Together
from bench.shared.meter import Moment, span_of
from bench.shared.stage import Step, pace

GIB = 1024**3
ALONE = Alone("gpt2", 10.0, 20.0, 200.0, 2 * GIB, 3 * GIB)


def job(steps_per_second: float = 9.5, **fields: int) -> Together:
    bytes_ = {"peak_bytes": 2 * GIB, "reserved_bytes": 3 * GIB, "declared_bytes": 5 * GIB}
    return Together("a", ALONE, steps_per_second, **{**bytes_, **fields})


def test_speed_is_against_the_job_alone() -> None:
    assert job(8.0).relative_speed == pytest.approx(0.8)
    assert job(8.0).slowdown_percent == pytest.approx(25.0)


def test_a_job_without_steps_alone_has_no_speed_and_no_error() -> None:
    still = replace(job(), alone=replace(ALONE, steps_per_second=0.0))
    assert still.relative_speed == 0.0
    assert not figures.more_work([still, still], 20.0, 38.0).holds
    assert not figures.little_slower([still]).holds


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (ALONE, True),
        (replace(ALONE, reserved_bytes=GIB), False),
        (replace(ALONE, reserved_bytes=10 * GIB), False),
        (replace(ALONE, peak_bytes=0), False),
        (replace(ALONE, steps_per_second=0.0), False),
    ],
)
def test_a_measured_job_reserves_less_than_the_device_and_no_less_than_it_uses(
    one: Alone, holds: bool
) -> None:
    assert figures.measured_alone([one], 10 * GIB).holds is holds
    assert not figures.measured_alone([], 10 * GIB).holds


@pytest.mark.parametrize(("device", "holds"), [(9, True), (10, False), (5, False)])
def test_packed_means_declared_does_not_fit_and_reserved_does(device: int, holds: bool) -> None:
    assert figures.packed([job(), job()], device * GIB).holds is holds


def test_one_job_is_not_packed() -> None:
    assert not figures.packed([job()], 4 * GIB).holds


def test_a_job_that_uses_more_than_it_reserves_breaks_the_claim() -> None:
    assert figures.memory_covered([job()]).holds
    assert not figures.memory_covered([job(), job(peak_bytes=4 * GIB)]).holds
    assert not figures.memory_covered([job(peak_bytes=0)]).holds, "NVML counted nothing"


def test_work_is_the_sum_of_relative_speeds() -> None:
    more = figures.more_work([job(8.0), job(7.0)], 20.0, 38.0)
    assert more.holds
    assert "1.50 times" in more.figures[0]
    assert not figures.more_work([job(8.0), job(6.9)], 20.0, 38.0).holds


def test_the_slowest_job_counts() -> None:
    assert figures.little_slower([job(9.2), job(10.0)]).holds
    assert not figures.little_slower([job(9.0), job(10.0)]).holds
    assert not figures.little_slower([]).holds


def test_energy_is_split_by_watts_above_idle() -> None:
    other = replace(job(5.0), name="b", alone=replace(ALONE, watts=500.0))
    found = figures.energy_of([job(10.0), other], 100.0, 10.0, 3900.0)
    # 100 W above idle at full speed, 400 W at half.
    assert found.foretold_joules == pytest.approx(10 * (100 + 100 + 200))
    assert found.counted_joules == 3900.0
    assert found.split_percent == pytest.approx({"a": 100 / 3, "b": 200 / 3})


def test_a_device_without_a_power_meter_foretells_nothing() -> None:
    unmetered = replace(job(), alone=replace(ALONE, watts=None))
    assert figures.energy_of([unmetered], 100.0, 10.0, None).foretold_joules is None
    assert figures.energy_of([job()], None, 10.0, None).foretold_joules is None


def test_the_law_is_the_one_by_which_the_operator_decides() -> None:
    light = Pair(("a", "b"), (20.0, 29.0), (1.0, 1.0))
    heavy = Pair(("a", "b"), (60.0, 60.0), (0.5, 0.8))
    assert light.predicted_percent == 0.0
    assert heavy.predicted_percent == pytest.approx(100 * (1 / 0.79 - 1))
    assert heavy.measured_percent == pytest.approx((100.0, 25.0))
    found = figures.law_figures([light, heavy])
    assert found["pairs"] == 2
    assert (found["allowed_at_10_percent"], found["of_these_within_10_percent"]) == (1, 1)
    errors = (0.0, 0.0, 100 - 26.582, 25 - 26.582)
    assert found["mean_absolute_error_points"] == pytest.approx(sum(map(abs, errors)) / 4, abs=0.1)
    assert found["mean_error_points"] == pytest.approx(sum(errors) / 4, abs=0.1)
    assert figures.law_figures([]) == {"pairs": 0}


def test_a_span_has_means_peaks_and_the_rise_of_the_counter() -> None:
    moments = [
        Moment(1.0, 10.0, 5, 100.0, 1000.0, {"a": 3, None: 1}),
        Moment(2.0, 30.0, 9, 200.0, 1150.0, {"a": 2, "b": 4}),
    ]
    span = span_of(moments)
    assert (span.seconds, span.utilization_percent, span.watts) == (1.0, 20.0, 150.0)
    assert (span.joules, span.memory_peak_bytes) == (150.0, 9)
    assert span.pod_peak_bytes == {"a": 3, None: 1, "b": 4}
    assert span_of([replace(moments[0], watts=None, joules=None)]).joules is None
    assert span_of([]).seconds == 0.0


def test_a_pace_is_between_the_first_and_the_last_step_of_the_time() -> None:
    steps = [Step(at, number, 0.0) for number, at in enumerate((0.0, 1.0, 1.5, 2.0, 9.0))]
    assert pace(steps, 0.5, 5.0) == pytest.approx(2.0)
    assert pace(steps, 3.0, 5.0) == 0.0
