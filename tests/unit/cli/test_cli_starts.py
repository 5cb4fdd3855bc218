"""The expected start of a pending job, in every command that shows it."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_operator.read.snapshot import Objects
from kubectl_gpujob.starts import brief_start, seconds_to_start, start_text
from tests.harness.cli_jobs import NOW, MemoryCluster, condition, job, run_command

WAITS = [condition("Scheduled", "False", "InsufficientCapacity", "all GPUs are taken")]


def expected(
    earliest: str = "2026-11-20T14:32:00Z",
    latest: str | None = "2026-11-20T15:10:00Z",
    *,
    computed: str = "2026-11-20T11:59:00Z",
    **fields: Any,
) -> GPUJob:
    """A pending job with this range at noon."""
    start = {"earliest": earliest, "computedAt": computed}
    if latest is not None:
        start["latest"] = latest
    return job(status={"start": start, "conditions": WAITS}, **fields)


def scored(held: int, of: int) -> list[GPUJob]:
    start = "2026-11-20T10:00:00Z"
    return [
        job(
            name=f"ran-{number}",
            status={
                "phase": "Succeeded",
                "startedAt": start,
                "start": {"firstEarliest": start, "firstLatest": start, "firstHeld": number < held},
            },
        )
        for number in range(of)
    ]


def why(first: GPUJob, others: Iterable[GPUJob] = (), *arguments: str) -> str:
    cluster = MemoryCluster([first, *others])
    return run_command(cluster, "why", "resnet50", "-n", "vision", *arguments).stdout


def rows_of(text: str) -> dict[str, str]:
    lines = [line.split(maxsplit=1) for line in text.splitlines()[1:]]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def test_why_shows_the_range_and_how_many_held() -> None:
    text = why(expected(), scored(43, 50))
    assert rows_of(text)["Start"] == "14:32 - 15:10 (43 of the last 50 such ranges held)"


def test_few_outcomes_are_not_shown() -> None:
    assert rows_of(why(expected(), scored(9, 9)))["Start"] == "14:32 - 15:10"


@pytest.mark.parametrize(
    ("earliest", "latest", "text", "brief"),
    [
        ("2026-11-20T14:32:00Z", None, "after 14:32", ">2h32m"),
        ("2026-11-20T11:50:00Z", "2026-11-20T12:10:00Z", "before 12:10", "~1m"),
        ("2026-11-20T12:02:00Z", "2026-11-20T12:06:00Z", "12:02 - 12:06", "~4m"),
        ("2026-11-20T23:00:00Z", "2026-11-21T01:00:00Z", "23:00 - 2026-11-21 01:00", "~12h"),
        (
            "2026-11-21T08:00:00Z",
            "2026-11-21T10:00:00Z",
            "2026-11-21 08:00 - 10:00",
            "~21h",
        ),
    ],
)
def test_ranges_as_text(earliest: str, latest: str | None, text: str, brief: str) -> None:
    found = expected(earliest, latest)
    assert start_text(found, [], NOW) == text
    assert brief_start(found, NOW).removesuffix("00m") == brief


def test_a_stale_range_is_hidden_everywhere() -> None:
    stale = expected(computed="2026-11-20T11:54:59Z")
    assert "Start" not in rows_of(why(stale))
    assert brief_start(stale, NOW) == ""
    assert seconds_to_start(stale, NOW) is None
    assert json.loads(why(stale, (), "-o", "json"))["start"] is None


def test_a_range_that_has_passed_is_hidden() -> None:
    past = expected("2026-11-20T11:00:00Z", "2026-11-20T11:30:00Z")
    assert "Start" not in rows_of(why(past))


def test_a_suspended_job_shows_no_range() -> None:
    assert "Start" not in rows_of(why(expected(spec={"suspend": True})))


def test_a_job_without_a_range_shows_its_reason_alone() -> None:
    rows = rows_of(why(job(status={"conditions": WAITS}), scored(3, 20)))
    assert "Start" not in rows
    assert "all GPUs are taken" in rows["Reason"]


def test_json_has_the_range() -> None:
    found = json.loads(why(expected(), (), "-o", "json"))
    assert found["start"] == {
        "earliest": "2026-11-20T14:32:00Z",
        "latest": "2026-11-20T15:10:00Z",
    }


def test_the_list_shows_when_a_pending_job_starts() -> None:
    soon = expected("2026-11-20T12:02:00Z", "2026-11-20T12:06:00Z")
    ran = run_command(MemoryCluster([soon]), "list", "-n", "vision", width=100, is_terminal=True)
    assert ran.stdout == (
        "NAME       STATUS                 PROGRESS   ETA   GPU   COST   AGE\n"
        "resnet50   InsufficientCapacity   -          ~4m   -     -      10m\n"
    )


def test_the_queue_shows_when_its_jobs_start() -> None:
    soon = expected("2026-11-20T12:02:00Z", "2026-11-20T12:06:00Z", spec={"queue": "default"})
    other = job(name="other", spec={"queue": "default"}, status={"conditions": WAITS})
    cluster = MemoryCluster([soon, other], objects_held=Objects())
    lines = [line.split() for line in run_command(cluster, "queue", "default").stdout.splitlines()]
    column = lines[0].index("START")
    assert {line[2]: line[column] for line in lines[1:]} == {"resnet50": "~4m", "other": "-"}
