"""A device runs what was queued: steps are timed by its own clock, and nothing waits for it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_worker.control.rollback_guard import LaterNumber
from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.device.step_events import CudaEvents
from gpujob_worker.run.meter import SPANS_MAX, Meter
from tests.harness.imitated_gpu import CostModel, GpuModel, installed
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

DEVICE_0 = torch.device("cuda", 0)
HOST, DEVICE = 0.03, 0.22
# Forward and backward take 0.22 s in every type, but for what `FASTER` gives bfloat16.
STEP = {"addmm": 0.03, "mm": 0.16 / 3}
FASTER = 0.9
GPU = GpuModel(cost=CostModel(scripted=STEP, by_type={torch.bfloat16: FASTER}))
SCRIPT = """
import json, sys, time, torch
from torch import nn
from tests.harness.imitated_gpu.tensor import DeviceTensor
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(32, 8, device="cuda"); y = torch.randint(4, (32,), device="cuda")
waits, losses, seconds = [], [], 0.03
for i in range(60):
    time.sleep(seconds)
    loss = nn.functional.cross_entropy(net(x), y); opt.zero_grad(); loss.backward()
    BODY
    waits.append(DeviceTensor.gpu.clock.waits)
print(json.dumps(waits))
"""


def trained(folder: Path, body: str, gpu: GpuModel = GPU) -> tuple[WorkerRun, dict[str, Any]]:
    script = folder / "train.py"
    script.write_text(SCRIPT.replace("    BODY", body.replace("\n", "\n    ")))
    settings = {"compile": "Off"}
    code, run = run_worker(folder, ["python", str(script)], settings=settings, gpu=gpu)
    assert code == 0, run.errors
    return run, run.report


READS_FIRST = "    if i < 8: loss.item()\nopt.step()"
READS_LATER = "    opt.step()\nif i >= 8: loss.item()"
NEVER_READS = "    opt.step()"


@pytest.mark.parametrize(
    ("body", "before", "after"),
    [
        # Whoever reads the loss in each step waits for the device, then the device for the host.
        (READS_FIRST, HOST + DEVICE, FASTER * DEVICE),
        (READS_LATER, DEVICE, HOST + FASTER * DEVICE),
        (NEVER_READS, DEVICE, FASTER * DEVICE),
    ],
)
def test_steps_take_the_devices_time(
    body: str, before: float, after: float, tmp_path: Path
) -> None:
    """By the host's clock they took 0.03 or 0.25 s a step, and the second script lost bfloat16."""
    _, report = trained(tmp_path, body)
    assert report["baseline"]["stepSeconds"] == pytest.approx(before, rel=0.02)
    assert report["current"]["stepSeconds"] == pytest.approx(after, rel=0.02)
    assert not [line for line in report["explain"] if line.startswith("roll-back")]
    assert report["tuned"]["precision"] == "bfloat16"


def test_where_nothing_is_faster_nothing_is_said_to_be(tmp_path: Path) -> None:
    """The host runs ahead of the device: by its clock steps seem to get shorter, though nothing was
    changed."""
    _, report = trained(
        tmp_path, "    opt.step()\nloss.item()", GpuModel(cost=CostModel(scripted=STEP))
    )
    for timing in ("baseline", "current"):
        assert report[timing]["stepSeconds"] == pytest.approx(HOST + DEVICE, rel=0.02)
    assert report["tuned"].get("precision", "float32") == "float32"
    assert "speedup" not in report


def test_nothing_waits_for_the_device_in_steady_state(tmp_path: Path) -> None:
    run, report = trained(tmp_path, "    opt.step()\nif i == 25: y.fill_(0)")
    waits = json.loads(run.output)
    # The tuning is after step 7, what it chose is confirmed at step 17; the loss is read at 27, 47.
    assert waits[18] == waits[-1]
    assert report["loss"] > 0


def test_a_loss_that_is_lost_is_seen_later(tmp_path: Path) -> None:
    lost = "    opt.step()\nif i == 22:\n    x.fill_(float('nan'))\n    seconds = 0.5"
    run, report = trained(tmp_path, lost)
    assert "roll-back to plain settings: the loss is not finite any more" in report["explain"]
    waits = json.loads(run.output)
    assert waits[-1] - waits[18] <= 1, "a window of steps ends, and waits for its last one"


def test_waiting_for_data_counts_as_far_as_the_device_has_nothing_to_do(tmp_path: Path) -> None:
    loads = """    if i == 0:
    class Slow(torch.utils.data.Dataset):
        def __len__(self): return 64
        def __getitem__(self, at): time.sleep(LOADING); return at
    batches = iter(torch.utils.data.DataLoader(Slow()))
    seconds = 0.0
next(batches)
opt.step()"""
    for loading, wait_percent in ((0.15, 0.0), (0.66, 66.7)):
        folder = tmp_path / str(loading)
        folder.mkdir()
        _, report = trained(
            folder, loads.replace("LOADING", str(loading)), GpuModel(cost=CostModel(scripted=STEP))
        )
        assert report["dataWaitPercent"] == pytest.approx(wait_percent, abs=1.5)
        assert report["baseline"]["stepSeconds"] == pytest.approx(max(loading, DEVICE), rel=0.03)


