"""kubectl gpujob report: what was measured, and nothing that was not."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from kubectl_gpujob.verbs import report
from tests.harness.cli_jobs import NOW, MemoryCluster, job, run_command, succeeded_status


def test_the_first_and_the_latest_steps_stand_side_by_side() -> None:
    """They ran at different times: what they took is no speed-up."""
    assert report.comparison(job(status=succeeded_status())) == [
        ("step time", "412 ms", "187 ms", ""),
        ("peak memory", "9.8 GiB", "5.1 GiB", "-48 %"),
        ("samples/s", "621", "1369", ""),
    ]


def test_an_inference_run_shows_calls_and_their_latency() -> None:
    status = succeeded_status()
    measured = status["measurement"]
    measured |= {"task": "Inference", "step": 1200}
    for name in ("loss", "stepsTotal"):
        del measured[name]
    for timing, p99 in (("baseline", 40.5), ("current", 21.26)):
        found = {"p50Milliseconds": 9, "p95Milliseconds": 12.5, "p99Milliseconds": p99}
        measured[timing]["latency"] = {**found, "calls": 1000}
    rows = dict(report.rows(job(status=status), NOW))
    assert rows["Progress"] == "1200 calls"
    compared = {
        name: (first, latest) for name, first, latest, _ in report.comparison(job(status=status))
    }
    assert compared["call time"] == ("412 ms", "187 ms")
    assert compared["latency p50"] == ("9 ms", "9 ms")
    assert compared["latency p95"] == ("12.5 ms", "12.5 ms")
    assert compared["latency p99"] == ("40.5 ms", "21.3 ms")
    del measured["baseline"]["latency"]
    assert not any("latency" in row[0] for row in report.comparison(job(status=status)))


def test_a_speed_up_is_what_was_measured_in_turns() -> None:
    rows = dict(report.rows(job(status=succeeded_status()), NOW))
    assert rows["Speed-up"] == (
        "1.84x as fast as without settings (95 % 1.79 to 1.90, 10 pairs in turns)"
    )
    status = succeeded_status()
    del status["measurement"]["speedup"]
    assert "Speed-up" not in dict(report.rows(job(status=status), NOW))
    assert "speedup" not in report.as_json(job(status=status))


@pytest.mark.parametrize("mode", ["Recommend", "Off"])
def test_a_mode_that_changes_nothing_shows_no_speed_up(mode: str) -> None:
    """Also where an attempt before had another mode."""
    held = job(spec={"optimize": {"mode": mode}}, status=succeeded_status())
    rows = report.rows(held, NOW)
    assert ("Recommended" in dict(rows)) is (mode == "Recommend")
    shown = json.dumps([rows, report.comparison(held), report.as_json(held)])
    assert "1.84" not in shown
    assert "speedup" not in shown
    assert not re.search(r"[0-9]x\b|times as fast|\+[0-9]+ %", shown)


def test_without_both_measurements_nothing_is_compared() -> None:
    status = succeeded_status()
    del status["measurement"]["baseline"]
    assert report.comparison(job(status=status)) == []
    assert report.comparison(job()) == []


def test_the_page_says_what_was_done() -> None:
    rows = dict(report.rows(job(status=succeeded_status()), NOW))
    assert rows["Phase"] == "Succeeded, 4m 30s since the first start"
    assert rows["Settings"] == (
        "bfloat16, 64 samples at once, compile on, activation checkpointing off (found in 11.5 s)"
    )
    assert rows["Progress"] == "step 400 of 400, loss 1.25"
    assert rows["Measured"] == (
        "5.4 GiB of GPU memory, utilization 63 %, 120 readings; waiting for data 4 % of the time"
    )
    assert rows["Reserved"] == "5.9 GiB (Measured)"
    assert rows["Checkpoint"] == "step 400, 1.2 GiB in 1.3 s"
    assert rows["Attempts"] == "2, 1 interrupted, resumed after step 210"
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


def test_a_job_that_ended_without_a_start_never_ran() -> None:
    status = {"phase": "Failed", "finishedAt": "2026-03-01T10:00:00Z"}
    assert report.rows(job(status=status), NOW)[0] == ("Phase", "Failed, never ran")


@pytest.mark.parametrize(
    ("protection", "text"),
    [
        ("Exact", "resumes exactly"),
        ("BestEffort", "resumes from its newest checkpoint, not exactly"),
    ],
)
def test_what_protects_the_run(protection: str, text: str) -> None:
    found = job(status=succeeded_status() | {"protection": protection})
    assert dict(report.rows(found, NOW))["Protected"] == text
    assert report.as_json(found)["protection"] == protection


def test_a_run_that_an_interruption_loses() -> None:
    status = succeeded_status()
    status["conditions"] = [
        {
            "type": "Unprotected",
            "status": "True",
            "reason": "NoDurablePlace",
            "message": "set checkpoint.volumeClaimName",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    status["resumedFromStep"] = 0
    rows = dict(report.rows(job(status=status), NOW))
    assert rows["Unprotected"] == "set checkpoint.volumeClaimName"
    assert rows["Attempts"] == "2, 1 interrupted, started from the beginning"


def test_a_whole_gpu_is_called_so() -> None:
    status = succeeded_status()
    status["reservation"] |= {"exclusive": True, "source": "WholeGPU"}
    rows = dict(report.rows(job(status=status), NOW))
    assert rows["Reserved"] == "a whole GPU (WholeGPU)"


def test_what_it_cost() -> None:
    found = job(status=succeeded_status() | {"cost": 1.25, "summary": {"cost": "$1.25"}})
    assert dict(report.rows(found, NOW))["Cost"] == "$1.25"
    assert report.as_json(found)["cost"] == 1.25
    assert "cost" not in report.as_json(job(status=succeeded_status()))


def test_a_hint_that_does_not_count_is_named() -> None:
    status = succeeded_status()
    status["reservation"] |= {"source": "Profile"}
    status["profile"] = "workload-1a2b"
    found = job(spec={"gpu": {"memory": "900Gi"}}, status=status)
    assert dict(report.rows(found, NOW))["Reserved"] == (
        "5.9 GiB (Profile); gpu.memory (900 GiB) is a hint and does not count: earlier runs used "
        "less; delete GPUProfile workload-1a2b to measure again"
    )


@pytest.mark.parametrize(("said", "rows"), [("True", ["it does not report"]), ("False", [])])
def test_a_job_that_is_not_tuned_says_so(said: str, rows: list[str]) -> None:
    status = succeeded_status()
    status["conditions"] = [
        {
            "type": "Untuned",
            "status": said,
            "reason": "NoReports",
            "message": "it does not report",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
    ]
    found = report.rows(job(status=status), NOW)
    assert [text for name, text in found if name == "Untuned"] == rows


def test_json_carries_the_measured_figures() -> None:
    found = report.as_json(job(status=succeeded_status()))
    assert found["speedup"] == {"ratio": 1.84, "low": 1.79, "high": 1.9, "pairs": 10}
    assert found["measurement"]["baseline"]["stepSeconds"] == 0.412
    assert found["attempts"]["interruptions"] == 1
    assert found["attempts"]["resumedFromStep"] == 210
    assert found["tuned"]["precision"] == "bfloat16"


class _Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        assert not [value for name, value in attrs if name in ("src", "href")], "nothing is loaded"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_has_everything_and_hostile_texts_are_text() -> None:
    attack = "<script>alert(1)</script>\x1b[2J"
    status = {**succeeded_status(), "explain": [attack, "compile applied"]}
    ran = run_command(MemoryCluster([job(status=status)]), "report", "resnet50", "--html")
    page = _Page(ran.stdout)
    assert ran.exit_code == 0
    assert "script" not in page.tags
    assert "\x1b" not in ran.stdout
    text = " ".join(page.words)
    for words in ("vision/resnet50", "<script>alert(1)</script>", "compile applied", "412 ms"):
        assert words in text
