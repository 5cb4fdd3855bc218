"""What was gained is measured in turns, with a number of pairs that nothing measured decides."""

import math
import re
import statistics
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_api.quantities import format_ratio
from gpujob_api.settings import OptimizeMode, Precision, Settings
from gpujob_worker.inject.fused_optimizer import OptimizerCopy
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.probe.compare import PAIRS_MAX, PAIRS_MIN, Speedup, measure_pairs, speedup
from gpujob_worker.probe.side_effects import RandomStates
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune import gain
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.trial import AcceptanceRule
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = pytest.mark.timeout(240)

BFLOAT16 = Applied(RootPlan(autocast=torch.bfloat16))


def test_turns_alternate_and_their_number_is_fixed() -> None:
    turns: list[str] = []
    seconds = iter([4.0, 2.0, 2.2, 4.0, 4.0, 1.8, 100.0, 1.0])

    def run(name: str) -> float:
        turns.append(name)
        return next(seconds)

    found = measure_pairs(lambda: run("plain"), lambda: run("new"), 4)
    assert turns == ["plain", "new", "new", "plain", "plain", "new", "new", "plain"]
    assert found.pairs == 4
    assert found.low < found.ratio < found.high
    assert found.low < 1.0 < found.high, "one of four pairs says the opposite"


@pytest.mark.parametrize("pairs", [2, 5, 14, 15, 19, PAIRS_MAX, PAIRS_MAX + 5])
def test_the_interval_is_that_of_students_t(pairs: int) -> None:
    """Against the definition: the density's integral over the interval is 95 %."""
    logs = [0.1 * (-1) ** n + 0.01 * n for n in range(pairs)]
    found = speedup([math.exp(x) for x in logs], [1.0] * pairs)
    error = statistics.stdev(logs) / math.sqrt(pairs)
    quantile = (math.log(found.high) - statistics.fmean(logs)) / error
    freedom = min(pairs, PAIRS_MAX) - 1
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2))
    steps = 20_000
    width = quantile / steps
    inside = sum(
        (1 + ((n + 0.5) * width) ** 2 / freedom) ** (-(freedom + 1) / 2) for n in range(steps)
    )
    assert 2 * inside * width * scale / math.sqrt(freedom * math.pi) == pytest.approx(
        0.95, abs=2e-4
    )


def test_the_text_of_a_far_slower_candidate_has_its_numbers() -> None:
    found = speedup([0.001, 0.0011], [1.0, 1.2])
    assert str(found) == "0.000957x (95 % 0.000551 to 0.00166, 2 pairs)"


class GPU:
    """Seconds of a run by its plan, and which plans ran."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, plain: float, chosen: float) -> None:
        self.ran: list[bool] = []

        def seconds(probe: Any, plan: RootPlan) -> float:
            del probe
            self.ran.append(plan == RootPlan())
            return plain if self.ran[-1] else chosen

        monkeypatch.setattr(RootProbe, "seconds", seconds)


def tuner(
    mode: OptimizeMode = OptimizeMode.AUTO, *, limited: bool = False, seconds: float = 0.0
) -> Tuner:
    facts = ScriptFacts(memory_limited=limited)
    made = Tuner(Settings(mode=mode), Features(), DecisionLog(), seconds, facts)
    made.applied = BFLOAT16
    return made


@pytest.mark.parametrize(
    ("plain", "pairs"), [(0.002, gain.GAIN_PAIRS), (0.6, 6), (5.0 / PAIRS_MIN, None), (60.0, None)]
)
def test_as_many_pairs_as_there_is_time_for(
    plain: float, pairs: int | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them, where so few fit that they would say nothing."""
    gpu = GPU(monkeypatch, plain, plain / 3)
    found = tuner().gain(*root_and_call(Model().to(device)))
    assert (found.pairs if found is not None else None) == pairs
    if found is not None:
        assert (found.ratio, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))
        assert gpu.ran.count(True) == gpu.ran.count(False)


def test_where_nothing_is_applied_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = GPU(monkeypatch, 0.2, 0.1)
    nothing = tuner()
    nothing.applied = Applied(loader_workers=2)
    memory = tuner(limited=True)
    memory.applied = Applied(RootPlan(rows_per_step=4), activation_checkpointing=True)
    for made in (nothing, tuner(OptimizeMode.RECOMMEND), memory):
        assert made.gain(*root_and_call(Model())) is None
    assert gpu.ran == []


