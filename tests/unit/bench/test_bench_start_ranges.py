"""The benchmark of start ranges: its world, its score, and its output."""

import json
from collections import Counter
from datetime import timedelta

import pytest

from bench import start_ranges
from bench.start_ranges import QUEUES, START, Score, Week, arrivals, play, row
from gpujob_operator.decide.model.starts import Interval, may_start
from gpujob_operator.decide.simulation.start_ranges import Method
from gpujob_operator.forecast.__main__ import DATA_BYTES_MAX

SMALL = Week(seed=1, days=1.0, nodes=1, load=3.0, sample=0.0)


def test_the_same_seed_gives_the_same_jobs() -> None:
    first, again = list(arrivals(Week(3, days=2))), list(arrivals(Week(3, days=2)))
    assert first == again
    assert first != list(arrivals(Week(4, days=2)))


def test_jobs_are_of_every_kind() -> None:
    jobs = list(arrivals(Week(1)))
    assert len(jobs) > 300
    assert set(Counter(job.spec.queue for job, _ in jobs)) == set(QUEUES)
    assert 0.05 < sum(truth.fails for _, truth in jobs) / len(jobs) < 0.2
    assert 0.3 < sum(truth.steps is None for _, truth in jobs) / len(jobs) < 0.5


def test_more_jobs_arrive_by_day_than_by_night() -> None:
    hours = Counter(
        job.metadata.creation_timestamp.hour
        for job, _ in arrivals(Week(1))
        if job.metadata.creation_timestamp is not None
    )
    assert sum(hours[hour] for hour in range(9, 19)) > 2 * sum(hours[hour] for hour in range(8))


@pytest.mark.slow
def test_a_short_week_runs_jobs_and_lets_them_wait() -> None:
    score = play(SMALL, Method(draws=9))
    assert score.placed_at
    assert score.waited
    assert score.calculations == 0


def test_a_range_counts_if_the_job_started_within_it() -> None:
    hour = timedelta(hours=1)
    closed, open_end = Interval(START + hour, START + 2 * hour), Interval(START + hour)
    score = Score(
        first={uid: (START, closed) for uid in ("in", "early", "late", "never")},
        placed_at={
            "in": START + 1.5 * hour,
            "early": START + 0.5 * hour,
            "late": START + 3 * hour,
            "open": START + 3 * hour,
        },
    )
    score.first["open"] = START, open_end
    found = row(SMALL, score)
    assert (found["ranges"], found["early"], found["late"], found["open_ends"]) == (3, 1, 1, 1)
    assert found["held_percent"] == 33.3


def test_the_last_line_is_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def played(week: Week, method: Method) -> Score:
        return Score()

    monkeypatch.setattr(start_ranges, "play", played)
    assert start_ranges.main(["--seeds", "4,5"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [one["seed"] for one in found["results"]] == [4, 5]
    assert found["results"][0]["held_percent"] is None
    assert found["machine"]["cores"] > 0


def test_a_backlog_waits_for_a_full_cluster() -> None:
    world = start_ranges.backlog(nodes=6, waiting=30)
    snapshot = world.snapshot()
    waiting = [job for job in snapshot.jobs if may_start(job, job.status)]
    assert len(waiting) == 30
    assert len(world.paces) >= 6
    # Their pace is known.
    assert set(world.paces) <= {report.job_uid for report in snapshot.reports}


@pytest.mark.slow
def test_the_memory_of_the_child_process_is_measured() -> None:
    found = start_ranges.memory_row(nodes=6, waiting=30)
    assert (found["gpus"], found["waiting"]) == (24, 30)
    assert found["seconds"] > 0
    assert 10 < found["resident_mib"] < found["data_mib"] < DATA_BYTES_MAX / 2**20
