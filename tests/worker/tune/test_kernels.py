"""Attention kernels, memory format and cuDNN's autotuning: tried, refused, taken back."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpujob_api.settings import AttentionKernel, Settings, TunedSettings
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.call_settings import switched
from gpujob_worker.inject.process_flags import (
    ConvolutionAutotuning,
    Tf32,
    convolution_autotuning_refusal,
    tf32_refusal,
)
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.probe.compare import Speedup
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.settings.attention import (
    AttentionChoice,
    AttentionWatch,
    attention_kernel,
    kernels_to_try,
)
from gpujob_worker.tune.settings.channels_last import ChannelsLast, sample_shapes
from gpujob_worker.tune.trial import Trial
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import run_worker


class Attention(nn.Module):
    def __init__(self, drop: float = 0.0, own: bool = False) -> None:
        super().__init__()
        self.project = nn.Linear(16, 48)
        self.drop, self.own = drop, own

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unsqueeze(1) for t in self.project(x).chunk(3, -1))
        if not self.own:
            y = functional.scaled_dot_product_attention(q, k, v, None, self.drop, is_causal=True)
        else:
            with sdpa_kernel(SDPBackend.MATH):
                y = functional.scaled_dot_product_attention(q, k, v)
        return x + y.squeeze(1)


class Images(nn.Module):
    def __init__(self, flatten: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 4, 3, padding=1)
        self.flatten = flatten

    def forward(self, x: Any) -> Any:
        y = self.second(torch.relu(self.norm(self.first(x))))
        return y.view(len(y), -1) if self.flatten else y


def recorded(*shape: int, device: str = "cpu") -> RecordedCall:
    return RecordedCall(CallInputs.of((torch.randn(*shape, device=device),), {}))


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every candidate counts as twice as fast; all else is real."""

    def twice(*args: Any) -> Speedup:
        del args
        return Speedup(2.0, 1.9, 2.1, 5)

    def half(*args: Any) -> float:
        del args
        return 0.5

    monkeypatch.setattr(Trial, "speedup", twice)
    monkeypatch.setattr(Trial, "_times_slower", half)


def tuner(**off: bool) -> tuple[Tuner, DecisionLog]:
    log = DecisionLog()
    return Tuner(Settings(), Features.without(*off), log, 60.0), log


def gradients(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    module(x).square().mean().backward()
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


def test_a_faster_attention_kernel_is_used_and_taken_back(fast: None) -> None:
    module = nn.Sequential(Attention(), Attention())
    root, call = Root(module, lambda _: None), recorded(4, 12, 16)
    root.install()
    x = call.inputs.leaves[0]
    plain = gradients(module, x)
    tuning, log = tuner()
    tuning.speed_items(root, call).choose("attention")
    assert tuning.tuned().attention is AttentionKernel.MATH
    assert log.lines[0].startswith("attention kernel applied: 2.00x")
    seen: list[bool] = []

    def look(*_: Any) -> None:
        seen.append(torch.backends.cuda.flash_sdp_enabled())

    module[0].register_forward_hook(look)
    apply_settings(root, None, tuning.applied)
    for ours, expected in zip(gradients(module, x), plain, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    apply_settings(root, None, Applied())
    assert all(map(torch.equal, gradients(module, x), plain))
    assert seen == [False, True]
    assert torch.backends.cuda.flash_sdp_enabled()


def test_blocks_computed_again_use_the_kernel_of_the_forward(device: str) -> None:
    module = nn.Sequential(Attention(), Attention()).to(device)
    root, call = Root(module, lambda _: None), recorded(4, 12, 16, device=device)
    root.install()
    kernel = Applied(RootPlan(settings=(AttentionChoice(AttentionKernel.MATH),)))
    apply_settings(root, None, kernel)
    expected = gradients(module, call.inputs.leaves[0])
    kernel.activation_checkpointing = True
    apply_settings(root, None, kernel)
    assert len(ActivationCheckpointing(root).blocks) == 2
    assert all(map(torch.equal, gradients(module, call.inputs.leaves[0]), expected))


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Linear(16, 16), "no kernel of scaled_dot_product_attention"),
        (Attention(own=True), "chooses its kernels itself"),
    ],
)
def test_attention_refusals(module: nn.Module, reason: str, device: str, fast: None) -> None:
    root = Root(copy.deepcopy(module).to(device), lambda _: None)
    tuning, log = tuner()
    tuning.speed_items(root, recorded(4, 12, 16, device=device)).choose("attention")
    assert log.lines[0].startswith("attention kernel skipped")
    assert reason in log.lines[0]
    assert tuning.applied == Applied()


