"""Scripts whose loss sees what a lower precision rounds learn what they learn as written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.float32_tail import SHARE_MAX, Float32Tail, LayerCall, tail_of
from gpujob_worker.inject.process_flags import Tf32
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from tests.harness.imitated_gpu import CostModel, GpuModel
from tests.harness.worker_process import run_alone, run_worker

pytestmark = [pytest.mark.promise("I16"), pytest.mark.timeout(240)]

# Targets that are far from zero, as prices or temperatures are.
REGRESSION = """
import torch; from torch import nn
torch.manual_seed(0); X = torch.randn(2048, 32)
Y = 300 + torch.tanh(X @ torch.randn(32, 1) / 6) * 1.5
m = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
m[-1].bias.data.fill_(300.0); o = torch.optim.AdamW(m.parameters(), 1e-3)
for _ in range(200):
    i = torch.randint(0, 2048, (256,)); l = nn.functional.mse_loss(m(X[i]), Y[i])
    o.zero_grad(); l.backward(); o.step()
with torch.no_grad():
    print(l.item(), nn.functional.mse_loss(m.eval()(X), Y).item())
"""
# A sigmoid in the model, which is exactly 1 in half precision where the loss asks how far from it.
SIGMOID = """
import torch; from torch import nn
torch.manual_seed(0); w = torch.randn(32, 1); f = nn.functional.binary_cross_entropy
m = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1),
                  nn.Sigmoid())
o = torch.optim.AdamW(m.parameters(), 1e-3)
def batch():
    x = torch.randn(256, 32); y = (x @ w > 0).float()
    return x, torch.where(torch.rand(256, 1) < 0.01, 1 - y, y)
for _ in range(200):
    x, y = batch(); l = f(m(x), y); o.zero_grad(); l.backward(); o.step()
torch.manual_seed(1); found = []
with torch.no_grad():
    for _ in range(4):
        x, y = batch(); found.append(f(m(x), y).item())
print(l.item(), *found)
"""
# Probabilities before an update, without gradients, and their ratio to those with gradients.
POLICY = """
import torch; from torch import nn
from torch.distributions import Categorical
torch.manual_seed(0)
m = nn.Sequential(nn.Linear(32, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 16))
nn.init.normal_(m[-1].weight, 0, 0.2); o = torch.optim.AdamW(m.parameters(), 1e-3); off = []
for _ in range(40):
    s = torch.randn(256, 32); a = torch.randint(0, 16, (256,)); gain = torch.randn(256)
    with torch.no_grad():
        old = Categorical(logits=m(s)).log_prob(a)
    ratio = (Categorical(logits=m(s)).log_prob(a) - old).exp(); off.append((ratio - 1).abs().max())
    l = -(ratio * gain).mean(); o.zero_grad(); l.backward(); o.step()
print(1.0 + max(off).item())
"""


@pytest.mark.parametrize("text", [REGRESSION, SIGMOID, POLICY], ids=["far", "sigmoid", "policy"])
def test_the_loss_ends_where_it_ends_as_written(text: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    code, alone = run_alone(tmp_path / "alone", [str(script)])
    assert code == 0, alone.errors
    settings = {"compile": "Off", "precision": "bfloat16"}
    code, run = run_worker(tmp_path / "run", ["python", str(script)], settings=settings)
    assert code == 0, run.errors
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    written, found = ([float(n) for n in r.output.split()] for r in (alone, run))
    assert found == pytest.approx(written, rel=0.01)


def called(
    *layers: tuple[nn.Module, float], kind: torch.dtype = torch.float16
) -> Float32Tail | None:
    return tail_of([LayerCall(layer, products) for layer, products in layers], kind)


def test_a_small_last_layer_is_float32_as_a_whole() -> None:
    large, last = nn.Linear(8, 8), nn.Linear(8, 1)
    small, big = called((large, 1000.0), (last, 5.0)), called((large, 1000.0), (last, 6.0))
    assert small is not None
    assert big is not None
    assert (small.whole, big.whole) == (True, False), SHARE_MAX
    assert (small.large, big.large) == (False, True)
    assert called() is None
    shared = called((last, 5.0), (large, 1000.0), (last, 5.0))
    assert shared is not None
    assert not shared.whole, "all of its calls count"


@pytest.mark.parametrize(
    ("outputs", "kind", "whole"),
    [
        (9, torch.bfloat16, True),  # 8 bits are too few for it
        (9, torch.float16, False),
        (8, torch.bfloat16, False),
    ],
)
def test_a_large_last_layer_with_many_outputs_is_not_in_bfloat16(
    outputs: int, kind: torch.dtype, whole: bool
) -> None:
    """As a language model's, which has one for each word."""
    found = called((nn.Linear(8, 8), 1000.0), (nn.Linear(8, outputs), 6.0), kind=kind)
    assert found is not None
    assert (found.whole, found.large) == (whole, True)
    convolution = called((nn.Conv2d(2, outputs, 2), 6.0), kind=kind)
    assert convolution is not None
    assert convolution.whole is whole, "each output of it is of 8 numbers, too"
    transposed = called((nn.ConvTranspose2d(8, outputs, 2, stride=2), 6.0), kind=kind)
    assert transposed is not None
    assert transposed.whole is whole, "of 8 of its 32 weights at each of its 4 places"


