"""The play on a GPU that an imitated driver shows: a real one's path, down to the library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.shared.ground import torch_versions
from tests.harness.imitated_nvml import ImitatedDriver, ImitatedGPU, build_library
from tests.harness.imitated_nvml.mirror import MirroredGPU
from tests.harness.repository import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]
GIB = 1024**3
NAME = "Imitated GPU"
LIMIT_SECONDS = 200.0
UUID = "GPU-0badc0de-0000-1111-2222-333344445555"


def test_jobs_share_the_gpu_that_nvml_shows(tmp_path: Path) -> None:
    """Another GPU of the machine stays idle. The processes compute on the CPU."""
    library = build_library(tmp_path / "nvml")
    gpus = [
        ImitatedGPU(uuid="GPU-another", name=NAME, memory_total_bytes=6 * GIB),
        ImitatedGPU(uuid=UUID, name=NAME, memory_total_bytes=6 * GIB, memory_reserved_bytes=GIB),
    ]
    cuda = torch_versions()[1]
    driver = ImitatedDriver(library.parent, library, gpus[::-1])
    driver.cuda = 1000 * int((cuda or "13.0").split(".")[0])
    results = tmp_path / "results"
    command = [sys.executable, "-m", "bench.shared_gpu", "--quick", "--kinds", "gpt2"]
    command += ["--parts", "packed", "--results", str(results), "--gpu", "0"]
    # The test's own processes are no pods: only what the cluster starts is on the GPU.
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library.parent)}
    with MirroredGPU(driver, busy_percent=20):
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
    assert done.stdout.startswith(f"on {NAME}, driver {driver.version}"), done.stderr
    assert "rehearsal" not in done.stdout
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == json.loads((results / "imitated-gpu-shared-quick.json").read_text())
    claims = {
        claim["title"]: (claim["holds"], claim["figures"])
        for part in result["parts"].values()
        for claim in part["claims"]
    }
    for title in (
        "Each job is measured alone, and its reservation shrinks to what it uses",
        "Packed by measurement: declared memory alone would need a second device",
        "No job uses more memory than it reserves",
    ):
        assert claims[title][0], claims[title]
    packed = result["parts"]["packed"]
    # Three jobs of 20 %: the driver's figures, not the processor's.
    assert packed["utilization_percent"] == pytest.approx(60.0, abs=1.0)
    assert packed["utilization_one_after_the_other_percent"] == pytest.approx(20.0, abs=1.0)
    energy = packed["energy"]
    assert energy["counted_joules"] > 0
    assert energy["foretold_joules"] > 0
    assert sum(energy["split_percent"].values()) == pytest.approx(100.0, abs=0.5)
