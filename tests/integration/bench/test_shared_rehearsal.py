"""The play of jobs that share a GPU on CPU cards: it claims, it keeps, it can be stopped."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench.shared_gpu import EXIT_STOPPED
from tests.harness.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]
COMMAND = [sys.executable, "-m", "bench.shared_gpu", "--device", "cpu", "--quick"]
LIMIT_SECONDS = 200.0
FILE = "cpu-cards-shared-quick.json"


def run(results: Path, *arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*COMMAND, "--kinds", "gpt2", "--results", str(results), *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(results.parent)},
    )


def kept(results: Path) -> dict[str, Any]:
    return json.loads((results / FILE).read_text())


def test_jobs_are_packed_by_measurement_and_the_figures_are_kept(tmp_path: Path) -> None:
    child = run(tmp_path / "results", "--parts", "packed", "--logs", str(tmp_path / "logs"))
    output, errors = child.communicate(timeout=LIMIT_SECONDS)
    lines = output.splitlines()
    result = json.loads(lines[-1])
    assert lines[0].startswith("on CPU cards, driver -: a rehearsal"), errors
    assert result == kept(tmp_path / "results")
    assert (result["device"], list(result["parts"])) == ("CPU cards", ["alone", "packed"])
    packed = result["parts"]["packed"]
    titles = {claim["title"]: claim["holds"] for part in ("alone", "packed")
              for claim in result["parts"][part]["claims"]}  # fmt: skip
    assert titles["Each job is measured alone, and its reservation shrinks to what it uses"]
    assert titles["Packed by measurement: declared memory alone would need a second device"]
    assert titles["No job uses more memory than it reserves"]
    # How fast jobs are beside each other depends on what else the machine does.
    assert packed["jobs"] == len(packed["rows"]) == 3
    assert packed["work_against_one_after_the_other"] > 1
    assert child.returncode in (0, 1)


def test_a_run_that_is_stopped_says_what_it_kept_and_leaves_no_process(tmp_path: Path) -> None:
    child = run(tmp_path / "results", "--parts", "alone")
    end = time.monotonic() + LIMIT_SECONDS
    while not (tmp_path / "results" / FILE).exists():
        assert child.poll() is None, child.communicate()
        assert time.monotonic() < end
        time.sleep(0.1)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == EXIT_STOPPED
    (line,) = errors.splitlines()
    assert line.startswith("bench.shared_gpu: stopped by SIGTERM during the part alone; kept in ")
    assert kept(tmp_path / "results")["running"] == "alone"
    assert _processes_with(str(tmp_path)) == []


def _processes_with(folder: str) -> list[int]:
    """Processes whose command or environment has the folder, the tests' own apart."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if f"{folder}/".encode() in text:
                found.append(int(entry.name))
    return found
