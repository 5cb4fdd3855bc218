"""A GPU's allocator fails at the limit: probes that meet it are made smaller, real steps do not."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Settings
from gpujob_worker.device.cuda_context import limit_allocator
from gpujob_worker.device.memory import CudaMemory
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import GpuModel, ImitatedGpu, installed
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]
MIB = 2**20
CONTEXT_BYTES = 16 * MIB
WIDTH, ROWS, DEPTH = 2048, 1024, 10
# Of the results of all layers.
KEPT_BYTES = DEPTH * ROWS * WIDTH * 4


class Context:
    """What the process takes of the GPU beside torch's allocator."""

    def beside_bytes(self, reserved_bytes: int) -> int:
        del reserved_bytes
        return CONTEXT_BYTES


class Scales(nn.Module):
    """Keeps much for backward, and computes little."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, DEPTH * WIDTH).view(DEPTH, WIDTH))

    def forward(self, x: Any) -> Any:
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x.mean(1)


class Normalized(nn.Sequential):
    """Learns from the whole batch, so it is never split."""

    def __init__(self) -> None:
        super().__init__(*(one for _ in range(3) for one in (nn.BatchNorm1d(WIDTH), nn.Tanh())))


@pytest.fixture
def gpu() -> Generator[ImitatedGpu]:
    with installed(GpuModel(memory_bytes=2048 * MIB)) as found:
        yield found


def limited(
    limit: int, module: nn.Module
) -> tuple[Root, RecordedCall, MemoryFit, Tuner, DecisionLog]:
    """The allocator fails above the limit, as in a run."""
    torch.manual_seed(0)
    root = Root(module.to("cuda"), lambda _: None)
    root.install()
    call = RecordedCall(CallInputs.of((torch.randn(ROWS, WIDTH, device="cuda"),), {}))
    log = DecisionLog()
    tuner = Tuner(Settings(), Features(), log, 1.0)
    memory = CudaMemory(torch.cuda, Context())
    limit_allocator(torch.cuda, limit, memory.measure_context)
    return root, call, MemoryFit(memory, log, tuner, limit), tuner, log


def step(root: Root, call: RecordedCall) -> list[torch.Tensor]:
    root.module.zero_grad()
    root.module(call.inputs.leaves[0]).square().mean().backward()
    return [p.grad.cpu() for p in root.module.parameters() if p.grad is not None]


def test_probes_that_meet_the_limit_are_made_smaller_and_steps_keep_it(gpu: ImitatedGpu) -> None:
    """A quarter of the batch, the largest probe, does not fit beside the batch itself."""
    limit = CONTEXT_BYTES + KEPT_BYTES // 2
    root, call, fit, tuner, log = limited(limit, Scales())
    fit.fit(root, call)
    assert torch.cuda.memory_stats()["num_ooms"] > 0, "a probe did meet the limit"
    rows = tuner.applied.plan.rows_per_step
    assert rows is not None, log.lines
    assert 32 <= rows <= ROWS // 8
    met = torch.cuda.memory_stats()["num_ooms"]
    root.plan = tuner.applied.plan
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    split = step(root, call)
    assert torch.cuda.memory_stats()["num_ooms"] == met
    assert torch.cuda.max_memory_reserved() + CONTEXT_BYTES <= limit
    root.plan = RootPlan()
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        step(root, call)
    torch.cuda.set_per_process_memory_fraction(1.0)
    for ours, whole in zip(split, step(root, call), strict=True):
        torch.testing.assert_close(ours, whole, rtol=1e-4, atol=1e-7)


def test_batch_norm_keeps_the_limit_by_checkpointing(gpu: ImitatedGpu) -> None:
    limit = CONTEXT_BYTES + 3 * KEPT_BYTES // 2
    blocks = [Normalized() for _ in range(4)]
    root, call, fit, tuner, log = limited(limit, nn.Sequential(*blocks))
    fit.fit(root, call)
    assert tuner.applied.activation_checkpointing, log.lines
    assert tuner.applied.plan.rows_per_step is None
    apply_settings(root, None, tuner.applied)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    ours = step(root, call)
    assert torch.cuda.max_memory_reserved() + CONTEXT_BYTES <= limit
    assert [int(count) for name, count in root.module.named_buffers() if "num" in name] == [1] * 12
    apply_settings(root, None, Applied())
    with pytest.raises(torch.OutOfMemoryError):
        step(root, call)
    torch.cuda.set_per_process_memory_fraction(1.0)
    assert all(map(torch.equal, ours, step(root, call)))


def test_activations_in_pinned_memory_take_none_of_the_gpu(gpu: ImitatedGpu) -> None:
    root, call, *_ = limited(2048 * MIB, Scales())
    peaks: list[int] = []
    gradients: list[list[torch.Tensor]] = []
    for plan in (RootPlan(), RootPlan(activations_on_host=True)):
        root.plan = plan
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        gradients.append(step(root, call))
        peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[0] > KEPT_BYTES
    assert peaks[1] < KEPT_BYTES // 2
    assert all(map(torch.equal, *gradients))


SCRIPT = """
import json, sys, torch
from torch import nn
torch.manual_seed(0)
width, rows, depth = 2048, 1024, 10
class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, depth * width).view(depth, width))
    def forward(self, x):
        for scale in self.scales:
            x = torch.tanh(x * scale)
        return x.mean(1)
