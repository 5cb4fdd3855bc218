"""kubectl gpujob report: before and after, and nothing that was not measured."""

from kubectl_gpujob import report
from tests.harness.cli_jobs import NOW, job, succeeded_status


def test_before_and_after_stand_side_by_side() -> None:
    assert report.comparison(job(status=succeeded_status())) == [
        ("step time", "412 ms", "187 ms", "2.20x as fast"),
        ("peak memory", "9.8 GiB", "5.1 GiB", "-48 %"),
        ("samples/s", "621", "1369", "+120 %"),
    ]


def test_speed_is_compared_by_samples_where_steps_differ() -> None:
    """Half the batch in half the time is no gain."""
    status = succeeded_status()
    status["measurement"]["current"] = {
        "stepSeconds": 0.206,
        "peakMemoryBytes": 5476083302,
        "samplesPerSecond": 621.0,
    }
    assert report.comparison(job(status=status))[0][3] == "1.00x as fast"


def test_without_sample_rates_step_times_are_compared() -> None:
    status = succeeded_status()
    for which in ("baseline", "current"):
        del status["measurement"][which]["samplesPerSecond"]
    rows = report.comparison(job(status=status))
    assert [row[0] for row in rows] == ["step time", "peak memory"]
    assert rows[0][3] == "2.20x as fast"


def test_without_both_measurements_nothing_is_compared() -> None:
    status = succeeded_status()
    del status["measurement"]["baseline"]
    assert report.comparison(job(status=status)) == []
    assert report.comparison(job()) == []
    assert "speedup" not in report.as_json(job(status=status))


def test_the_page_says_what_was_done() -> None:
    rows = dict(report.rows(job(status=succeeded_status()), NOW))
    assert rows["Phase"] == "Succeeded, 4m 30s since the first start"
    assert rows["Settings"] == (
        "bfloat16, 64 samples at once, compile on, activation checkpointing off (found in 11.5 s)"
    )
    assert rows["Progress"] == "step 400 of 400, loss 1.25"
    assert rows["Measured"] == (
        "5.4 GiB of card memory, utilization 63 %, 120 samples; waits 4 % of the time for data"
    )
    assert rows["Reserved"] == "5.9 GiB, from Measured"
    assert rows["Checkpoint"] == "step 400, 1.2 GiB in 1.3 s"
    assert rows["Attempts"] == "2, 1 interrupted, continued after step 210"
    assert rows["Placement"] == "rank 0 on node-a (spot): GPU-1a"


def test_the_batch_is_told_as_a_part_of_its_total() -> None:
    spec = {"optimize": {"batchSize": {"total": 256, "perStep": "Auto"}}}
    rows = dict(report.rows(job(spec=spec, status=succeeded_status()), NOW))
    assert "64 of 256 samples at once" in rows["Settings"]


def test_a_job_that_never_started_has_a_page_too() -> None:
    assert report.rows(job(), NOW) == [
        ("Phase", "Pending, not started yet"),
        ("Attempts", "0"),
    ]


def test_a_whole_card_is_called_so() -> None:
    status = succeeded_status()
    status["reservation"] |= {"exclusive": True, "source": "WholeCard"}
    rows = dict(report.rows(job(status=status), NOW))
    assert rows["Reserved"] == "a whole card, from WholeCard"


def test_json_carries_the_measured_figures() -> None:
    found = report.as_json(job(status=succeeded_status()))
    assert found["speedup"] == 2.2045
    assert found["measurement"]["baseline"]["stepSeconds"] == 0.412
    assert found["attempts"]["interruptions"] == 1
    assert found["attempts"]["resumedFromStep"] == 210
    assert found["tuned"]["precision"] == "bfloat16"
