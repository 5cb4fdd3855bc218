"""The forecaster: when it calculates, what it publishes, and what it counts."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.start_range import StartRange
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import (
    DRAWS_MIN,
    OUTCOMES_MAX,
    Forecast,
    Interval,
    Outcomes,
)
from gpujob_operator.forecast.child import Calculation, CalculationError
from gpujob_operator.forecast.forecaster import (
    CORE_FRACTION,
    INTERVAL_SECONDS,
    PAUSE_SECONDS,
    Forecaster,
    Score,
)
from gpujob_operator.forecast.wire import OBJECTS_MAX
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import T0, after, make_job, make_snapshot, placed, with_status

NOW = after(100)
RANGE = Interval(after(3600), after(7200))
WAITS = make_job("waits")


def started(number: int, held: bool = True) -> GPUJob:
    start = StartRange(T0, T0, first_held=held)
    return with_status(placed(make_job(f"ran-{number}")), started_at=after(number), start=start)


@dataclass
class Stage:
    """A forecaster on fakes: an answer, or an error, to every calculation."""

    snapshot: Snapshot | None = field(default_factory=lambda: make_snapshot(WAITS))
    answer: Calculation | Exception = field(
        default_factory=lambda: Calculation({"uid-waits": RANGE}, 20, 1.0)
    )
    leads: bool = True
    metrics: Metrics = field(default_factory=Metrics)
    questions: list[tuple[Snapshot, datetime]] = field(
        default_factory=list[tuple[Snapshot, datetime]]
    )
    changes: int = 0

    def __post_init__(self) -> None:
        self.forecaster = Forecaster(
            snapshot=lambda: self.snapshot,
            clock=lambda: NOW,
            may_act=lambda: self.leads,
            changed=self._changed,
            metrics=self.metrics,
            calculate=self._calculate,
        )

    def _changed(self) -> None:
        self.changes += 1

    async def _calculate(self, snapshot: Snapshot, now: datetime) -> Calculation:
        self.questions.append((snapshot, now))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def metric(self, text: str) -> bool:
        return text.encode() in self.metrics.text()


async def test_the_answer_becomes_the_forecast_and_wakes_the_loop() -> None:
    stage = Stage()
    assert await stage.forecaster.look() == INTERVAL_SECONDS
    assert stage.forecaster.newest == Forecast(NOW, {"uid-waits": RANGE}, Outcomes())
    assert stage.questions == [(stage.snapshot, NOW)]
    assert stage.changes == 1
    assert stage.metric("gpujob_start_range_draws 20.0")


async def test_a_calculation_takes_a_bounded_share_of_a_core() -> None:
    stage = Stage(answer=Calculation({"uid-waits": RANGE}, 20, 8.0))
    assert await stage.forecaster.look() == pytest.approx(8.0 / CORE_FRACTION)


async def test_a_standby_calculates_nothing_and_forgets() -> None:
    stage = Stage()
    await stage.forecaster.look()
    stage.leads = False
    assert await stage.forecaster.look() == INTERVAL_SECONDS
    assert stage.forecaster.newest is None
    assert len(stage.questions) == 1


async def test_nothing_is_published_after_the_lease_was_lost() -> None:
    stage = Stage()

    async def lose(snapshot: Snapshot, now: datetime) -> Calculation:
        stage.leads = False
        return Calculation({"uid-waits": RANGE}, 20, 1.0)

    forecaster = Forecaster(
        snapshot=lambda: stage.snapshot,
        clock=lambda: NOW,
        may_act=lambda: stage.leads,
        changed=lambda: None,
        metrics=stage.metrics,
        calculate=lose,
    )
    await forecaster.look()
    assert forecaster.newest is None


async def test_it_waits_for_the_first_cycle() -> None:
    stage = Stage(snapshot=None)
    assert await stage.forecaster.look() == INTERVAL_SECONDS
    assert stage.forecaster.newest is None


async def test_without_pending_jobs_no_process_is_started_and_ranges_vanish() -> None:
    stage = Stage(snapshot=make_snapshot(make_job(suspend=True)))
    await stage.forecaster.look()
    assert stage.questions == []
    assert stage.forecaster.newest == Forecast(NOW)


async def test_ranges_vanish_after_a_failed_calculation() -> None:
    stage = Stage()
    await stage.forecaster.look()
    stage.answer = CalculationError("no answer within 120 s")
    assert await stage.forecaster.look() == PAUSE_SECONDS
    assert stage.forecaster.newest == Forecast(NOW)
    assert stage.changes == 2


async def test_a_cluster_with_too_few_draws_is_tried_less_often() -> None:
    stage = Stage(answer=Calculation({}, DRAWS_MIN - 1, 8.0))
    assert await stage.forecaster.look() == PAUSE_SECONDS
    assert stage.metric("gpujob_start_range_draws 8.0")


async def test_a_very_large_cluster_is_not_passed_on() -> None:
    stage = Stage(snapshot=Snapshot(jobs=(WAITS,) * (OBJECTS_MAX + 1)))
    assert await stage.forecaster.look() == PAUSE_SECONDS
    assert stage.questions == []
    assert stage.forecaster.newest == Forecast(NOW)


async def test_outcomes_of_started_jobs_are_part_of_the_forecast() -> None:
    jobs = [started(number, held=number > 7) for number in range(10)]
    stage = Stage(snapshot=make_snapshot(WAITS, *jobs))
    await stage.forecaster.look()
    assert stage.forecaster.newest is not None
    assert stage.forecaster.newest.outcomes == Outcomes(2, 10)
    assert not stage.forecaster.newest.outcomes.may_publish


async def test_it_runs_until_cancelled() -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    stage = Stage()
    forecaster = Forecaster(
        snapshot=lambda: stage.snapshot,
        clock=lambda: NOW,
        may_act=lambda: True,
        changed=lambda: None,
        metrics=stage.metrics,
        calculate=stage._calculate,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await forecaster.run()
    assert pauses == [INTERVAL_SECONDS] * 3


async def test_the_first_calculation_waits_until_the_process_has_begun() -> None:
    stage, order = Stage(), list[str]()

    async def sleep(seconds: float) -> None:
        order.append(f"slept {seconds:.0f} s")
        if len(order) > 2:
            raise asyncio.CancelledError

    forecaster = Forecaster(
        snapshot=lambda: order.append("looked"),
        clock=lambda: NOW,
        may_act=lambda: True,
        changed=lambda: None,
        metrics=stage.metrics,
        sleep=sleep,
    )
    with pytest.raises(asyncio.CancelledError):
        await forecaster.run()
    assert order == ["slept 60 s", "looked", "slept 60 s"]


def test_the_first_look_restores_and_later_ones_count() -> None:
    metrics = Metrics()
    score = Score(metrics)
    assert score.look([started(1), started(2, held=False)]) == Outcomes(1, 2)
    assert b'gpujob_start_ranges_total{held="true"}' not in metrics.text()
    assert score.look([started(1), started(2, held=False), started(3)]) == Outcomes(2, 3)
    assert b'gpujob_start_ranges_total{held="true"} 1.0' in metrics.text()
    assert b'held="false"' not in metrics.text()


def test_deleted_jobs_still_count() -> None:
    score = Score(Metrics())
    score.look([started(1), started(2)])
    assert score.look([started(3, held=False)]) == Outcomes(2, 3)


def test_the_number_of_outcomes_is_bounded() -> None:
    score, found = Score(Metrics()), Outcomes()
    for number in range(0, 3 * OUTCOMES_MAX, 10):
        found = score.look(started(number + one) for one in range(10))
    assert found == Outcomes(OUTCOMES_MAX, OUTCOMES_MAX)