net = Scales().to("cuda"); opt = torch.optim.SGD(net.parameters(), 0.1)
x, losses = torch.randn(rows, width, device="cuda"), []
for _ in range(12):
    opt.zero_grad(); loss = (net(x) - 1).square().mean(); loss.backward(); opt.step()
    losses.append(loss.item())
stats = torch.cuda.memory_stats()
print(json.dumps([losses, stats["reserved_bytes.all.peak"], stats["num_ooms"]]))
"""


def trained(folder: Path, limit: int | None, *options: str) -> WorkerRun:
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(SCRIPT)
    _, run = run_worker(
        folder,
        ["python", str(script)],
        settings={"precision": "float32", "compile": "Off"},
        options=("--explain", *options),
        environment={} if limit is None else {"GPUJOB_MEMORY_LIMIT_BYTES": str(limit)},
        gpu=GpuModel(),
    )
    return run


def test_a_run_keeps_its_limit_from_the_first_step_on(tmp_path: Path) -> None:
    free = trained(tmp_path / "free", None)
    losses, peak, _ = json.loads(free.output)
    whole = int(free.report["baseline"]["peakMemoryBytes"])
    limit = whole - peak // 3
    run = trained(tmp_path / "tight", limit)
    assert run.process.exitcode == 0, run.errors
    split, reserved, failures = json.loads(run.output)
    assert "batch split applied: 1024 samples in steps of" in run.errors
    assert "memory limit kept: " in run.errors
    assert run.report["current"]["peakMemoryBytes"] <= limit
    assert reserved < peak - peak // 3
    assert failures == 0
    assert split == pytest.approx(losses, rel=1e-4)


def test_what_cannot_be_kept_ends_before_the_first_step(tmp_path: Path) -> None:
    options = ("--no-batch-split", "--no-offload")
    free = trained(tmp_path / "free", None)
    whole = int(free.report["baseline"]["peakMemoryBytes"])
    run = trained(tmp_path / "tight", whole - 100 * MIB, *options)
    assert run.process.exitcode == 1
    assert run.output == ""
    failure = run.report["failure"]
    assert failure["failureClass"] == "OutOfMemory"
    assert "memory limit skipped: cannot be kept: " in run.errors
    enough = trained(tmp_path / "enough", failure["neededBytes"], *options)
    assert enough.process.exitcode == 0, enough.errors
    assert enough.report["current"]["peakMemoryBytes"] <= failure["neededBytes"]
