"""A worker with CPU cards keeps to their cores; one with GPUs keeps all of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_api.cpu_cards import cores_of, cpu_card_uuids
from gpujob_api.quantities import GIB

pytestmark = [
    pytest.mark.any_torch,
    pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system"),
]
SCRIPT = """
import json, os, subprocess, sys
mine = sorted(os.sched_getaffinity(0))
code = "import os; print(sorted(os.sched_getaffinity(0)))"
child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
print(json.dumps([mine, json.loads(child.stdout)]))
"""


def cores_in(folder: Path, visible: str) -> list[list[int]]:
    script = folder / "train.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "gpujob_worker", "--", "python", str(script)],
        env={**os.environ, "NVIDIA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_script_and_its_children_keep_to_the_core(tmp_path: Path) -> None:
    usable = sorted(os.sched_getaffinity(0))
    (uuid,) = cpu_card_uuids("n", 1, GIB)
    core = sorted(cores_of(uuid, usable))
    assert cores_in(tmp_path, uuid) == [core, core]
    assert len(core) == 1


@pytest.mark.parametrize("visible", ["", "all", "GPU-5c8f9f6e-1b1a-4c8e-9f5c-5f2d3a1b2c3d"])
def test_a_worker_with_gpus_keeps_its_cores(tmp_path: Path, visible: str) -> None:
    usable = sorted(os.sched_getaffinity(0))
    assert cores_in(tmp_path, visible) == [usable, usable]
