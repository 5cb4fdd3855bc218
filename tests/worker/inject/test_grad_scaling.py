"""float16 with a loss scale inside the root's call: true gradients outside, skipped overflows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.settings import Precision, Settings, TunedSettings
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.grad_scaling import GROWTH_STEPS, LossScale, skip_refusal
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts, watch_gradients_of_gradients
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.tuner import Tuner
from tests.harness.worker_process import run_worker


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 3)).to(dtype)


def scaled_root(module: nn.Module, plan: RootPlan | None = None) -> tuple[Root, LossScale]:
    scale = LossScale(1024.0)
    root = Root(module, lambda _: None)
    root.install()
    root.plan = replace(plan or RootPlan(), loss_scale=scale)
    return root, scale


def all_gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """A loop's worth of what people do with gradients; two passes are accumulated."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    for number in range(2):
        torch.manual_seed(number)
        penalty = sum(p.square().sum() for p in module.parameters())
        loss = module(x).square().mean() + 0.01 * penalty
        loss.backward(retain_graph=True)
        loss.backward()
    nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    assert x.grad is not None
    return [x.grad, *(p.grad for p in module.parameters() if p.grad is not None)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_outside_sees_the_scale(dtype: torch.dtype) -> None:
    module, x = model(dtype), torch.randn(6, 6, dtype=dtype)
    expected = [g.clone() for g in all_gradients(module, x)]
    scaled_root(module)
    # A power of two leaves every bit of the mantissa as it is.
    assert all(map(torch.equal, all_gradients(module, x), expected))


def test_a_split_batch_is_scaled_too() -> None:
    module, x = model(torch.float64), torch.randn(6, 6, dtype=torch.float64)
    vars(module[2])["p"] = 0.0
    expected = [g.clone() for g in all_gradients(module, x)]
    scaled_root(module, RootPlan(rows_per_step=2))
    for ours, plain in zip(all_gradients(module, x), expected, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-14)


def test_gradients_too_small_for_float16_survive() -> None:
    module, x = model(), torch.randn(6, 6)
    root, scale = scaled_root(module, RootPlan(autocast=torch.float16))
    scale.scale = 2.0**16

    def largest() -> float:
        module.zero_grad()
        torch.manual_seed(3)
        (module(x).square().mean() * 1e-7).backward()
        return max(float(p.grad.abs().max()) for p in module.parameters() if p.grad is not None)

    scaled = largest()
    root.plan = RootPlan()
    exact = largest()
    assert scaled == pytest.approx(exact, rel=0.01)
    root.plan = RootPlan(autocast=torch.float16)
    weight = next(module.parameters())
    largest()
    assert weight.grad is not None
    lost = float((weight.grad == 0).float().mean())
    assert lost > 0.5


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    module, x = model(), torch.randn(6, 6)
    _, scale = scaled_root(module)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)

    def step(factor: float) -> None:
        optimizer.zero_grad()
        (module(x).square().mean() * factor).backward()
        scale.step_starts(optimizer)
        optimizer.step()
        scale.step_ends()

    step(1.0)
    before = [t.clone() for t in module.state_dict().values()]
    moments = [s["exp_avg"].clone() for s in optimizer.state.values()]
    step(1e38)
    assert all(map(torch.equal, module.state_dict().values(), before))
    assert all(map(torch.equal, (s["exp_avg"] for s in optimizer.state.values()), moments))
    assert all(float(s["step"]) == 1 for s in optimizer.state.values())
    assert all(p.grad is not None for p in module.parameters())
    assert (scale.scale, scale.skipped, scale.steps) == (512.0, 1, 2)
    step(1.0)
    assert not torch.equal(next(module.parameters()), before[0])
    assert str(scale) == "1 of 3 steps skipped, scale 512"