def test_our_own_work_is_no_part_of_a_step() -> None:
    """Neither what the device does for it, nor what the device waits meanwhile."""
    with installed(GpuModel(cost=CostModel(scripted={"mm": 0.1}))) as gpu:
        meter, x = Meter(CpuMemory()), torch.ones(2, 2, device="cuda")
        meter.use_events(CudaEvents(torch.cuda, DEVICE_0))
        for _ in range(4):
            _ = x @ x
            meter.step_done()
            with meter.paused():
                _ = x @ x
                torch.cuda.synchronize()
                gpu.clock.host_works(0.5)
        meter.settle()
        assert list(meter.window.seconds) == pytest.approx([0.1] * 3, rel=0.01)


def test_our_own_work_is_no_part_of_a_wait() -> None:
    with installed(GpuModel(cost=CostModel(scripted={"mm": 0.1}))) as gpu:
        meter, x = Meter(CpuMemory()), torch.ones(2, 2, device="cuda")
        meter.use_events(CudaEvents(torch.cuda, DEVICE_0))
        for _ in range(4):
            torch.cuda.synchronize()
            meter.wait_starts()
            gpu.clock.host_works(0.02)
            with meter.paused():
                gpu.clock.host_works(0.5)
            gpu.clock.host_works(0.03)
            meter.waited(0.55)
            _ = x @ x
            meter.step_done()
        meter.settle()
        assert list(meter.window.seconds) == pytest.approx([0.15] * 3, rel=0.01)
        assert meter.window.wait_seconds == pytest.approx(3 * 0.05, rel=0.01)


def test_the_latency_of_a_call_is_the_devices() -> None:
    """The host only launches the call, and is far ahead."""
    with installed(GpuModel(cost=CostModel(scripted={"mm": 0.1}))) as gpu:
        meter, x = Meter(CpuMemory()), torch.ones(2, 2, device="cuda")
        meter.use_events(CudaEvents(torch.cuda, DEVICE_0))
        for _ in range(4):
            gpu.clock.host_works(0.01)
            meter.call_starts()
            _ = x @ x
            meter.call_ends(2)
            meter.step_done()
        assert not meter.window.call_seconds, "nothing waits for the device"
        meter.settle()
        assert list(meter.window.call_seconds) == pytest.approx([0.1] * 4, rel=0.01)
        timing = meter.window.timing(None)
        assert timing is not None
        assert timing.samples_per_second == pytest.approx(20.0, rel=0.01)


def test_a_step_that_is_captured_is_not_measured() -> None:
    with installed(GpuModel(cost=CostModel(scripted={"mm": 0.1}))):
        meter, x = Meter(CpuMemory()), torch.ones(2, 2, device="cuda")
        meter.use_events(CudaEvents(torch.cuda, DEVICE_0))
        graph = torch.cuda.CUDAGraph()
        meter.step_done()
        with torch.cuda.graph(graph):
            meter.wait_starts()
            _ = x @ x
            meter.waited(0.0)
            meter.step_done()
            with meter.paused():
                pass
        for _ in range(3):
            graph.replay()
            meter.step_done()
        meter.settle()
        assert list(meter.window.seconds) == pytest.approx([0.1, 0.1], rel=0.01)


def test_a_script_that_captures_its_steps_trains(tmp_path: Path) -> None:
    """Nothing of the worker waits in the capture, nor becomes a part of the graph."""
    captured = """    opt.step()
if i == 20:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        nn.functional.cross_entropy(net(x), y).backward(); opt.step()
if i > 20: graph.replay()"""
    _, report = trained(tmp_path, captured)
    assert report["tuned"]["precision"] == "bfloat16"


def test_marks_are_bounded() -> None:
    with installed() as gpu:
        meter = Meter(CpuMemory())
        meter.use_events(CudaEvents(torch.cuda, DEVICE_0))
        meter.step_done()
        for _ in range(2 * SPANS_MAX):
            meter.wait_starts()
            gpu.clock.host_works(0.01)
            meter.waited(0.01)
        meter.step_done()
        meter.settle()
        assert meter.timed.wait_seconds == pytest.approx(0.01 * SPANS_MAX, rel=0.01)


def test_a_number_is_read_once_the_device_has_come_to_it() -> None:
    with installed(GpuModel(cost=CostModel(scripted={"mm": 0.1}))) as gpu:
        x, events = torch.full((1, 1), 3.0, device="cuda"), CudaEvents(torch.cuda, DEVICE_0)
        number = LaterNumber((x @ x).sum(), events)
        assert not number.ready
        assert gpu.clock.waits == 0
        gpu.clock.host_works(0.2)
        assert number.ready
        assert number.value() == 9
        assert gpu.clock.waits == 0
        assert LaterNumber(torch.tensor(2.5), None).ready
