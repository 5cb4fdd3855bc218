"""Jobs come, end and are deleted for an hour: what the operator held of them goes, too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.what_jobs_leave import FIRST, JOBS, WAVES

REPOSITORY = Path(__file__).resolve().parents[2]


def _growth(*options: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.simulation.what_jobs_leave", *options]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_left_of_jobs_that_are_gone() -> None:
    growth = _growth()
    # A workload more that is known when the second count is made is some 30 objects.
    assert sum(growth.values()) < 4 * JOBS, growth


def test_one_text_of_each_job_would_show() -> None:
    growth = _growth("--remember")
    waves = WAVES - FIRST
    assert growth["in set"] == pytest.approx(waves * JOBS, abs=2)
    assert sum(growth.values()) > 2 * (waves - 1) * JOBS, growth
