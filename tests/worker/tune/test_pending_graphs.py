"""Trials may come between a call of a model and the backward pass of it: a GAN steps the critic's
optimizer there. The script's graph is as good after them as before.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.safety_check import trace_refusal
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import run_alone, run_worker

pytestmark = pytest.mark.timeout(240)


class Scaled(nn.Module):
    """Changes in each call, in its place, what the graph of the call needs."""

    def __init__(self, kept_as_buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        scale = torch.ones(4)
        if kept_as_buffer:
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, x: Any) -> Any:
        self.scale.mul_(1.5)
        return self.layer(x) * self.scale


def gradient(module: nn.Module, output: torch.Tensor) -> list[float]:
    module.zero_grad()
    output.square().sum().backward()
    return [p.grad.sum().item() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("kept_as_buffer", [True, False])
def test_what_a_call_changes_in_its_place_is_as_it_was(kept_as_buffer: bool, device: str) -> None:
    torch.manual_seed(0)
    module = Scaled(kept_as_buffer)
    module.scale = module.scale.to(device)
    module.to(device)
    x = torch.randn(3, 4).to(device)
    output = module(x)
    expected = gradient(module, output)
    module.scale.fill_(1.0)
    output = module(x)
    version = module.scale._version
    for _ in range(2):
        with no_trace(module):
            (first, *_) = torch.autograd.grad(module(x).sum(), [module.layer.weight])
            assert first.abs().sum().item() > 0
            module(x)
    assert module.scale._version == version
    assert gradient(module, output) == expected


def test_changes_of_the_script_are_still_noticed() -> None:
    """Only the trials' own are hidden from autograd."""
    module, x = Scaled(kept_as_buffer=True), torch.ones(3, 4)
    output = module(x)
    with no_trace(module):
        module(x)
    module(x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_a_trial_that_fails_leaves_the_graph_as_good() -> None:
    module, x = Scaled(kept_as_buffer=True), torch.ones(3, 4)
    output = module(x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), no_trace(module):
        module(torch.ones(3, 5))
    output.sum().backward()


class Clipped(nn.Module):
    """Changes a parameter in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            self.scale.mul_(1.5)
        return self.layer(x) * self.scale


def test_a_look_at_a_model_that_changes_its_parameters_leaves_the_graph(device: str) -> None:
    """It is refused by what the look saw."""
    torch.manual_seed(0)
    module, x = Clipped().to(device), torch.randn(3, 4).to(device)
    output = module(x)
    call = RecordedCall(CallInputs.of((x,), {}))
    refusal = trace_refusal(Root(module, lambda _: None), call, whole=False)
    assert refusal is not None
    assert "forward changes parameter scale" in refusal
    assert module.scale.tolist() == [1.5] * 4
    output.square().sum().backward()


def test_compiled_batch_normalization_leaves_the_graph_of_the_plain_one() -> None:
    """Its plain call writes the running mean unseen, its compiled one by a copy into it."""
    module, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), torch.randn(8, 4)
    output = module(x)
    compiled: Any = torch.compile(module, backend="aot_eager")
    with no_trace(module):
        compiled(x)
        compiled(x)
    output.sum().backward()


SCRIPT = """
import functools, json, os, sys, torch; from torch import nn; from torch.nn import functional as F
torch.manual_seed(0); at = sys.argv[1]; os.environ["CXX"] = "sh"
if at == "cpu":
    plain = torch.compile
    torch.compile = lambda call, *, dynamic, options=None: plain(call, backend="aot_eager")
class Scale(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("scale", torch.ones(16))
    def forward(s, x):
        if "scaled" not in sys.argv: return x
        s.scale.mul_(1.01).clamp_(max=1.2); return x * s.scale
g = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16), Scale())
d = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(at); g.to(at)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
bce = F.binary_cross_entropy_with_logits
x = torch.randn(64, 16).to(at); ones, zeros = torch.ones(64, 1).to(at), torch.zeros(64, 1).to(at)
for _ in range(20):
    fake = g(torch.randn(64, 4).to(at)); d.zero_grad()
    ld = bce(d(x), ones) + bce(d(fake.detach()), zeros); ld.backward(); do.step()
    g.zero_grad(); loss = bce(d(fake), ones); loss.backward(); go.step()
print(json.dumps([loss.item(), g[1].running_mean.mean().item()]))
"""
COMPILED = {"compile": "On", "precision": "float32"}
LOWER = {"compile": "Off", "precision": "bfloat16"}


@pytest.mark.parametrize(
    ("settings", "kind", "gpu"),
    [
        pytest.param(COMPILED, "normalized", None, id="compiled"),
        pytest.param(LOWER, "scaled", None, id="bfloat16-cpu"),
        pytest.param(LOWER, "scaled", GpuModel(), id="bfloat16-cuda"),
    ],
)
def test_a_gan_is_tuned_between_its_two_optimizers(
    settings: dict[str, Any], kind: str, gpu: GpuModel | None, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    command = [str(path), "cpu" if gpu is None else "cuda", kind]
    options = ("--explain", "--tuning-seconds", "1")
    ran = functools.partial(run_worker, settings=settings, options=options, gpu=gpu)
    code, run = ran(tmp_path / "run", command)
    assert code == 0, run.errors
    tuned = run.report["tuned"]
    assert tuned.get("compile") or tuned.get("precision") == "bfloat16", run.errors
    _, alone = run_alone(tmp_path / "alone", [str(path), "cpu", kind])
    assert json.loads(run.output) == pytest.approx(json.loads(alone.output), rel=0.01, abs=1e-3)
