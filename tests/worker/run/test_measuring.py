"""What is measured of a run: peaks apart, FLOP, the GPU's energy; profiles and the page."""

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.report import Efficiency, MemoryPeaks, Report, Speedup, Timing, WorkerPhase
from gpujob_api.settings import Precision
from gpujob_worker.__main__ import main
from gpujob_worker.device.gpu import GPUMeter, gpu_meter, peak_flop_per_second
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.run.meter import APART_STEPS, Meter, efficiency
from gpujob_worker.run.profiling import ProfileRequest, StepProfiler
from gpujob_worker.run.run_report import Facts, findings, markdown
from gpujob_worker.tune.flop import forced_float32, step_flop
from tests.harness.worker_process import run_worker


class Memory:
    def __init__(self) -> None:
        self.peak = 0

    def current_bytes(self) -> int:
        return self.peak

    def allocated_bytes(self) -> int:
        return self.peak

    def peak_bytes(self) -> int:
        return self.peak

    def allocated_peak_bytes(self) -> int:
        return self.peak - 1

    def reset_peak(self) -> None:
        self.peak = 0

    def trim(self) -> None: ...

    def give_back_early(self, early: bool) -> bool:
        return early

    def exact(self) -> AbstractContextManager[None]:
        return nullcontext()


class Nvml:
    """A GPU with an energy counter in mJ and a utilization."""

    def __init__(self) -> None:
        self.millijoules, self.busy = 5000.0, [20, 60]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        return uuid

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> float:  # noqa: N802
        if self.millijoules < 0:
            raise RuntimeError("not supported")
        return self.millijoules

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:  # noqa: N802
        return SimpleNamespace(gpu=self.busy.pop(0))


@pytest.mark.parametrize(
    ("device", "precision", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", Precision.BFLOAT16, 989.5),
        ("NVIDIA H100 80GB HBM3", Precision.FLOAT16, 989.5),
        ("NVIDIA H100 PCIe", Precision.FLOAT32, 51.0),
        ("NVIDIA H200", Precision.TF32, 494.5),
        ("NVIDIA A100-SXM4-80GB", Precision.BFLOAT16, 312.0),
        ("Tesla T4", Precision.FLOAT16, 65.0),
        ("Tesla T4", Precision.BFLOAT16, None),
        ("NVIDIA L40", Precision.BFLOAT16, None),
        ("cpu", Precision.FLOAT32, None),
    ],
)
def test_peaks_of_known_gpus(device: str, precision: Precision, tera: float | None) -> None:
    assert peak_flop_per_second(device, precision) == (None if tera is None else tera * 1e12)


def test_energy_and_utilization_are_the_gpus_since_the_window_began() -> None:
    nvml = Nvml()
    meter = Meter(Memory())
    meter.gpu = gpu = GPUMeter(nvml, "GPU-1")
    nvml.millijoules = 9000.0
    meter.read_memory()
    meter.read_memory()
    assert (gpu.joules, gpu.utilization_percent) == (4.0, 40.0)
    meter.read_memory()
    assert gpu.utilization_percent == 40.0, "a GPU that does not answer leaves the mean alone"
    gpu.restart()
    assert (gpu.joules, gpu.utilization_percent) == (0.0, None)
    nvml.millijoules = 10.0
    assert gpu.joules is None, "the driver was started again"
    nvml.millijoules = -1.0
    assert gpu.joules is None


def test_without_nvml_there_is_no_gpu() -> None:
    assert gpu_meter("no such GPU") is None


def test_a_step_is_set_against_the_gpus_peak() -> None:
    nvml, meter = Nvml(), Meter(Memory())
    assert efficiency(meter, None, "cpu", Precision.FLOAT32) is None
    meter.gpu = GPUMeter(nvml, "GPU-1")
    meter.window.seconds.extend([0.5, 0.5])
    nvml.millijoules = 6000.0
    found = efficiency(meter, 1e12, "NVIDIA H200", Precision.FLOAT32)
    assert found == Efficiency(1e12, 2e12, 67e12, None, 0.5)


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def call(meter: Meter, clock: Clock, seconds: float, samples: int | None, loads: float) -> None:
    clock.now += loads
    meter.call_starts()
    clock.now += seconds
    meter.call_ends(samples)
    meter.step_done()