def test_on_the_cpu_no_kernel_drops(fast: None) -> None:
    tuning, log = tuner()
    root = Root(Attention(drop=0.1), lambda _: None)
    tuning.speed_items(root, recorded(4, 12, 16)).choose("attention")
    assert "no kernel of scaled_dot_product_attention" in log.lines[0]


def test_the_attention_of_torchs_own_layers_is_seen(fast: None) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    tuning, log = tuner()
    tuning.speed_items(Root(layer, lambda _: None), recorded(4, 12, 16)).choose("attention")
    assert tuning.tuned().attention is AttentionKernel.MATH, log.lines


def test_a_kernel_chosen_around_the_whole_loop_stays(device: str) -> None:
    root = Root(Attention().to(device), lambda _: None)
    with sdpa_kernel(SDPBackend.MATH):
        watch = AttentionWatch()
        with watch:
            root.module(torch.randn(2, 3, 16, device=device))
        assert "itself" in (watch.refusal() or "")


def test_the_kernel_of_a_gpu_leaves_the_others_allowed() -> None:
    for kernel in kernels_to_try("cuda", {torch.bfloat16}):
        with attention_kernel(kernel):
            assert torch.backends.cuda.math_sdp_enabled()
            assert torch.backends.cuda.mem_efficient_sdp_enabled()


def test_channels_last_changes_nothing_but_the_way_through(device: str, fast: None) -> None:
    torch.manual_seed(1)
    module = Images().to(device)
    root, call = Root(module, lambda _: None), recorded(6, 3, 8, 8, device=device)
    root.install()
    tuning, log = tuner()
    before = [t.clone() for t in module.state_dict().values()]
    state = torch.get_rng_state()
    tuning.speed(root, call)
    assert all(map(torch.equal, module.state_dict().values(), before))
    assert torch.equal(torch.get_rng_state(), state)
    assert tuning.tuned().channels_last, log.lines
    apply_settings(root, None, Applied(replace_plan(tuning.applied.plan)))
    seen: list[bool] = []
    module.second.register_forward_hook(
        lambda _module, args, _output: seen.append(
            args[0].is_contiguous(memory_format=torch.channels_last)
        )
    )
    output = module(call.inputs.leaves[0])
    assert output.is_contiguous()
    output.square().mean().backward()
    assert all(p.is_contiguous() for p in module.parameters())
    assert all(p.grad is not None and p.grad.is_contiguous() for p in module.parameters())
    module(torch.randn(6, 3, 10, 8, device=device))
    assert seen == [True, False]


def replace_plan(plan: RootPlan) -> RootPlan:
    return RootPlan().having(plan.setting(ChannelsLast) or ChannelsLast(()))


@pytest.mark.parametrize(
    ("module", "inputs", "reason"),
    [
        (nn.Linear(8, 8), (4, 3, 8, 8), "no convolution of images"),
        (nn.Sequential(nn.Flatten(), nn.Unflatten(1, (3, 8, 8)), Images()), (4, 192), "four dim"),
        (Images().to(memory_format=torch.channels_last), (4, 3, 8, 8), "does it itself"),
        (Images(flatten=True), (4, 3, 8, 8), "failed: RuntimeError: view size"),
    ],
)
def test_channels_last_refusals(
    module: nn.Module, inputs: tuple[int, ...], reason: str, device: str, fast: None
) -> None:
    tuning, log = tuner()
    root = Root(copy.deepcopy(module).to(device), lambda _: None)
    tuning.speed_items(root, recorded(*inputs, device=device)).choose("channels_last")
    assert log.lines[0].startswith("channels_last skipped")
    assert reason in log.lines[0]


