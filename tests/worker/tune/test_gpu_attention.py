"""A GPU's attention kernels: those that torch would not choose are tried, the fastest is used."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from gpujob_api.settings import AttentionKernel, Precision, Settings, TunedSettings
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.surroundings import enabled_kernels
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.settings.attention import AttentionChoice
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import CostModel, GpuModel, ImitatedGpu, installed
from tests.harness.worker_process import run_worker

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]
FLASH = "_scaled_dot_product_flash_attention"
CUDNN = "_scaled_dot_product_cudnn_attention"
EFFICIENT = "_scaled_dot_product_efficient_attention"


def model_of(flash: float = 0.02, cudnn: float = 0.02, efficient: float = 0.02) -> GpuModel:
    """Seconds of each kernel, forward and backward."""
    scripted: dict[str, float] = {}
    for name, seconds in ((FLASH, flash), (CUDNN, cudnn), (EFFICIENT, efficient)):
        scripted |= {name: seconds, f"{name}_backward": seconds}
    return GpuModel(cost=CostModel(scripted=scripted))


class Attention(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.inward, self.outward, self.drop = nn.Linear(16, 48), nn.Linear(16, 16), drop

    def forward(self, x: Any) -> Any:
        heads = [t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.inward(x).chunk(3, -1)]
        found = functional.scaled_dot_product_attention(*heads, dropout_p=self.drop, is_causal=True)
        return x + self.outward(found.transpose(1, 2).flatten(2))


@contextmanager
def tuned(
    model: GpuModel, module: nn.Module, autocast: torch.dtype | None = torch.bfloat16
) -> Generator[tuple[ImitatedGpu, Root, RecordedCall, Tuner, DecisionLog]]:
    with installed(model) as gpu:
        torch.manual_seed(0)
        root = Root(module.to("cuda"), lambda _: None)
        root.install()
        call = RecordedCall(CallInputs.of((torch.randn(8, 6, 16, device="cuda"),), {}))
        log = DecisionLog()
        tuner = Tuner(Settings(), Features(), log, 60.0)
        tuner.applied.plan = RootPlan(autocast=autocast)
        yield gpu, root, call, tuner, log


def trained(root: Root, call: RecordedCall) -> list[torch.Tensor]:
    root.module.zero_grad()
    root.module(call.inputs.leaves[0]).square().mean().backward()
    return [p.grad.cpu() for p in root.module.parameters() if p.grad is not None]


def test_a_faster_kernel_is_used_and_taken_back() -> None:
    with tuned(model_of(cudnn=0.01), nn.Sequential(Attention(), Attention())) as case:
        gpu, root, call, tuner, log = case
        tuner.speed_items(root, call).choose("attention")
        assert tuner.tuned().attention is AttentionKernel.CUDNN, log.lines
        apply_settings(root, None, tuner.applied)
        gpu.launched.clear()
        ours = trained(root, call)
        assert gpu.launched.count(CUDNN) == gpu.launched.count(f"{CUDNN}_backward") == 2
        assert FLASH not in gpu.launched
        apply_settings(root, None, Applied(tuner.applied.plan.without(AttentionChoice)))
        gpu.launched.clear()
        for found, expected in zip(ours, trained(root, call), strict=True):
            torch.testing.assert_close(found, expected, rtol=0.02, atol=1e-4)
        assert gpu.launched.count(FLASH) == 2, "torch's own choice"


@pytest.mark.parametrize(
    ("efficient", "chosen", "others"), [(0.02, "cudnn", 2), (0.005, "efficient", 1)]
)
def test_what_is_chosen_is_said_whatever_was_refused_after_it(
    efficient: float, chosen: str, others: int
) -> None:
    faster = model_of(cudnn=0.01, efficient=efficient)
    with tuned(faster, Attention()) as (_, root, call, tuner, log):
        tuner.speed_items(root, call).choose("attention")
        applied, *refused = log.lines
        assert applied.startswith("attention kernel applied: ")
        assert f" pairs); {chosen}, " in applied
        assert len(refused) == others
        assert refused[0].startswith("attention kernel flash skipped: not faster")


def test_what_is_not_faster_is_refused() -> None:
    slow = model_of(cudnn=0.03, efficient=0.1)
    with tuned(slow, Attention()) as (_, root, call, tuner, log):
        tuner.speed_items(root, call).choose("attention")
        assert tuner.tuned().attention is None
        line = log.line("attention kernel")
        assert line.startswith("attention kernel skipped: efficient is 5.0 times slower on cuda")


def test_where_there_is_nothing_to_choose_it_says_why() -> None:
    faster = model_of(cudnn=0.01)
    with tuned(faster, Attention(), autocast=None) as (_, root, call, tuner, log):
        tuner.speed_items(root, call).choose("attention")
        line = log.line("attention kernel")
        assert "torch's own choice is the only kernel for float32" in line
        assert tuner.tuned().attention is None


def test_another_kernel_is_not_refused_for_its_masks() -> None:
    """Weights that each kernel drops are others; the numbers are compared with nothing dropped."""
    with tuned(model_of(cudnn=0.01), Attention(drop=0.2)) as case:
        gpu, root, call, tuner, log = case
        ours = trained(root, call)
        tuner.speed_items(root, call).choose("attention")
        assert tuner.tuned().attention is AttentionKernel.CUDNN, log.lines
        assert "gradients' cosine 1.0000" in log.line("attention kernel")
        apply_settings(root, None, tuner.applied)
        gpu.launched.clear()
        theirs = trained(root, call)
        assert gpu.launched.count(CUDNN) == gpu.launched.count(f"{CUDNN}_backward") == 1
        assert not all(map(torch.equal, ours, theirs)), "it drops"


@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_another_kernel_with_other_numbers_is_refused(drop: float) -> None:
    class Peculiar(Attention):
        def forward(self, x: Any) -> Any:
            first = enabled_kernels()[0]
            return super().forward(x) * (1.0 if first == SDPBackend.FLASH_ATTENTION else 1.2)

    with tuned(model_of(cudnn=0.01), Peculiar(drop)) as (_, root, call, tuner, log):
        tuner.speed_items(root, call).choose("attention")
        assert tuner.tuned().attention is None
        assert "numbers disagree" in " ".join(log.lines)


def test_a_known_kernel_is_adopted_for_a_model_that_drops() -> None:
    known = TunedSettings(Precision.BFLOAT16, attention=AttentionKernel.CUDNN)
    with tuned(model_of(), Attention(drop=0.2)) as (_, root, call, tuner, log):
        tuner.adopt(root, call, known)
        assert tuner.tuned() == known, log.lines


def test_a_kernel_of_an_earlier_run_is_used_without_timing() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    known = TunedSettings(Precision.BFLOAT16, attention=AttentionKernel.EFFICIENT)
    with tuned(model_of(), layer) as (gpu, root, call, tuner, log):
        tuner.adopt(root, call, known)
        assert tuner.tuned() == known, log.lines
        apply_settings(root, None, tuner.applied)
        gpu.launched.clear()
        trained(root, call)
        assert EFFICIENT in gpu.launched
        assert FLASH not in gpu.launched


SCRIPT = """
import torch
from torch import nn
from tests.harness.imitated_gpu.tensor import DeviceTensor
torch.manual_seed(0)
net = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to("cuda")
opt = torch.optim.SGD(net.parameters(), lr=0.01); x = torch.randn(8, 5, 16, device="cuda")
for _ in range(20):
    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()
print([name for name in DeviceTensor.gpu.launched if "attention" in name][-1])
"""


def test_a_run_ends_with_the_faster_kernel(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    code, run = run_worker(
        tmp_path,
        ["python", str(script)],
        settings={"compile": "Off", "precision": "bfloat16"},
        gpu=model_of(cudnn=0.01),
    )
    assert code == 0, run.errors
    assert run.report["tuned"]["attention"] == "cudnn", run.errors
    assert run.output.strip() == f"{CUDNN}_backward"
    assert run.report["speedup"]["ratio"] > 1.5