def test_the_latency_of_a_call_leaves_out_what_comes_between_two() -> None:
    clock = Clock()
    meter = Meter(Memory(), clock)
    for number in range(101):
        call(meter, clock, 0.001 * number, 8, loads=0.05)
    timing = meter.window.timing(None)
    assert timing is not None
    latency = timing.latency
    assert latency is not None
    assert latency.calls == 101
    found = (latency.p50_milliseconds, latency.p95_milliseconds, latency.p99_milliseconds)
    assert found == pytest.approx((50.0, 95.0, 99.0))
    # From the end of one call to the end of the next one: 100 steps of 100.5 ms on average.
    assert timing.step_seconds == pytest.approx(0.1005)
    assert timing.samples_per_second == pytest.approx(8 / 0.1005)


def test_batches_of_different_sizes_count_with_their_samples() -> None:
    clock = Clock()
    meter = Meter(Memory(), clock)
    for samples in (10, 10, 10, 2):
        call(meter, clock, 0.1, samples, loads=0.0)
    timing = meter.window.timing(None)
    assert timing is not None
    assert timing.samples_per_second == pytest.approx(8 / 0.1)


def test_a_call_without_a_batch_has_a_latency_and_no_rate() -> None:
    clock = Clock()
    meter = Meter(Memory(), clock)
    for _ in range(3):
        call(meter, clock, 0.1, None, loads=0.0)
    timing = meter.window.timing(None)
    assert timing is not None
    assert timing.latency is not None
    assert timing.latency.p99_milliseconds == pytest.approx(100.0)
    assert timing.samples_per_second is None


def test_a_window_has_the_calls_of_its_own_settings() -> None:
    clock = Clock()
    meter = Meter(Memory(), clock)
    for _ in range(3):
        call(meter, clock, 0.1, 8, loads=0.0)
    meter.new_window()
    for _ in range(3):
        call(meter, clock, 0.02, 8, loads=0.0)
    timing = meter.window.timing(None)
    assert timing is not None
    assert timing.latency is not None
    assert timing.latency.p99_milliseconds == pytest.approx(20.0)
    assert timing.samples_per_second == pytest.approx(8 / 0.02)


def test_a_restarted_meter_counts_from_0() -> None:
    clock = Clock()
    meter = Meter(Memory(), clock)
    for _ in range(3):
        call(meter, clock, 0.1, 8, loads=0.0)
    meter.restart()
    assert (meter.steps, meter.timed.steps) == (0, 0)
    for _ in range(2):
        clock.now += 0.5
        meter.step_done()
    timing = meter.window.timing(4)
    assert timing is not None
    assert timing.latency is None
    assert timing.samples_per_second == pytest.approx(8.0)


def test_peaks_of_the_two_parts_are_told_apart_for_the_first_steps() -> None:
    memory = Memory()
    meter = Meter(memory)
    assert meter.window.peaks is None
    for step in range(APART_STEPS + 1):
        memory.peak = 101 + step
        meter.optimizer_starts()
        memory.peak = 51
        meter.optimizer_ends()
    assert meter.window.peaks == MemoryPeaks(100 + APART_STEPS - 1, 50)
    assert meter.window.peak_memory_bytes == 101 + APART_STEPS - 1
    assert memory.peak == 51, "later steps are left alone"


def test_flop_are_counted_without_a_trace() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    before = [t.clone() for t in module.state_dict().values()]
    call = RecordedCall(CallInputs.of((torch.randn(12, 8),), {}))
    state = torch.get_rng_state()
    found = step_flop(Root(module, lambda _: None), call)
    # Two for a multiplication and an addition; the first layer's input wants no gradient.
    assert found == 2 * 12 * (2 * 8 * 4 + 3 * 4 * 2)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(map(torch.equal, module.state_dict().values(), before))
    assert step_flop(Root(nn.PReLU(), lambda _: None), call) is None


def test_plain_float32_is_seen() -> None:
    assert forced_float32(Root(nn.Linear(2, 2), lambda _: None))
    assert not forced_float32(Root(nn.Linear(2, 2).double(), lambda _: None))
    root = Root(nn.Linear(2, 2), lambda _: None)
    root.user_autocast = True
    assert not forced_float32(root)