def test_two_optimizers_skip_together_and_the_scale_changes_once() -> None:
    module, x = model(), torch.randn(6, 6)
    _, scale = scaled_root(module)
    first = torch.optim.SGD(module[0].parameters(), lr=1.0)
    second = torch.optim.SGD(module[3].parameters(), lr=1.0)
    before = [p.clone() for p in module.parameters()]
    (module(x).square().mean() * 1e38).backward()
    for optimizer in (first, second):
        scale.step_starts(optimizer)
        optimizer.step()
        scale.step_ends()
    assert all(map(torch.equal, module.parameters(), before))
    assert (scale.scale, scale.skipped) == (512.0, 1)


def test_the_scale_grows_and_is_given_up() -> None:
    scale, parameter = LossScale(4.0), torch.ones(2)
    for _ in range(GROWTH_STEPS):
        scale.unscale([parameter, None])
        scale.step_ends()
    assert (scale.scale, scale.skipped, scale.hopeless) == (8.0, 0, False)
    for _ in range(4):
        scale.unscale([parameter / 0])
        scale.step_ends()
    assert scale.hopeless


def tuned_by(
    module: nn.Module, facts: ScriptFacts, wanted: Precision = Precision.FLOAT16
) -> tuple[Tuner, str]:
    log = DecisionLog()
    tuner = Tuner(Settings(precision=wanted), Features(), log, 1.0, facts)
    call = RecordedCall(CallInputs.of((torch.randn(6, 6),), {}))
    tuner.speed_items(Root(module, lambda _: None), call).choose("precision")
    return tuner, log.lines[-1]


def test_asked_for_it_is_applied_with_a_scale_that_fits() -> None:
    tuner, line = tuned_by(model(), ScriptFacts())
    assert line.startswith("precision applied: asked for")
    assert "float16 autocast, losses scaled by 65536" in line
    assert tuner.tuned().precision is Precision.FLOAT16
    assert tuner.applied.plan.loss_scale is not None
    assert tuner.applied.plan.loss_scale.steps == 0


def hooked() -> nn.Module:
    module = model()
    module[0].register_full_backward_hook(lambda *_: None)  # pyright: ignore[reportUnknownLambdaType]
    return module


LBFGS = torch.optim.LBFGS(model().parameters())


def stepped(optimizer: torch.optim.Optimizer) -> ScriptFacts:
    facts = ScriptFacts()
    facts.saw(optimizer)
    return facts


@pytest.mark.parametrize(
    ("module", "facts", "reason"),
    [
        (model(), ScriptFacts(scales_loss=True), "scales its loss itself"),
        (model(), ScriptFacts(differentiates_gradients=True), "create_graph"),
        (model(), stepped(LBFGS), "LBFGS may not skip"),
        (hooked(), ScriptFacts(), "backward hooks"),
    ],
)
def test_refusals(module: nn.Module, facts: ScriptFacts, reason: str) -> None:
    tuner, line = tuned_by(module, facts)
    assert line.startswith("precision skipped: ")
    assert reason in line
    assert tuner.applied.plan == RootPlan()


def test_only_asked_for_on_a_processor() -> None:
    _, line = tuned_by(model(), ScriptFacts(), Precision.AUTO)
    assert line == "precision float16 skipped: tried on GPUs where bfloat16 is missing or slow"


def test_own_optimizers_are_not_trusted_to_skip() -> None:
    class Mine(torch.optim.SGD):
        pass

    assert skip_refusal([torch.optim.AdamW(model().parameters())]) is None
    assert "Mine" in (skip_refusal([Mine(model().parameters())]) or "")


def test_known_settings_bring_the_scale_along() -> None:
    module = model()
    log = DecisionLog()
    tuner = Tuner(Settings(), Features(), log, 60.0)
    call = RecordedCall(CallInputs.of((torch.randn(6, 6),), {}))
    tuner.adopt(Root(module, lambda _: None), call, TunedSettings(Precision.FLOAT16))
    assert tuner.tuned() == TunedSettings(Precision.FLOAT16)
    tuner.adopt_scaling(torch.optim.LBFGS(module.parameters()))
    assert tuner.tuned() == TunedSettings()
    assert log.lines == ("precision skipped: LBFGS may not skip a step whose gradients overflowed",)


