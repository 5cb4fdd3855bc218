"""Drawn run lengths: from the job's own pace, or from ended runs."""

import math
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.simulation.run_lengths import (
    DrawnLengths,
    RunLengths,
    RunSample,
    stratified,
    uniform,
)
from tests.harness.builders import after, make_job, make_template, measured, running, with_status

NOW = after(10_000)
CONFIGURATION = Configuration()
QUANTILES = [(number + 0.5) / 100 for number in range(100)]


def ended(name: str, seconds: float, phase: JobPhase = JobPhase.SUCCEEDED, **spec: Any) -> GPUJob:
    return with_status(
        make_job(name, **spec),
        phase=phase,
        started_at=after(0),
        finished_at=after(seconds),
        held_seconds=seconds,
    )


def program(name: str, option: str = "") -> dict[str, Any]:
    return make_template(command=("train", name, f"--x={option}"))


def lengths(*jobs: GPUJob, **fields: float) -> RunLengths:
    return RunLengths.of(jobs, NOW, CONFIGURATION, **fields)


def drawn(found: RunLengths, job: GPUJob) -> list[float]:
    values = [found.seconds(job, NOW, quantile) for quantile in QUANTILES]
    return [one for one in values if one is not None]


def test_steps_left_times_step_time_with_a_small_spread() -> None:
    known = replace(measured(4 * GIB, step=500), steps_total=1500)
    job = with_status(running(make_job(), measurement=known), observed_at=NOW)
    exact = known.remaining_seconds
    assert exact is not None
    values = drawn(lengths(), job)
    assert median(values) == pytest.approx(exact, rel=0.01)
    assert 0.8 * exact < min(values) < max(values) < 1.2 * exact
    assert drawn(lengths(pace_spread=0.0), job) == pytest.approx([exact] * 100)


def test_the_time_since_the_last_figures_counts() -> None:
    known = replace(measured(4 * GIB, step=500), steps_total=1500)
    job = running(make_job(), measurement=known)
    exact = known.remaining_seconds
    assert exact is not None
    old = with_status(job, observed_at=after(10_000 - 40))
    assert lengths(pace_spread=0.0).seconds(old, NOW, 0.5) == pytest.approx(exact - 40)


def test_runs_of_the_workload_come_first() -> None:
    runs = [ended(f"a{n}", 1000, workload="one") for n in range(8)]
    others = [ended(f"b{n}", 9000) for n in range(8)]
    values = drawn(lengths(*runs, *others), make_job("new", workload="one"))
    assert 600 < min(values) < median(values) < max(values) < 1700


def test_runs_of_the_program_come_next() -> None:
    runs = [ended(f"a{n}", 1000, template=program("p.py", str(n))) for n in range(8)]
    others = [ended(f"b{n}", 9000) for n in range(8)]
    values = drawn(lengths(*runs, *others), make_job("new", template=program("p.py", "new")))
    assert median(values) == pytest.approx(1000, rel=0.1)


def test_runs_of_the_queue_come_last() -> None:
    runs = [ended(f"a{n}", 500, JobPhase.FAILED, queue="q") for n in range(8)]
    others = [ended(f"b{n}", 9000, queue="other") for n in range(8)]
    found = lengths(*runs, *others)
    assert median(drawn(found, make_job("new", queue="q"))) == pytest.approx(500, rel=0.1)
    assert found.is_known(make_job("new", queue="q"))


def test_without_history_the_length_is_unknown() -> None:
    found = lengths(ended("a", 9000, queue="other"))
    assert not found.is_known(make_job("new"))
    assert found.seconds(make_job("new"), NOW, 0.5) is None


def test_a_failure_before_its_first_run_is_no_run() -> None:
    never = with_status(make_job("a"), phase=JobPhase.FAILED, finished_at=after(5))
    assert not lengths(never).is_known(make_job("new"))


def test_runs_on_more_gpus_are_shorter() -> None:
    runs = [ended(f"a{n}", 1000, workload="one") for n in range(8)]
    found = lengths(*runs)
    one = found.seconds(make_job("new"), NOW, 0.5)
    two = found.seconds(make_job("other", gpus_per_worker=2), NOW, 0.5)
    assert one is not None
    assert two == pytest.approx(one / 2)


def test_a_run_is_longer_than_it_has_run_already() -> None:
    """Of runs of 100 and 10,000 seconds, a run of 5,000 seconds can only be a long one."""
    sample = RunSample.of([100.0] * 8 + [10_000.0] * 8)
    short = replace(sample, spread=0.1)
    values = [short.draw(quantile, 5000.0, 1) for quantile in QUANTILES]
    assert median(values) == pytest.approx(5000, rel=0.1)
    assert min(values) > 1000