REPORT = Report(
    2,
    WorkerPhase.FINISHED,
    step=40,
    baseline=Timing(0.2, 2**30, 160.0),
    current=Timing(0.1, 2**29, 320.0),
    peaks=MemoryPeaks(2**20, 2**21),
    efficiency=Efficiency(1e13, 1e14, 989.5e12, 30.0, 41.5),
    data_wait_percent=3.0,
    skipped_steps=2,
    speedup=Speedup(1.84, 1.79, 1.9, 10),
    device="NVIDIA H100 80GB HBM3",
    torch_version="2.15.0",
    explain=("precision applied: 2.00x",),
)


def test_the_page_gives_reasons_in_numbers() -> None:
    facts = Facts(baseline_wait_percent=38.4, plain_float32=True)
    assert findings(REPORT, facts) == [
        "38 % of a step as written was waiting for data",
        "the GPU is busy 30 % of the time: too little work at once",
        "fp32 matmuls: the script's matrix products run in float32, of which this GPU's peak is "
        "67 TFLOP/s, of bfloat16 989.5",
        "the optimizer's step holds the memory peak (2 MiB; forward and backward 1 MiB)",
        "2 steps were skipped: float16 gradients overflowed",
    ]
    page = markdown(REPORT, facts)
    for line in (
        "NVIDIA H100 80GB HBM3, torch 2.15.0: forward and backward are 1.84 times as fast "
        "(95 % 1.79 to 1.90, 10 pairs in turns).",
        "| | first steps | latest steps |",
        "| step | 200.0 ms | 100.0 ms |",
        "| waiting for data | 38 % | 3 % |",
        "| FLOP/s | 50 TFLOP/s | 100 TFLOP/s |",
        "| of the GPU's peak |  | 10 % |",
        "| energy of a step |  | 41.5 J |",
        "- precision applied: 2.00x",
    ):
        assert line in page.splitlines(), page
    slower = markdown(replace(REPORT, speedup=Speedup(0.0041, 0.0012, 0.0139, 2)), facts)
    assert "are 0.00410 times as fast (95 % 0.00120 to 0.0139, 2 pairs in turns)." in slower
    short = markdown(replace(REPORT, speedup=None, efficiency=None, peaks=None), Facts())
    assert "no speed-up was measured" in short
    assert "times as fast" not in short
    assert findings(replace(REPORT, skipped_steps=None, peaks=None, efficiency=None), Facts()) == []


SCRIPT = """
import torch
from torch import nn
torch.manual_seed(5)
net = nn.Linear(8, 1); opt = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(16, 8)
for i in range(20):
    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()
"""


def test_a_run_leaves_a_page_and_a_profile(tmp_path: Path) -> None:
    script, page, profile = tmp_path / "train.py", tmp_path / "page", tmp_path / "profile"
    script.write_text(SCRIPT)
    options = ("--report-directory", str(page), "--profile-steps", "3")
    options = (*options, "--profile-directory", str(profile))
    code, run = run_worker(tmp_path, ["python", str(script)], options=options)
    assert code == 0, run.errors
    known = json.loads((page / "report.json").read_text())
    assert known["report"]["step"] == 20
    assert known["report"]["efficiency"]["stepFlop"] == 2 * 2 * 16 * 8
    assert known["report"]["peaks"]["optimizerBytes"] > 0
    assert "fp32 matmuls: the script's matrix products run in float32" in known["findings"]
    assert (page / "report.md").read_text().startswith("# Step 20, attempt 1")
    (trace,) = profile.glob("*.pt.trace.json")
    names = [event.get("name", "") for event in json.loads(trace.read_text())["traceEvents"]]
    assert len([name for name in names if name.startswith("Optimizer.step#SGD.step")]) == 3


def test_a_profile_that_fails_is_said_and_costs_nothing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    profiler = StepProfiler(ProfileRequest(2, blocked / "below"))
    said = [profiler.step_done(step) for step in range(1, 15)]
    assert next(text for text in said if text is not None).startswith("failed: ")
    assert profiler.close() is None


def test_the_line_for_nsys(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nsys", "--explain", "--profile-steps", "7", "--profile-directory", "out"]
    assert main([*options, "--", "python", "train.py", "a b"]) == 0
    assert capsys.readouterr().out == (
        "nsys profile --trace=cuda,nvtx,osrt,cudnn,cublas --capture-range=cudaProfilerApi "
        "--capture-range-end=stop --output out/steps gpujob-run --profile-steps 7 "
        "--profile-with cuda --explain --profile-directory out -- python train.py 'a b'\n"
    )
