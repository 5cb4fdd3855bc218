"""The plan writes start ranges, and clears them in the write that ends the wait."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, SharingMode
from gpujob_api.start_range import StartRange
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import Forecast, Interval, Outcomes
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    after,
    make_job,
    make_pods,
    make_snapshot,
    measured,
    running,
    with_status,
)

NOW = after(10)
HOUR = Interval(after(3600), after(7200))
FIRST = StartRange(HOUR.earliest, HOUR.latest, NOW, HOUR.earliest, HOUR.latest)
BUSY = running(make_job("busy", sharing=SharingMode.EXCLUSIVE), measurement=measured(1))


def waiting(name: str = "new", **fields: Any) -> GPUJob:
    """A pending job whose reason is written already."""
    job = make_job(name, sharing=SharingMode.EXCLUSIVE, created=1, **fields)
    return with_status(job, **_fields(written(plan(around(job), NOW), name)))


def _fields(status: GPUJobStatus) -> dict[str, Any]:
    return {name: getattr(status, name) for name in status.__slots__}


def around(*jobs: GPUJob, **fields: Any) -> Snapshot:
    """The jobs beside one that holds the only GPU."""
    return make_snapshot(BUSY, *jobs, pods=make_pods(BUSY), **fields)


def writes(found: Plan) -> dict[str, GPUJobStatus]:
    return {
        item.job.metadata.name: item.status for item in found.items if isinstance(item, WriteStatus)
    }


def written(found: Plan, name: str = "new") -> GPUJobStatus:
    return writes(found)[name]


def forecast(*names: str, **fields: Any) -> Forecast:
    return Forecast(NOW, {f"uid-{name}": HOUR for name in names}, **fields)


def test_a_range_is_written_once() -> None:
    job, planner, made = waiting(), Planner(), forecast("new")
    snapshot = around(job, forecast=made)
    status = written(planner(snapshot, NOW))
    assert status.start == FIRST
    assert replace(status, start=None) == job.status
    after_it = around(replace(job, status=status), forecast=made)
    assert "new" not in writes(planner(after_it, NOW))
    assert "new" not in writes(Planner()(after_it, NOW))


def test_without_a_calculation_statuses_stay_as_they_are() -> None:
    job = with_status(waiting(), start=FIRST)
    assert "new" not in writes(plan(around(job), NOW))


def test_a_stale_range_vanishes_within_one_cycle() -> None:
    """The next calculation has no range for the job: it fails, has no time, or has no history."""
    job = with_status(waiting(), start=FIRST)
    planner = Planner()
    planner(around(job, forecast=forecast("new")), NOW)
    status = written(planner(around(job, forecast=forecast()), NOW))
    assert status.start == StartRange(first_earliest=HOUR.earliest, first_latest=HOUR.latest)


def test_a_range_that_has_passed_vanishes_within_one_cycle() -> None:
    job = with_status(waiting(), start=FIRST)
    late = after(7300)
    status = written(plan(around(job, forecast=replace(forecast("new"), computed_at=late)), late))
    assert status.start is not None
    assert status.start.earliest is None


def test_the_placement_clears_the_range_in_the_same_write() -> None:
    job = with_status(waiting(), start=FIRST)
    status = written(plan(make_snapshot(job, forecast=forecast("new")), NOW))
    assert status.placement is not None
    assert status.start == StartRange(
        first_earliest=HOUR.earliest, first_latest=HOUR.latest, first_held=False
    )


def test_a_placement_within_the_first_range_is_recorded() -> None:
    now = Interval(NOW - timedelta(seconds=10), NOW + timedelta(minutes=5))
    start = StartRange(now.earliest, now.latest, NOW, now.earliest, now.latest)
    status = written(plan(make_snapshot(with_status(waiting(), start=start)), NOW))
    assert status.start is not None
    assert status.start.first_held is True


def test_a_suspension_clears_the_range_in_the_same_write() -> None:
    job = with_status(waiting(), start=FIRST)
    suspended = replace(job, spec=replace(job.spec, suspend=True))
    status = written(plan(around(suspended, forecast=forecast("new")), NOW))
    assert status.phase is JobPhase.PENDING
    assert status.start is None


def test_an_unknown_queue_clears_the_range_in_the_same_write() -> None:
    job = with_status(waiting(), start=FIRST)
    moved = replace(job, spec=replace(job.spec, queue="nowhere"))
    assert written(plan(around(moved), NOW)).start is None


@pytest.mark.parametrize("field", ["writing", "backing_off"])
def test_a_job_with_a_write_in_flight_gets_its_range_afterwards(field: str) -> None:
    job, planner, made = waiting(), Planner(), forecast("new")
    busy = around(job, forecast=made, **{field: ("uid-new",)})
    assert "new" not in writes(planner(busy, NOW))
    assert written(planner(around(job, forecast=made), NOW)).start == FIRST


def test_a_status_that_is_written_anyway_has_the_range() -> None:
    job = make_job("new", sharing=SharingMode.EXCLUSIVE, created=1)
    status = written(plan(around(job, forecast=forecast("new")), NOW))
    assert status.conditions
    assert status.start == FIRST


def test_poor_outcomes_hide_the_range() -> None:
    poor = forecast("new", outcomes=Outcomes(1, 10))
    start = written(plan(around(waiting(), forecast=poor), NOW)).start
    assert start == StartRange(first_earliest=HOUR.earliest, first_latest=HOUR.latest)


def test_ranges_of_running_jobs_are_ignored() -> None:
    found = writes(plan(around(forecast=forecast("busy")), NOW))
    assert all(status.start is None for status in found.values())