class Ends(nn.Module):
    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.seen: list[torch.dtype] = []

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        self.seen.append(x.dtype)
        x = self.last(x)
        self.seen.append(x.dtype)
        return x.sigmoid()


@pytest.mark.parametrize("whole", [True, False])
def test_what_follows_the_last_layer_has_the_scripts_type(whole: bool) -> None:
    torch.manual_seed(0)
    module, x = Ends(whole), torch.randn(4, 8)
    tail = called((module.first, 1000.0), (module.last, 1.0 if whole else 99))
    assert tail is not None
    root = Root(module, lambda _: None)
    plan = RootPlan(autocast=torch.bfloat16).having(tail)
    assert tail.whole is whole
    out = root.run(plan, CallInputs.of((x,), {}))
    assert module.seen == [torch.bfloat16, torch.float32]
    assert out.dtype is torch.float32
    assert "forward" not in vars(module.last)
    assert torch.equal(root.run(RootPlan(), CallInputs.of((x,), {})), module(x))


GPU = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(16, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(),
                    nn.Linear(256, OUT)).to("cuda")
opt = torch.optim.AdamW(net.parameters()); x = torch.randn(32, 16, device="cuda")
for _ in range(20):
    opt.zero_grad(); (net(x) - 1).square().mean().backward(); opt.step()
print(torch.get_float32_matmul_precision())
"""


@pytest.mark.parametrize(
    ("half", "outputs", "precision", "ends"),
    [
        (0.3, 1, "bfloat16", "highest"),
        (0.3, 257, "bfloat16", "high"),  # as of a language model
        (1.0, 257, "tf32", "high"),
    ],
)
def test_tf32_ends_with_what_needed_it(
    half: float, outputs: int, precision: str, ends: str, tmp_path: Path
) -> None:
    """Products of the script outside its model would go on in TF32 under bfloat16."""
    rate = {torch.float32: 1e7, torch.bfloat16: 2e7 / half, torch.float16: 2e7 / half}
    if half == 1.0:
        rate = dict.fromkeys(rate, 1e7)
    cost = CostModel(flop_per_second=rate, tf32_flop_per_second=2e7)
    script = tmp_path / "train.py"
    script.write_text(GPU.replace("OUT", str(outputs)))
    code, run = run_worker(
        tmp_path, ["python", str(script)], settings={"compile": "Off"}, gpu=GpuModel(cost=cost)
    )
    assert code == 0, run.errors
    assert run.report["tuned"]["precision"] == precision, run.errors
    assert run.output.strip() == ends


def test_tf32_is_given_back() -> None:
    root = Root(nn.Linear(2, 2), lambda _: None)
    root.plan = RootPlan().having(Tf32())
    assert torch.get_float32_matmul_precision() == "high"
    root.plan = RootPlan()
    assert torch.get_float32_matmul_precision() == "highest"
