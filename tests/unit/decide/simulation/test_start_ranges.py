"""Start ranges: from draws of the planner's own future."""

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.gpunode import GPU
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import DRAWS_MIN, JOBS_MAX, Forecast, Interval
from gpujob_operator.decide.planner import Planner
from gpujob_operator.decide.simulation.run import Limits, simulate
from gpujob_operator.decide.simulation.start_ranges import (
    Method,
    StartRanges,
    start_ranges,
    watched_jobs,
)
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pods,
    make_queue,
    make_snapshot,
    measured,
    running,
    with_status,
)

NOW = after(100_000)
DRAWN = Method(draws=DRAWS_MIN, horizon_seconds=30_000.0, expects_later_jobs=False)
EXACT = replace(DRAWN, horizon_seconds=86_400.0, pace_spread=0.0)


def busy(name: str, uuid: str = "GPU-0", *, seconds_left: float | None = 1000.0) -> GPUJob:
    """Runs alone on a GPU since an hour."""
    known = replace(measured(4 * GIB, step=500), current=Timing(1.0, 4 * GIB))
    if seconds_left is not None:
        known = replace(known, steps_total=500 + round(seconds_left))
    else:
        known = replace(known, current=None)
    job = make_job(name, sharing=SharingMode.EXCLUSIVE, created=96_000)
    found = running(job, ("n0", (uuid,)), measurement=known, at=96_400)
    return with_status(found, observed_at=NOW, progressed_at=NOW)


def waits(name: str = "new", created: float = 99_999, **fields: Any) -> GPUJob:
    return make_job(name, sharing=SharingMode.EXCLUSIVE, created=created, **fields)


def ended(name: str, seconds: float) -> GPUJob:
    return with_status(
        make_job(name, created=50_000),
        phase=JobPhase.SUCCEEDED,
        observed_generation=1,
        started_at=after(50_000),
        finished_at=after(50_000 + seconds),
        held_seconds=seconds,
    )


def on_one_gpu(*jobs: GPUJob, gpus: tuple[GPU, ...] = (), **fields: Any) -> Snapshot:
    pods = [pod for job in jobs if job.status.placement is not None for pod in make_pods(job)]
    node = make_gpu_node("n0", *(gpus or (make_gpu(),)), at=100_000)
    return make_snapshot(*jobs, pods=pods, gpu_nodes=(node,), **fields)


def seconds_of(found: StartRanges, name: str = "new") -> tuple[float, float | None]:
    one = found.intervals[f"uid-{name}"]
    end = None if one.latest is None else (one.latest - NOW).total_seconds()
    return (one.earliest - NOW).total_seconds(), end


@pytest.mark.parametrize("seconds", [30, 837, 5000, 40_000, 80_000])
def test_exact_lengths_narrow_the_range_to_the_start(seconds: int) -> None:
    """The range is one minute, as precise as the steps of the simulation."""
    snapshot = on_one_gpu(busy("busy", seconds_left=seconds), waits())
    low, high = seconds_of(start_ranges(snapshot, NOW, EXACT))
    assert high is not None
    assert high - low <= 60
    assert low - 60 <= 1.03 * seconds + 30
    assert high >= seconds


def test_unknown_lengths_widen_the_range() -> None:
    history = [ended(f"e{n}", 5000 + 500 * n) for n in range(20)]
    snapshot = on_one_gpu(busy("busy", seconds_left=None), waits(), *history)
    low, high = seconds_of(start_ranges(snapshot, NOW, DRAWN))
    assert high is not None
    # It runs since 3,600 s, and the runs took 5,000 to 14,500 s.
    assert 900 < low < 4000
    assert 8000 < high < 16_000


def test_without_history_there_is_no_range() -> None:
    found = start_ranges(on_one_gpu(busy("busy", seconds_left=None), waits()), NOW, DRAWN)
    assert found == StartRanges({}, DRAWN.draws)


def test_a_start_beyond_the_horizon_is_open() -> None:
    """A third of the runs take longer than the horizon."""
    short, long = (
        [ended(f"s{n}", 7200) for n in range(20)],
        [ended(f"l{n}", 10**6) for n in "abcdefghij"],
    )
    snapshot = on_one_gpu(busy("busy", seconds_left=None), waits(), *short, *long)
    low, high = seconds_of(start_ranges(snapshot, NOW, replace(DRAWN, horizon_seconds=20_000.0)))
    assert 1000 < low < 6000
    assert high is None


def test_a_job_that_never_fits_has_no_range() -> None:
    snapshot = on_one_gpu(busy("busy"), waits(), waits("huge", gpus_per_worker=4))
    found = start_ranges(snapshot, NOW, replace(EXACT, horizon_seconds=5000.0))
    assert set(found.intervals) == {"uid-new"}