def test_gradients_of_gradients_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("backward", "grad"):
        monkeypatch.setattr(torch.autograd, name, getattr(torch.autograd, name))
    facts = ScriptFacts()
    watch_gradients_of_gradients(facts)
    x = torch.ones(2, requires_grad=True)
    torch.autograd.grad(x.square().sum(), x)
    x.square().sum().backward()
    assert not facts.differentiates_gradients
    torch.autograd.grad(x.square().sum(), x, create_graph=True)
    assert facts.differentiates_gradients


def test_gradients_of_gradients_say_how_to_get_them() -> None:
    module = model()
    scaled_root(module)
    with pytest.raises(RuntimeError, match="--no-precision"):
        torch.autograd.grad(
            module(torch.randn(4, 6)).sum(), list(module.parameters()), create_graph=True
        )


SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=sys.argv[1] == "own")
x = torch.randn(64, 8); y = x.sum(1, keepdim=True).tanh()
for i in range(40):
    opt.zero_grad()
    loss = (net(x) - y).square().mean()
    huge = 1e36 if i == 20 and sys.argv[1] == "huge" else 1.0
    scaler.scale(loss * huge).backward(); scaler.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
    scaler.step(opt); scaler.update()
print(loss.item())
"""


@pytest.mark.parametrize("kind", ["plain", "huge", "own"])
def test_a_script_in_float16(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["python", str(script), kind]
    code, run = run_worker(tmp_path, command, settings={"precision": "float16"})
    assert code == 0, run.errors
    report: dict[str, Any] = run.report
    said = "\n".join(report["explain"])
    assert float(run.output) < 0.2
    assert report["step"] == 40
    if kind == "own":
        assert "precision skipped: the script scales its loss itself" in said
        assert report["tuned"]["precision"] == "float32"
        return
    assert report["tuned"]["precision"] == "float16"
    assert report["skippedSteps"] == (1 if kind == "huge" else 0)
    assert ("loss scaling 1 of 14 steps skipped, scale 32768" in said) is (kind == "huge")


RESUMED = """
import hashlib, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from gpujob_worker import prepare
torch.manual_seed(5)
net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Tanh(), nn.Linear(32, 1))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
x = torch.randn(64, 8); y = x.sum(1, keepdim=True).tanh()
job = prepare(net, opt, DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True))
steps = 0
for epoch in range(4):
    for a, b in job.loader:
        # Gradients so large that the scale of the start does not hold.
        opt.zero_grad(); loss = 3e3 * (net(a) - b).square().mean(); loss.backward(); opt.step()
        steps += 1
        if steps == int(sys.argv[1]): __import__("os").kill(__import__("os").getpid(), 15)
print(hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in net.parameters())).hexdigest())
"""


def test_a_resumed_run_scales_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESUMED)
    outputs: dict[str, str] = {}
    for name, attempts in (("whole", ("0",)), ("stopped", ("13", "0"))):
        for attempt, stop in enumerate(attempts, 1):
            environment = {
                "GPUJOB_CHECKPOINT_DIR": str(tmp_path / name / "kept"),
                "GPUJOB_ATTEMPT": str(attempt),
            }
            code, run = run_worker(
                tmp_path / name / str(attempt),
                ["python", str(script), stop],
                settings={"tuned": {"precision": "float16"}},
                environment=environment,
            )
            assert code == (143 if stop != "0" else 0), run.errors
            assert run.report["tuned"]["precision"] == "float16"
            outputs[name] = run.output
    assert outputs["whole"] == outputs["stopped"]


def test_a_scale_is_saved_and_resumed() -> None:
    scale, parameter = LossScale(8.0), torch.ones(2)
    for _ in range(3):
        scale.unscale([parameter])
        scale.step_ends()
    again = LossScale()
    again.resume(scale.saved())
    assert again.saved() == [8.0, 3.0]
    with pytest.raises(ValueError, match="unpack"):
        again.resume([1.0])