def test_slow_and_switched_off_candidates_are_refused(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def slower(*args: Any) -> float:
        del args
        return 9.0

    monkeypatch.setattr(Trial, "_times_slower", slower)
    root = Root(Images().to(device), lambda _: None)
    call = recorded(4, 3, 8, 8, device=device)
    tuning, log = tuner()
    log.verbose = True
    tuning.speed_items(root, call).choose("channels_last")
    line = f"channels_last skipped: channels_last is 9.0 times slower on {device}"
    assert log.lines == (line,)
    assert capsys.readouterr().err == f"gpujob: {line}\n"
    off = {"channels_last": False, "attention": False, "convolution_autotuning": False}
    tuning, log = tuner(precision=False, **off)
    tuning.speed(root, call)
    assert [line.split(" skipped: ")[1] for line in log.lines] == ["switched off"] * 4


def test_autotuning_of_convolutions_is_refused(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, linear = Images().to(device), nn.Linear(2, 2).to(device)
    if device == "cpu":
        assert "cuDNN runs on CUDA GPUs" in (convolution_autotuning_refusal(module, 1) or "")
        return
    assert convolution_autotuning_refusal(module, 1) is None
    assert "2 input shapes" in (convolution_autotuning_refusal(module, 2) or "")
    assert "no convolution" in (convolution_autotuning_refusal(linear, 1) or "")
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    assert "deterministic" in (convolution_autotuning_refusal(module, 1) or "")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert "itself" in (convolution_autotuning_refusal(module, 1) or "")


def test_flags_are_in_force_for_the_plan_alone() -> None:
    flags = (Tf32(), ConvolutionAutotuning())
    assert tf32_refusal() is None
    with switched((), flags):
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cudnn.benchmark
        assert "chose 'high' itself" in (tf32_refusal() or "")
    assert torch.get_float32_matmul_precision() == "highest"
    root = Root(nn.Linear(2, 2), lambda _: None)
    apply_settings(root, None, Applied(RootPlan(settings=flags)))
    assert torch.backends.cudnn.benchmark
    apply_settings(root, None, Applied())
    assert not torch.backends.cudnn.benchmark


def test_known_kernels_are_adopted_where_they_are_safe(device: str) -> None:
    torch.manual_seed(2)
    known = TunedSettings(attention=AttentionKernel.MATH, channels_last=True, data_loader_workers=3)
    tuning, log = tuner()
    module = nn.Sequential(Images(), nn.Flatten(2), nn.Linear(64, 16), Attention())
    call = recorded(4, 3, 8, 8, device=device)
    module[3] = nn.Sequential(nn.Flatten(1), nn.Linear(64, 16))
    tuning.adopt(Root(module.to(device), lambda _: None), call, known)
    assert tuning.tuned() == TunedSettings(channels_last=True, data_loader_workers=3)
    assert log.lines == (
        "attention kernel skipped: no kernel of scaled_dot_product_attention runs in the model",
        "channels_last applied: from an earlier run",
    )
    shapes = ChannelsLast(sample_shapes(call.inputs))
    assert tuning.applied.plan.setting(ChannelsLast) == shapes


FUSED = """
import sys, torch
from torch import nn
torch.manual_seed(5)
net = nn.Linear(8, 1).to(sys.argv[2])
opt = torch.optim.Adam(net.parameters(), lr=0.1, foreach={"own": False}.get(sys.argv[1]))
x = torch.randn(32, 8).to(sys.argv[2])
for i in range(4):
    opt.zero_grad(); net(x).square().mean().backward(); opt.step()
print(opt.param_groups[0]["fused"])
import copy, io, pickle
saved = io.BytesIO(); torch.save([net, opt], saved); saved.seek(0)
others = [copy.deepcopy(opt), torch.load(saved, weights_only=False)[1]]
others.append(pickle.loads(pickle.dumps(opt)))
groups = [other.param_groups[0] for other in others] + opt.state_dict()["param_groups"]
print(*(group["fused"] for group in groups))
for other in others: other.step()
print(len(opt.param_groups[0]["params"]), opt.param_groups[0]["fused"])
"""


@pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    ("argument", "options", "output", "line"),
    [
        ("default", (), "True\n", "applied: from an earlier run"),
        ("own", (), "None\n", "skipped: the script chose the kernel itself"),
        ("default", ("--no-optimizer",), "None\n", "skipped: switched off"),
    ],
)
def test_a_known_fused_kernel_steps_from_the_first_step(
    argument: str,
    options: tuple[str, ...],
    output: str,
    line: str,
    gpu: GpuModel | None,
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FUSED)
    command = ["python", str(script), argument, "cpu" if gpu is None else "cuda"]
    settings = {"tuned": {"fusedOptimizer": True}}
    code, run = run_worker(tmp_path, command, settings=settings, options=options, gpu=gpu)
    assert code == 0, run.errors
    assert run.output == f"{output}None None None None\n2 {output}", "what it saves is as written"
    assert f"fused optimizer {line}" in run.report["explain"]
    assert run.report["tuned"]["fusedOptimizer"] is (output == "True\n")
