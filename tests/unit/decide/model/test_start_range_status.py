"""Start ranges on a status: written, kept, cleared, shown and scored."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.meta import Condition, ConditionStatus
from gpujob_api.start_range import StartRange
from gpujob_operator.decide.model.starts import (
    OUTCOMES_MAX,
    Forecast,
    Interval,
    Outcomes,
    may_start,
    outcomes_of,
    shown_range,
    with_forecast,
    without_range,
)
from tests.harness.builders import T0, after, make_job, placed, with_status

NOW = after(0)
HOUR = Interval(after(3600), after(7200))


def forecast(interval: Interval | None = None, *, at: float = 0.0, **fields: Any) -> Forecast:
    """A calculation for the job `job`, or one without an interval for it."""
    found = {} if interval is None else {"uid-job": interval}
    return Forecast(after(at), found, **fields)


def given(interval: Interval = HOUR, *, at: float = 0.0) -> GPUJob:
    job = make_job()
    return with_status(job, start=with_forecast(job, forecast(interval, at=at), after(at)))


def moved(seconds: float, interval: Interval = HOUR) -> Interval:
    assert interval.latest is not None
    by = timedelta(seconds=seconds)
    return Interval(interval.earliest + by, interval.latest + by)


def test_an_interval_is_rounded_outwards_to_minutes() -> None:
    assert Interval.of(after(61), after(119)) == Interval(after(60), after(120))
    assert Interval.of(after(60), after(120)) == Interval(after(60), after(120))
    assert Interval.of(after(61), None) == Interval(after(60))


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(3599, False), (3600, True), (7259, True), (7260, False)],
)
def test_an_interval_includes_its_last_minute(seconds: float, expected: bool) -> None:
    assert HOUR.has(after(seconds)) is expected


def test_an_open_interval_has_no_last_minute() -> None:
    assert Interval(after(60)).has(after(10**6))


def test_the_first_range_is_kept() -> None:
    job = given()
    assert job.status.start == StartRange(
        HOUR.earliest, HOUR.latest, NOW, HOUR.earliest, HOUR.latest
    )
    later = moved(1800)
    start = with_forecast(job, forecast(later, at=60), after(60))
    assert start == StartRange(later.earliest, later.latest, after(60), HOUR.earliest, HOUR.latest)


@pytest.mark.parametrize(("seconds", "expected"), [(300, False), (420, True), (-420, True)])
def test_a_change_below_a_tenth_of_the_wait_is_not_written(seconds: float, expected: bool) -> None:
    job = given()
    start = with_forecast(job, forecast(moved(seconds), at=60), after(60))
    assert (start is not job.status.start) is expected


def test_a_change_below_a_minute_is_not_written() -> None:
    soon = Interval(after(60), after(120))
    job = given(soon)
    assert with_forecast(job, forecast(moved(60, soon)), NOW) is job.status.start
    assert with_forecast(job, forecast(moved(120, soon)), NOW) is not job.status.start


def test_an_unchanged_range_is_renewed_before_readers_ignore_it() -> None:
    job = given()
    assert with_forecast(job, forecast(HOUR, at=140), after(140)) is job.status.start
    start = with_forecast(job, forecast(HOUR, at=150), after(150))
    assert start is not None
    assert start.computed_at == after(150)


def test_an_end_that_becomes_unknown_is_written() -> None:
    start = with_forecast(given(), forecast(Interval(HOUR.earliest)), NOW)
    assert start is not None
    assert (start.earliest, start.latest) == (HOUR.earliest, None)


def test_a_range_that_is_not_renewed_is_cleared_and_the_first_one_kept() -> None:
    start = with_forecast(given(), forecast(at=60), after(60))
    assert start == StartRange(first_earliest=HOUR.earliest, first_latest=HOUR.latest)


def test_a_range_that_has_passed_is_cleared() -> None:
    start = with_forecast(given(), forecast(HOUR, at=7260), after(7260))
    assert start is not None
    assert start.earliest is None


def test_a_job_without_a_range_gets_none() -> None:
    assert with_forecast(make_job(), forecast(), NOW) is None


def test_poor_outcomes_publish_no_range_and_keep_the_first_for_the_score() -> None:
    """Otherwise nothing could show that later ranges hold."""
    poor = Outcomes(held=6, of=10)
    start = with_forecast(make_job(), forecast(HOUR, outcomes=poor), NOW)
    assert start == StartRange(first_earliest=HOUR.earliest, first_latest=HOUR.latest)
    start = with_forecast(given(), forecast(HOUR, outcomes=poor), NOW)
    assert start == StartRange(first_earliest=HOUR.earliest, first_latest=HOUR.latest)


@pytest.mark.parametrize(
    ("held", "of", "expected"),
    [(0, 9, True), (6, 10, False), (7, 10, True), (34, 50, False), (35, 50, True)],
)
def test_ranges_are_published_if_seven_tenths_held(held: int, of: int, expected: bool) -> None:
    assert Outcomes(held, of).may_publish is expected


def test_a_job_that_ran_before_gets_no_first_range() -> None:
    start = with_forecast(with_status(make_job(), attempt=1), forecast(HOUR), NOW)
    assert start == StartRange(HOUR.earliest, HOUR.latest, NOW)


@pytest.mark.parametrize(("at", "held"), [(3600, True), (7200, True), (3000, False), (8000, False)])
def test_the_placement_clears_the_range_and_scores_the_first(at: float, held: bool) -> None:
    job = given()
    status = placed(job, at=at).status
    assert without_range(job, status) == StartRange(
        first_earliest=HOUR.earliest, first_latest=HOUR.latest, first_held=held
    )


def test_an_open_first_range_is_not_scored() -> None:
    job = given(Interval(HOUR.earliest))
    start = without_range(job, placed(job, at=9000).status)
    assert start is not None
    assert start.first_held is None


def test_only_the_first_placement_is_scored() -> None:
    start = StartRange(first_earliest=after(0), first_latest=after(60), first_held=True)
    job = placed(with_status(make_job(), start=start), at=9000, attempt=2)
    assert without_range(job, job.status) == start


def waiting_for(reason: str) -> tuple[Condition, ...]:
    return (Condition("Scheduled", ConditionStatus.FALSE, reason, "", NOW),)


@pytest.mark.parametrize("reason", ["Suspended", "Inadmissible", "SpecRejected", "PodRejected"])
def test_a_job_that_is_held_back_has_no_range(reason: str) -> None:
    job = given()
    job = with_status(job, conditions=waiting_for(reason))
    assert not may_start(job, job.status)
    assert without_range(job, job.status) is None
    assert shown_range(job, NOW) is None


def test_a_suspended_job_has_no_range() -> None:
    job = make_job(suspend=True, status=given().status)
    assert without_range(job, job.status) is None
    assert with_forecast(make_job(suspend=True), forecast(HOUR), NOW) is None


def test_a_job_that_waits_for_gpus_keeps_its_range() -> None:
    job = with_status(given(), conditions=waiting_for("InsufficientCapacity"))
    assert without_range(job, job.status) is job.status.start


def test_readers_hide_a_stale_range() -> None:
    assert shown_range(given(), after(300)) == HOUR
    assert shown_range(given(), after(301)) is None


def test_readers_hide_a_range_that_has_passed_and_of_a_placed_job() -> None:
    soon = Interval(NOW, after(60))
    assert shown_range(given(soon), after(119)) == soon
    assert shown_range(given(soon), after(120)) is None
    assert shown_range(placed(given()), after(1)) is None
    assert shown_range(make_job(), NOW) is None


def scored(results: Iterable[bool]) -> list[GPUJob]:
    return [
        with_status(
            make_job(f"job-{number}"),
            phase=JobPhase.SUCCEEDED,
            started_at=after(number),
            start=StartRange(T0, T0, first_held=held),
        )
        for number, held in enumerate(results)
    ]


def test_the_newest_outcomes_count() -> None:
    jobs = scored([False] * 10 + [True] * OUTCOMES_MAX)
    assert outcomes_of(reversed(jobs)) == Outcomes(OUTCOMES_MAX, OUTCOMES_MAX)
    assert outcomes_of(jobs[:15]) == Outcomes(5, 15)
    assert outcomes_of([make_job(), given()]) == Outcomes(0, 0)
