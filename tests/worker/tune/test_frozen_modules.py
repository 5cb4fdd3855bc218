"""A module of which nothing learns runs in bfloat16 where that is close and faster."""

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import OptimizeMode, Precision, Settings
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.frozen import FrozenRoot
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.wrapped_module import RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.frozen_modules import FrozenModules
from tests.harness.imitated_gpu import FAST_HALF, CostModel, GpuModel, installed
from tests.harness.worker_process import run_alone, run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]


@pytest.fixture
def gpu() -> Generator[None]:
    with installed(FAST_HALF):
        yield


class Wrong(nn.Linear):
    """Another layer in another type."""

    def forward(self, input: Any) -> Any:  # noqa: A002 - as torch has it
        out = super().forward(input)
        return out if out.dtype is torch.float32 else out * 1.2


def teacher(last: type[nn.Linear] = nn.Linear) -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(16, 64), nn.Tanh(), last(64, 64), nn.Tanh(), nn.Linear(64, 8))
    return nn.Sequential(*layers).requires_grad_(False).to("cuda")


def chosen(
    module: nn.Module,
    settings: Settings | None = None,
    facts: ScriptFacts | None = None,
    *,
    learns: bool = False,
) -> tuple[FrozenRoot, str]:
    root, said = FrozenRoot(module, lambda: False), DecisionLog()
    root.install()
    root.recording = True
    x = torch.randn(32, 16, device="cuda").requires_grad_(learns)
    with torch.set_grad_enabled(learns):
        module(x)
    made = FrozenModules(settings or Settings(), Features(), facts or ScriptFacts(), 60.0)
    root.plan = made.choose(root, said)
    return root, said.line("precision")


def is_lower(module: nn.Module, x: torch.Tensor) -> bool:
    """Whether the module computed in bfloat16, though its output is float32."""
    seen: list[torch.dtype] = []
    handle = module[0].register_forward_hook(lambda _l, _i, out: seen.append(out.dtype))  # type: ignore[operator]
    with torch.no_grad():
        assert module(x).dtype is torch.float32
    handle.remove()
    return seen == [torch.bfloat16]


def test_a_teacher_runs_in_bfloat16(gpu: None) -> None:
    module = teacher()
    root, said = chosen(module)
    assert "precision applied: " in said
    assert "bfloat16 autocast, outputs differ by 0." in said
    x = torch.randn(32, 16, device="cuda")
    assert is_lower(module, x)
    assert root.recorded is None, "no batch is kept"
    module.requires_grad_(True)
    assert not is_lower(module, x), "the script began to train it"
    root.remove()


def test_no_call_that_was_not_tried_changes(gpu: None) -> None:
    module = teacher()
    root, _ = chosen(module)
    x = torch.randn(32, 16, device="cuda")
    with torch.enable_grad():
        learning = x.clone().requires_grad_()
        module(learning).sum().backward()
    assert learning.grad is not None
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert module(x).dtype is torch.bfloat16, "as the script's own autocast has it"
    nested = FrozenRoot(module, lambda: True)
    nested.plan = root.plan
    root.remove()
    nested.install()
    assert not is_lower(module, x), "inside a trained module its plan is in force"
    nested.remove()


@pytest.mark.parametrize(
    ("settings", "facts", "reason"),
    [
        (Settings(precision=Precision.FLOAT32), ScriptFacts(), "float32 was asked for"),
        (Settings(precision=Precision.FLOAT16), ScriptFacts(), "float16 was asked for"),
        (Settings(), ScriptFacts(memory_limited=True), "count against the memory limit"),
        (Settings(), ScriptFacts(processes=2), "2 processes could measure"),
    ],
)
def test_what_speaks_against_it_is_said(
    settings: Settings, facts: ScriptFacts, reason: str, gpu: None
) -> None:
    root, said = chosen(teacher(), settings, facts)
    assert reason in said
    assert root.plan == RootPlan()
    root.remove()