def test_a_run_longer_than_all_others_takes_as_long_again() -> None:
    sample = replace(RunSample.of([100.0] * 8), spread=0.1)
    assert sample.draw(0.5, 5000.0, 1) == pytest.approx(5000)


@given(
    runs=st.lists(st.floats(0.0, 1e7), min_size=1, max_size=64),
    quantile=st.floats(0.001, 0.999),
    seconds=st.floats(0.0, 1e7),
    gpus=st.integers(1, 64),
)
def test_every_draw_is_a_time(
    runs: list[float], quantile: float, seconds: float, gpus: int
) -> None:
    assert 0.0 <= RunSample.of(runs).draw(quantile, seconds, gpus) < 1e20


def test_each_part_of_the_distribution_is_drawn_once() -> None:
    found = sorted(stratified("uid", draw, 20) for draw in range(20))
    assert found == pytest.approx([(number + 0.5) / 20 for number in range(20)])


def test_two_jobs_are_drawn_independently() -> None:
    orders = {tuple(stratified(uid, draw, 8) for draw in range(8)) for uid in ("a", "b", "c")}
    assert len(orders) == 3


def test_the_same_key_gives_the_same_number() -> None:
    assert uniform("a", 1) == uniform("a", 1) != uniform("a", 2)
    mean = sum(uniform("key", number) for number in range(2000)) / 2000
    assert mean == pytest.approx(0.5, abs=0.03)


def test_a_draw_has_the_length_of_its_quantile() -> None:
    found = lengths(*(ended(f"a{n}", 1000 + n) for n in range(8)))
    job = make_job("new")
    expected = found.seconds(job, NOW, stratified("uid-new", 3, 20))
    assert DrawnLengths(found, 3, 20).seconds(job, NOW) == expected


def test_a_run_that_has_not_ended_leaves_its_weight_to_longer_ones() -> None:
    sample = RunSample.of([100.0, 300.0], so_far=[200.0])
    assert sample.weights == (1.0, 2.0)
    assert [round(math.exp(one)) for one in sample.logs] == [100, 300]


def test_the_longest_run_counts_even_if_it_has_not_ended() -> None:
    sample = RunSample.of([100.0], so_far=[50.0, 900.0])
    assert [round(math.exp(one)) for one in sample.logs] == [100, 900]
    assert sample.weights == (1.5, 1.5)


@given(
    st.lists(st.floats(1, 1e6), min_size=1, max_size=20),
    st.lists(st.floats(1, 1e6), max_size=20),
    st.floats(0.01, 0.99),
)
def test_running_jobs_never_make_runs_shorter(
    ended_seconds: list[float], so_far: list[float], quantile: float
) -> None:
    sample = RunSample.of(ended_seconds, so_far)
    assert sum(sample.weights) == pytest.approx(len(ended_seconds) + len(so_far))
    alone = replace(RunSample.of(ended_seconds), spread=1e-6)
    with_running = replace(sample, spread=1e-6)
    before, after_them = alone.draw(quantile, 0.0, 1), with_running.draw(quantile, 0.0, 1)
    assert after_them >= before * (1 - 1e-4)


def test_long_runs_that_still_run_are_not_missing_from_the_sample() -> None:
    short = [ended(f"short-{n}", 60, template=program("one", str(n))) for n in range(4)]
    long = [running(make_job(f"long-{n}", template=program("one", f"l{n}"))) for n in range(4)]
    waiting = make_job("waiting", template=program("one", "w"))
    alone, beside = drawn(lengths(*short), waiting), drawn(lengths(*short, *long), waiting)
    assert max(alone) < 10_000 / 10
    # The running ones have taken 10,000 s.
    assert sum(one > 5_000 for one in beside) > 30


def test_a_running_job_with_its_own_pace_counts_with_its_whole_run() -> None:
    known = replace(measured(4 * GIB, step=500), steps_total=1500)
    pace = with_status(
        running(make_job("pace", template=program("one", "p")), measurement=known),
        observed_at=NOW,
    )
    left = known.remaining_seconds
    assert left is not None
    found = lengths(ended("short", 60, template=program("one", "s")), pace)
    values = drawn(found, make_job("waiting", template=program("one", "w")))
    assert max(values) > 10_000 + left / 2
