"""What the worker does on a real GPU: gains, limits, scripts that use CUDA in ways of their own."""

import re
import statistics
from pathlib import Path

import pytest
import torch

from gpujob_api.quantities import GIB
from tests.harness.repository import ROOT
from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
GPT = str(ROOT / "bench" / "workloads" / "gpt2.py")
LOSS = re.compile(r"^step \d+ loss (\S+)$", re.MULTILINE)


def losses(run: WorkerRun) -> list[float]:
    return [float(loss) for loss in LOSS.findall(run.output)]


def trained(folder: Path, *, alone: bool) -> WorkerRun:
    arguments = [GPT, "--size", "full", "--steps", "200"]
    if alone:
        code, run = run_alone(folder, arguments)
    else:
        code, run = run_worker(
            folder,
            ["python", *arguments],
            settings={"compile": "Off"},
            options=("--explain", "--tuning-seconds", "30"),
        )
    assert code == 0, run.errors
    return run


def mean_of_last(run: WorkerRun) -> float:
    return statistics.fmean(losses(run)[-16:])


def test_a_language_model_gets_faster_and_learns_the_same(tmp_path: Path) -> None:
    """As far as two runs of the script alone do: its kernels add up in no fixed order."""
    alone = [trained(tmp_path / f"alone-{number}", alone=True) for number in range(2)]
    run = trained(tmp_path / "auto", alone=False)
    print(run.errors, run.report)
    for one in (*alone, run):
        print([round(loss, 3) for loss in losses(one)])
    assert "bfloat16 autocast, the last layer in TF32" in run.errors
    ends = [mean_of_last(one) for one in alone]
    noise = abs(ends[0] - ends[1])
    assert mean_of_last(run) == pytest.approx(statistics.fmean(ends), abs=2 * noise, rel=0.01)
    assert run.report["speedup"]["ratio"] > 1.5


def test_a_memory_limit_is_kept_by_smaller_parts(tmp_path: Path) -> None:
    """As the driver counts the process's memory. The script alone takes more than twice as much."""
    limit = 8 * GIB
    code, run = run_worker(
        tmp_path,
        ["python", GPT, "--size", "full", "--steps", "40"],
        settings={"compile": "Off", "precision": "float32", "dataLoading": "Off"},
        options=("--explain", "--tuning-seconds", "30"),
        environment={"GPUJOB_MEMORY_LIMIT_BYTES": str(limit)},
    )
    print(run.errors, run.report)
    assert code == 0
    assert run.report["current"]["peakMemoryBytes"] <= limit


OWN_GRAPH = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 8)).cuda()
opt = torch.optim.Adam(net.parameters(), lr=1e-3, capturable=True)
x, y = torch.randn(64, 256, device="cuda"), torch.randn(64, 8, device="cuda")
def step():
    opt.zero_grad(set_to_none=True)
    loss = (net(x) - y).square().mean()
    loss.backward()
    opt.step()
    return loss
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3): step()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): loss = step()
for i in range(300): x.normal_(); graph.replay()
print("loss", loss.item())
"""
OWN_SCALER = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
                    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scaler = torch.amp.GradScaler("cuda")
x, y = torch.randn(64, 3, 64, 64, device="cuda"), torch.randint(10, (64,), device="cuda")
for i in range(200):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
print("loss", loss.item())
"""
SIDE_STREAM = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(8192, 512))
loader = torch.utils.data.DataLoader(data, batch_size=256, shuffle=True, pin_memory=True)
copies = torch.cuda.Stream()
step = 0
while step < 200:
    for (x,) in loader:
        with torch.cuda.stream(copies): x = x.cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        x.record_stream(torch.cuda.current_stream())
        loss = (net(x) - x).square().mean()
        opt.zero_grad(); loss.backward(); opt.step(); step += 1
print("loss", loss.item())
"""
COMPILED = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
compiled = torch.compile(net, mode="reduce-overhead")
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
x = torch.randn(256, 512, device="cuda")
for i in range(200):
    torch.compiler.cudagraph_mark_step_begin()
    loss = (compiled(x) - x).square().mean()
    opt.zero_grad(); loss.backward(); opt.step()
print("loss", loss.item())
"""
SCRIPTS = {
    "own graph": OWN_GRAPH,
    "own scaler": OWN_SCALER,
    "side stream": SIDE_STREAM,
    "compiled": COMPILED,
}


@pytest.mark.parametrize("mode", ["Auto", "Recommend"])
@pytest.mark.parametrize("name", list(SCRIPTS))
def test_scripts_with_ways_of_their_own_run_as_without_us(
    name: str, mode: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPTS[name])
    code, alone = run_alone(tmp_path / "alone", [str(script)])
    assert code == 0, alone.errors
    code, run = run_worker(
        tmp_path / "run",
        ["python", str(script)],
        settings={"mode": mode},
        options=("--explain", "--tuning-seconds", "12"),
    )
    print(run.errors, run.report)
    assert code == 0
    expected, found = (float(one.output.split()[-1]) for one in (alone, run))
    assert found == pytest.approx(expected, rel=0.0 if mode == "Recommend" else 0.02)


def test_the_context_is_what_the_driver_counts_beside_the_allocator() -> None:
    from gpujob_worker.device.cuda_context import gpu_context

    held = torch.zeros(1024, 1024, device="cuda")
    context = gpu_context(str(torch.cuda.get_device_properties(0).uuid))
    assert context is not None
    beside = context.beside_bytes(torch.cuda.memory_reserved())
    assert held.is_cuda
    assert beside is not None
    assert 0.1 * GIB < beside < 2 * GIB
