"""The example of batch inference, played through `gpujob-run` on the CPU."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.repository import ROOT

pytestmark = pytest.mark.timeout(400)

SCRIPT = str(ROOT / "examples" / "score_images.py")
# Lines enough for several full buffers of the file.
IMAGES, BATCH = 2000, 10
SIZES = ["--images", str(IMAGES), "--batch-size", str(BATCH), "--width", "4", "--image-size", "16"]


def started(folder: Path, number: int) -> subprocess.Popen[str]:
    # The settings that a measurement finds may round in another way.
    options = ["--tuning-seconds", "1", "--settings", '{"mode": "Recommend"}']
    variables = {
        "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "GPUJOB_TERMINATION_FILE": str(folder / "termination"),
        "GPUJOB_ATTEMPT": str(number),
        "OMP_NUM_THREADS": "1",
    }
    command = ["python", SCRIPT, *SIZES, "--result", str(folder / "scores.csv")]
    return subprocess.Popen(
        [sys.executable, "-m", "gpujob_worker", *options, "--", *command],
        env={**os.environ, **variables},
        stderr=subprocess.PIPE,
        text=True,
    )


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def stopped_later_on(folder: Path, number: int) -> dict[str, Any]:
    """Stops the run once it has written more, as a node that goes."""
    result = folder / "scores.csv"
    process, before = started(folder, number), size(result)
    while size(result) <= before and process.poll() is None:
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 143, errors
    return json.loads((folder / "termination").read_text())


def test_scores_end_as_those_of_a_plain_run_after_three_stops(tmp_path: Path) -> None:
    plain = tmp_path / "plain.csv"
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, SCRIPT, *SIZES, "--result", str(plain)]
    subprocess.run(command, check=True, env=variables)
    steps = [stopped_later_on(tmp_path, number)["checkpoint"]["step"] for number in (1, 2, 3)]
    assert steps == sorted(steps)
    last = started(tmp_path, 4)
    _, errors = last.communicate(timeout=300)
    assert last.returncode == 0, errors
    report = json.loads((tmp_path / "termination").read_text())
    assert (report["task"], report["resumedFromStep"]) == ("Inference", steps[-1])
    assert report["step"] == IMAGES // BATCH
    assert report["current"]["latency"]["p99Milliseconds"] > 0
    assert (tmp_path / "scores.csv").read_bytes() == plain.read_bytes()
