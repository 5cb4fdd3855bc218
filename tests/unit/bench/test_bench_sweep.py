"""The benchmark of a sweep: its counts, and what fails it."""

import json

import pytest

from bench import sweep
from bench.sweep import APART, ONE, WHOLE


def test_jobs_of_one_workload_are_measured_once_and_packed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert sweep.main(["--jobs", "6", "--gpus", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    rows = {row["way"]: row for row in found}
    counts = {
        way: (row["measured_alone"], row["packed_at_once"], row["tuned_anew"])
        for way, row in rows.items()
    }
    assert counts == {WHOLE: (6, 0, 0), APART: (6, 0, 6), ONE: (1, 5, 1)}
    assert all(row["succeeded"] == 6 for row in rows.values())
    assert rows[ONE]["gpu_hours"] < rows[APART]["gpu_hours"] < rows[WHOLE]["gpu_hours"]


def test_a_sweep_that_is_measured_again_fails() -> None:
    row = {"gpus": 1, "measured_alone": 6, "packed_at_once": 0, "tuned_anew": 6, "gpu_hours": 9.0}
    rows = [{**row, "way": ONE}, {**row, "way": WHOLE, "gpu_hours": 10.0}]
    assert [holds for _, holds in sweep.claims(rows, 6)] == [False, False]