def test_jobs_start_in_order() -> None:
    history = [ended(f"e{n}", 2000) for n in range(20)]
    second, third = waits("second"), waits("third", created=99_999.5)
    found = start_ranges(on_one_gpu(busy("busy"), second, third, *history), NOW, DRAWN)
    assert seconds_of(found, "second")[0] < seconds_of(found, "third")[0]
    one, other = seconds_of(found, "second"), seconds_of(found, "third")
    assert one[1] is not None
    assert other[1] is not None
    assert one[1] < other[0]


def test_the_result_is_deterministic() -> None:
    history = [ended(f"e{n}", 3000 + 500 * n) for n in range(20)]
    snapshot = on_one_gpu(busy("busy", seconds_left=None), waits(), *history)
    found = start_ranges(snapshot, NOW, DRAWN)
    assert found.intervals
    assert found == start_ranges(snapshot, NOW, DRAWN)
    backwards = replace(snapshot, jobs=snapshot.jobs[::-1], pods=snapshot.pods[::-1])
    assert found == start_ranges(backwards, NOW, DRAWN)


def test_later_jobs_of_a_higher_priority_start_first() -> None:
    """An hourly job of higher priority takes the free GPU before the pending one."""
    past = [replace(ended(f"e{n}", 3000), spec=make_job(priority=5).spec) for n in range(12)]
    past = [
        replace(one, metadata=replace(one.metadata, creation_timestamp=after(100_000 - 3500 * n)))
        for n, one in enumerate(past, 1)
    ]
    snapshot = on_one_gpu(busy("busy", seconds_left=7000), waits(), *past)
    without = seconds_of(start_ranges(snapshot, NOW, DRAWN))
    with_later = seconds_of(start_ranges(snapshot, NOW, replace(DRAWN, expects_later_jobs=True)))
    assert without[1] is not None
    assert without[1] < 8000
    assert with_later[1] is None or with_later[1] > without[1] + 2000


def test_too_few_draws_give_no_range() -> None:
    snapshot = on_one_gpu(busy("busy"), waits())
    left = count()
    found = start_ranges(snapshot, NOW, EXACT, lambda: next(left) < DRAWS_MIN - 1)
    assert found == StartRanges({}, DRAWS_MIN - 1)
    left = count()
    more = replace(EXACT, draws=20)
    found = start_ranges(snapshot, NOW, more, lambda: next(left) < DRAWS_MIN)
    assert found.draws == DRAWS_MIN
    assert found.intervals


def test_nobody_waits() -> None:
    assert start_ranges(on_one_gpu(busy("busy")), NOW) == StartRanges()


def test_the_first_jobs_by_priority_and_age_get_ranges() -> None:
    jobs = [waits(f"job-{n:03}", created=n) for n in range(JOBS_MAX + 5)]
    jobs.append(waits("urgent", priority=1))
    found = watched_jobs(jobs)
    assert len(found) == JOBS_MAX
    assert found[:2] == ["uid-urgent", "uid-job-000"]


def test_suspended_jobs_get_no_range() -> None:
    assert watched_jobs([waits("a", suspend=True), busy("b")]) == []


def test_a_forecast_in_the_snapshot_changes_nothing() -> None:
    snapshot = on_one_gpu(busy("busy"), waits())
    known = Forecast(NOW, {"uid-new": Interval(NOW, NOW + timedelta(hours=1))})
    assert start_ranges(replace(snapshot, forecast=known), NOW, EXACT) == start_ranges(
        snapshot, NOW, EXACT
    )


def test_quota_of_a_queue_delays_the_start() -> None:
    one_gpu = make_queue("default", gpus=1)
    gpus = (make_gpu("GPU-0"), make_gpu("GPU-1"))
    snapshot = on_one_gpu(busy("busy"), waits(), gpus=gpus, queues=(one_gpu,))
    low, _ = seconds_of(start_ranges(snapshot, NOW, EXACT))
    assert low >= 900


@pytest.mark.parametrize("seconds", [100.0, 5000.0])
def test_without_a_future_the_simulation_is_the_same(seconds: float) -> None:
    """`kubectl gpujob simulate` takes the planner's own estimates."""
    snapshot = on_one_gpu(busy("busy", seconds_left=seconds), waits())
    found = simulate(snapshot, NOW, Limits(), Planner()).jobs["uid-new"]
    assert found.starts_seconds is not None
    assert seconds <= found.starts_seconds <= seconds * 1.02 + 30


def test_a_simulation_ends_after_its_writes() -> None:
    jobs = [waits(f"job-{n}", created=n) for n in range(5)]
    snapshot = on_one_gpu(busy("busy", seconds_left=100), *jobs)
    whole = simulate(snapshot, NOW, Limits(horizon_seconds=5000.0))
    short = simulate(snapshot, NOW, Limits(horizon_seconds=5000.0, writes=1))
    assert short.cycles == 1 < whole.cycles
    assert short.ended == "cycles"