def test_a_memory_limit_is_kept_on_both_sides(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[RootPlan] = []

    def run(probe: Any, plan: RootPlan) -> float:
        del probe
        plans.append(plan)
        return 0.01

    monkeypatch.setattr(RootProbe, "seconds", run)
    made = tuner(limited=True)
    made.applied = Applied(RootPlan(autocast=torch.bfloat16, rows_per_step=4))
    assert made.gain(*root_and_call(Model().to(device))) is not None
    assert {plan.rows_per_step for plan in plans} == {4}
    assert {plan.autocast for plan in plans} == {None, torch.bfloat16}


def test_the_optimizers_kernel_counts_where_it_was_chosen(device: str) -> None:
    torch.manual_seed(1)
    model = Model().to(device)
    root, call = root_and_call(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model(call.inputs.leaves[0]).square().mean().backward()
    optimizer.step()
    before = [parameter.clone() for parameter in model.parameters()]
    state = RandomStates()
    made = tuner(seconds=600.0)
    made.applied = Applied(RootPlan(autocast=torch.bfloat16), fused=True)
    found = made.gain(root, call, [optimizer])
    assert found is not None
    assert found.pairs == gain.GAIN_PAIRS
    assert all(map(torch.equal, model.parameters(), before))
    assert not state.drawn
    assert optimizer.param_groups[0]["fused"] is None


def test_no_copy_of_the_optimizer_lies_beside_the_activations(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: weakref.WeakSet[OptimizerCopy] = weakref.WeakSet()
    steps, beside = 0, 0

    class Copy(OptimizerCopy):
        def step_seconds(self) -> float:
            nonlocal steps
            copies.add(self)
            steps += 1
            return 0.3 if self.optimizer.param_groups[0]["fused"] else 0.6

    def run(probe: Any, plan: RootPlan) -> float:
        nonlocal beside
        del probe, plan
        beside += len(copies)
        return 0.1

    monkeypatch.setattr(gain, "OptimizerCopy", Copy)
    monkeypatch.setattr(RootProbe, "seconds", run)
    model = Model().to(device)
    made = tuner(seconds=600.0)
    made.applied = Applied(fused=True)
    found = made.gain(*root_and_call(model), [torch.optim.Adam(model.parameters())])
    assert found is not None
    assert found.ratio == pytest.approx(0.7 / 0.4), "the optimizer's step counts in each run"
    assert steps >= 2 * gain.GAIN_PAIRS
    assert beside == 0


def test_a_measurement_that_fails_is_said(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(probe: Any, plan: RootPlan) -> float:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(RootProbe, "seconds", run)
    log = DecisionLog()
    made = Tuner(Settings(precision=Precision.BFLOAT16), Features(), log, 1.0)
    made.applied = BFLOAT16
    assert made.gain(*root_and_call(Model().to(device))) is None
    assert log.line("speed-up").startswith("speed-up skipped: measuring failed: ")


@pytest.mark.parametrize("mode", list(OptimizeMode))
def test_a_recommendation_has_no_factor(mode: OptimizeMode) -> None:
    log = DecisionLog()
    decision = AcceptanceRule(Settings(mode=mode), log, 1.0)
    faster = Speedup(1.42, 1.38, 1.46, 10)
    slower = Speedup(0.97, 0.93, 1.01, 12)
    assert decision.decide("a", faster, "close", True, False)
    assert not decision.decide("b", slower, "close", True, False)
    decision.skip_slower("c", "bfloat16", 3.2, "cpu")
    if mode is OptimizeMode.RECOMMEND:
        assert log.lines == (
            "a recommended: faster beyond noise, 10 pairs of runs; close",
            "b skipped: not faster beyond noise: 12 pairs of runs; close",
            "c skipped: bfloat16 is far slower on cpu",
        )
    else:
        assert log.line("c") == "c skipped: bfloat16 is 3.2 times slower on cpu"


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(sys.argv[1])
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
x = torch.randn(64, 8).to(sys.argv[1])
for i in range(20):
    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()
"""
ON_BOTH = pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])
# A speed-up in any of the words that we have for one.
FACTOR = re.compile(r"[0-9]x\b|times (as|slower|faster)|speed-?up [0-9a]", re.IGNORECASE)


def reported(folder: Path, gpu: GpuModel | None, settings: dict[str, str]) -> WorkerRun:
    """Its page is in the folder `page`."""
    script = folder / "train.py"
    script.write_text(SCRIPT)
    code, run = run_worker(
        folder,
        ["python", str(script), "cpu" if gpu is None else "cuda"],
        settings=settings,
        options=("--explain", "--report-directory", str(folder / "page")),
        gpu=gpu,
    )
    assert code == 0, run.errors
    return run


@ON_BOTH
@pytest.mark.parametrize("mode", ["Recommend", "Off"])
def test_no_speed_up_is_shown_where_nothing_is_applied(
    mode: str, gpu: GpuModel | None, tmp_path: Path
) -> None:
    run, page = reported(tmp_path, gpu, {"mode": mode, "precision": "bfloat16"}), tmp_path / "page"
    shown = run.errors + (page / "report.md").read_text() + (page / "report.json").read_text()
    assert "speedup" not in run.report
    assert FACTOR.findall(shown) == []
    assert ("precision recommended: asked for, " in shown) is (mode == "Recommend")


@ON_BOTH
def test_a_speed_up_comes_with_its_interval(gpu: GpuModel | None, tmp_path: Path) -> None:
    settings = {"mode": "Auto", "precision": "bfloat16", "compile": "Off", "dataLoading": "Off"}
    run, page = reported(tmp_path, gpu, settings), tmp_path / "page"
    gain = run.report["speedup"]
    assert gain["low"] <= gain["ratio"] <= gain["high"]
    assert gain["pairs"] >= 5
    ratio, low, high = (format_ratio(gain[name]) for name in ("ratio", "low", "high"))
    text = f"{ratio}x (95 % {low} to {high}, "
    assert any(f"speed-up {text}" in line for line in run.report["explain"])
    times = f"{ratio} times as fast (95 % {low} to {high}, "
    assert times in (page / "report.md").read_text()