def test_gradients_that_pass_are_a_reason_against_it(gpu: None) -> None:
    root, said = chosen(teacher(), learns=True)
    assert said == "precision skipped: gradients pass through it, which no trial compares"
    assert root.plan == RootPlan()
    root.remove()


def test_what_is_wrong_in_bfloat16_runs_as_written(gpu: None) -> None:
    root, said = chosen(teacher(Wrong))
    assert "precision skipped: numbers disagree: bfloat16 autocast, outputs differ by " in said
    assert root.plan == RootPlan()
    root.remove()


def test_what_is_not_faster_runs_as_written() -> None:
    even = GpuModel(cost=CostModel(scripted={"addmm": 0.02, "mm": 0.02}))
    with installed(even):
        root, said = chosen(teacher())
        assert "not faster beyond noise" in said
        assert root.plan == RootPlan()
        root.remove()


def test_a_recommendation_changes_nothing(gpu: None) -> None:
    root, said = chosen(teacher(), Settings(mode=OptimizeMode.RECOMMEND))
    assert "precision recommended: " in said
    assert root.plan == RootPlan()
    root.remove()


def test_modules_of_which_nothing_learns_are_found() -> None:
    """Also those without gradients; a loss without parameters is none, nor is a part of one."""
    frozen, learning = nn.Sequential(nn.Linear(2, 2)).requires_grad_(False), nn.Linear(2, 2)
    found: list[nn.Module] = []

    def meet(module: nn.Module) -> FrozenRoot:
        found.append(module)
        root = FrozenRoot(module, lambda: False)
        root.install()
        return root

    discovery = Discovery(lambda _: None, (), meet)
    discovery.start()
    try:
        for _ in range(3):
            with torch.no_grad():
                target = frozen(torch.randn(4, 2))
            nn.MSELoss()(learning(target), target)
    finally:
        discovery.finish()
        vars(frozen).pop("_compiled_call_impl", None)
    assert found == [frozen]


SCRIPT = """
import json, sys, torch; from torch import nn; from torch.nn import functional as F
torch.manual_seed(0); gpu = torch.device("cuda"); TYPES = set()
class Teacher(nn.Sequential): pass
t = Teacher(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
t.requires_grad_(False).to(gpu)
s = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)).to(gpu)
class Seen(nn.Tanh):
    def forward(self, x): TYPES.add(str(x.dtype)); return super().forward(x)
t[1] = Seen()
opt = torch.optim.SGD(s.parameters(), 0.1)
for i in range(40):
    x = torch.randn(32, 16).to(gpu)
    with torch.no_grad(): y = t(x)
    opt.zero_grad(); loss = F.mse_loss(s(x), y); loss.backward(); opt.step()
    if i == 30: TYPES.clear()
print(json.dumps([loss.item(), sorted(TYPES)]))
"""
OPTIONS = ("--explain", "--tuning-seconds", "30", "--no-optimizer", "--no-attention")


@pytest.mark.parametrize("precision", ["Auto", "float32"])
def test_a_distillation_learns_the_same_with_a_faster_teacher(
    precision: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    code, run = run_worker(
        tmp_path / "run",
        ["python", str(path)],
        settings={"precision": precision},
        options=OPTIONS,
        gpu=FAST_HALF,
    )
    assert code == 0, run.errors
    loss, types = json.loads(run.output)
    lower = precision == "Auto"
    assert types == (["torch.bfloat16"] if lower else ["torch.float32"]), run.errors
    said = "applied: " if lower else "skipped: float32 was asked for"
    assert f"precision of frozen Teacher {said}" in run.errors
    plain = tmp_path / "plain.py"
    plain.write_text(SCRIPT.replace('"cuda"', '"cpu"'))
    _, alone = run_alone(tmp_path / "alone", [str(plain)])
    assert loss == pytest.approx(json.loads(alone.output)[0], rel=0.02), run.errors
