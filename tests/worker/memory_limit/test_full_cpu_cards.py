"""A process that takes more than its CPU card runs out of memory, as on a GPU."""

from pathlib import Path
from typing import Any

import pytest

from gpujob_api.cpu_cards import cpu_card_uuid
from gpujob_api.quantities import GIB, MIB
from tests.harness.worker_process import WorkerRun, run_worker

LARGE_BYTES = GIB + GIB // 4
SCRIPT = """
import sys, torch
large_bytes, when, steps = int(sys.argv[1]), sys.argv[2], 12
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kept = []
for step in range(steps):
    if when == "held" and step == 0:
        kept.append(torch.ones(large_bytes, dtype=torch.uint8))
    if when == "freed" and step == 2:
        torch.ones(large_bytes, dtype=torch.uint8)
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, flush=True)
print("done", flush=True)
"""

ANSWERS = """
import sys, torch
model, kept = torch.nn.Linear(8, 1).eval(), []
with torch.inference_mode():
    for call in range(12):
        if call == 6:
            kept.append(torch.ones(int(sys.argv[1]), dtype=torch.uint8))
        model(torch.ones(4, 8))
        print("call", call, flush=True)
"""


def run_on_card(
    folder: Path, large_bytes: int, when: str, visible: str, mode: str, script: str = SCRIPT
) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    command = ["python", str(folder / "train.py"), str(large_bytes), when]
    settings: dict[str, Any] = {"mode": mode}
    environment = {"NVIDIA_VISIBLE_DEVICES": visible}
    _, run = run_worker(folder, command, settings=settings, environment=environment)
    return run


def card(memory_bytes: int = GIB) -> str:
    return cpu_card_uuid("node-0", memory_bytes, "1a2b3c4d")


@pytest.mark.parametrize("mode", ["Auto", "Recommend", "Off"])
def test_a_step_that_holds_more_than_the_card_ends_the_run(tmp_path: Path, mode: str) -> None:
    """A GPU refuses the allocation in every mode."""
    run = run_on_card(tmp_path, LARGE_BYTES, "held", card(), mode)
    assert run.process.exitcode == 1, run.errors
    failure = run.report["failure"]
    assert failure["failureClass"] == "OutOfMemory"
    assert "CPU card out of memory: the process took 1." in failure["message"]
    assert failure["message"].endswith(" GiB of 1 GiB")
    assert failure["neededBytes"] > LARGE_BYTES
    assert "step 0" not in run.output


def test_memory_that_the_step_gave_back_counts_too(tmp_path: Path) -> None:
    run = run_on_card(tmp_path, LARGE_BYTES, "freed", card(), "Auto")
    assert run.report["failure"]["failureClass"] == "OutOfMemory"
    assert "step 1\n" in run.output
    assert "step 2\n" not in run.output


def test_a_script_that_only_answers_has_the_same_limit(tmp_path: Path) -> None:
    run = run_on_card(tmp_path, LARGE_BYTES, "", card(), "Auto", ANSWERS)
    assert run.process.exitcode == 1, run.errors
    assert run.report["failure"]["failureClass"] == "OutOfMemory"
    assert "call 5\n" in run.output
    assert "call 11\n" not in run.output


@pytest.mark.parametrize(
    "visible",
    [card(4 * GIB), f"{card()},{card()}", "GPU-5c8f9f6e-1b1a-4c8e-9f5c-5f2d3a1b2c3d", ""],
)
def test_a_process_within_its_cards_or_on_a_gpu_ends_well(tmp_path: Path, visible: str) -> None:
    run = run_on_card(tmp_path, LARGE_BYTES - 300 * MIB, "held", visible, "Auto")
    assert run.process.exitcode == 0, run.errors
    assert run.output.endswith("done\n")
