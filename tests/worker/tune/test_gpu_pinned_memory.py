"""Batches are pinned where they can be and it helps, and never where nothing may be applied."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from gpujob_worker.inject.data_loader import pin_refusal
from tests.harness.imitated_gpu import CostModel, GpuModel, installed
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

# 4 KiB a batch. A step takes 0.1 s of the GPU and 0.06 s of the host, beside what copying takes.
KERNELS = {"addmm": 0.04, "mm": 0.06}
BATCH_BYTES = 32 * 32 * 4
SCRIPT = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
net = nn.Linear(32, 4).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(640, 32)
loader = DataLoader(TensorDataset(x.to(DEVICE)), batch_size=32)
pinned = []
for _ in range(6):
    for (batch,) in loader:
        pinned.append("x" if batch.is_pinned() else "-")
        time.sleep(0.06)
        loss = net(batch.to("cuda", non_blocking=True)).square().mean()
        opt.zero_grad(); loss.backward(); opt.step()
torch.cuda.synchronize()
print("".join(pinned))
"""


def copying(pageable: float, pinning: float, copy: float = 0.01) -> GpuModel:
    """Seconds of a batch: a copy from pageable memory, pinning it, a copy from pinned memory."""
    cost = CostModel(
        scripted=KERNELS,
        pageable_bytes_per_second=BATCH_BYTES / pageable,
        pinning_bytes_per_second=BATCH_BYTES / pinning,
        copy_bytes_per_second=BATCH_BYTES / copy,
    )
    return GpuModel(cost=cost)


def trained(
    folder: Path, gpu: GpuModel, device: str = "cpu", **settings: str
) -> tuple[WorkerRun, list[str]]:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("DEVICE", f'"{device}"'))
    given = {"compile": "Off", "precision": "float32", **settings}
    code, run = run_worker(folder, ["python", str(script)], settings=given, gpu=gpu)
    assert code == 0, run.errors
    return run, run.report["explain"]


def test_batches_are_pinned_where_the_steps_get_shorter(tmp_path: Path) -> None:
    run, said = trained(tmp_path, copying(pageable=0.05, pinning=0.005))
    assert run.output.strip().startswith("-" * 15)
    assert run.output.strip().endswith("x" * 20)
    line = next(line for line in said if line.startswith("pinned memory"))
    assert line.startswith("pinned memory applied: steps take 0.11")


def test_pinning_that_takes_longer_than_it_saves_is_given_up(tmp_path: Path) -> None:
    run, said = trained(tmp_path, copying(pageable=0.01, pinning=0.2))
    assert "x" * 20 in run.output, "it was tried"
    assert run.output.strip().endswith("-" * 10)
    assert any(line.startswith("pinned memory skipped: no gain: steps take 0.2") for line in said)


@pytest.mark.parametrize(
    "settings", [{}, {"mode": "Recommend"}, {"mode": "Off"}, {"dataLoading": "Off"}]
)
def test_batches_on_the_gpu_are_left_alone(settings: dict[str, str], tmp_path: Path) -> None:
    """The first batch failed with "only dense CPU tensors can be pinned"."""
    _, said = trained(tmp_path, copying(0.05, 0.005), "cuda", **settings)
    expected = [] if settings else ["pinned memory skipped: batches lie on cuda already"]
    assert [line for line in said if line.startswith("pinned memory")] == expected


@pytest.mark.parametrize(
    "settings", [{"mode": "Recommend"}, {"mode": "Off"}, {"dataLoading": "Off"}]
)
def test_nothing_is_pinned_where_nothing_may_be(settings: dict[str, str], tmp_path: Path) -> None:
    run, said = trained(tmp_path, copying(pageable=0.05, pinning=0.005), **settings)
    assert "x" not in run.output
    assert not [line for line in said if line.startswith("pinned memory")]


@pytest.fixture
def gpu() -> Generator[None]:
    with installed():
        yield


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (torch.ones(2), None),
        ({"x": [torch.ones(2), 3], "name": "a"}, None),
        (Pair(torch.ones(2), torch.ones(2)), None),
        ((1, "a"), "no tensors"),
        ([torch.ones(2), object()], "a batch has a object"),
        (torch.ones(2).to_sparse(), "no dense tensor"),
        (torch.nn.Parameter(torch.ones(2)), "a batch has a Parameter"),
    ],
)
def test_what_can_be_pinned(gpu: None, batch: Any, reason: str | None) -> None:
    found = pin_refusal(batch)
    assert found == reason if reason is None else reason in (found or "")


def test_what_is_pinned_or_on_the_gpu_is_not_pinned_again(gpu: None) -> None:
    assert pin_refusal(torch.ones(2).pin_memory()) == "the script does it itself"
    assert (
        pin_refusal([torch.ones(2), torch.ones(2, device="cuda")]) == "batches lie on cuda already"
    )
