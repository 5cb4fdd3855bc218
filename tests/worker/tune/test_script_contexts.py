"""Tries run in the contexts of the script's own call, and what is beside the model does no harm."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.process_flags import Tf32, float32_products, tf32_refusal
from gpujob_worker.probe.side_effects import no_trace
from gpujob_worker.tune.settings.attention import kernels_to_try
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)
ON_BOTH = pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])

HEAD = """
import collections, json, sys, torch; from torch import nn; from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel, SDPBackend
torch.manual_seed(0); at = sys.argv[1]
net = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4)).to(at)
x = torch.randn(32, 16).to(at); y = torch.randint(4, (32,)).to(at)
"""
CONTEXTS = (
    HEAD
    + """
SEEN, script = collections.Counter(), [False]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(16, 48); s.h = nn.Linear(16, 4)
    def forward(s, x):
        a = s.q(x)
        SEEN[f"{script[0]} {a.dtype} {torch.backends.cuda.flash_sdp_enabled()}"] += 1
        q, k, v = a.chunk(3, -1)
        return s.h(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0].mean(1))
net = Net().to(at); x = torch.randn(32, 8, 16).to(at)
o = torch.optim.AdamW(net.parameters())
for _ in range(12):
    o.zero_grad(); script[0] = True
    with torch.autocast(at, torch.bfloat16), sdpa_kernel([SDPBackend.MATH]):
        l = F.cross_entropy(net(x), y)
    script[0] = False; l.backward()
    with torch.inference_mode():
        o.step()
print(json.dumps(SEEN))
"""
)


def ran(tmp_path: Path, gpu: GpuModel | None, text: str, **settings: Any) -> Any:
    script = tmp_path / "train.py"
    script.write_text(text)
    command = ["python", str(script), "cpu" if gpu is None else "cuda"]
    found = {"compile": "Off", **settings}
    code, run = run_worker(tmp_path / "run", command, settings=found, gpu=gpu)
    assert code == 0, run.errors
    return run


@ON_BOTH
def test_tries_run_in_the_contexts_of_the_call(gpu: GpuModel | None, tmp_path: Path) -> None:
    """They ran in float32 and with the kernels that the script forbids."""
    run = ran(tmp_path, gpu, CONTEXTS)
    seen = json.loads(run.output)
    assert set(seen) == {f"{who} torch.bfloat16 False" for who in ("True", "False")}, seen
    assert "the script chooses its kernels itself" in run.errors
    assert "measuring failed" not in run.errors


def test_kernels_that_take_no_float32_are_not_tried_for_it() -> None:
    assert kernels_to_try("cuda", {torch.float32}) == ()
    assert len(kernels_to_try("cuda", {torch.bfloat16, torch.float32})) == 3
    assert len(kernels_to_try("cpu", {torch.float32})) == 1


LOOP = """
for _ in range(12):
    o.zero_grad(); l = F.cross_entropy(net(x), y); l.backward(); o.step()
"""
# Of the imitated GPU torch's compiler knows nothing: what is compiled runs as written.
AS_WRITTEN = """
if at == "cuda": torch.compiler.set_stance("force_eager")
"""
MADE = "\no = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])\n"
BESIDE = {
    "parameter hooks": (
        "seen = []\nfor p in net.parameters(): p.register_hook(lambda g: seen.append(0))",
        "assert len(seen) == 12 * 4, len(seen)",
    ),
    "evaluation mode": ("net.eval()", ""),
    "unfrozen teacher": (
        "teacher = nn.Linear(16, 4).eval().to(at); plain = F.cross_entropy\n"
        "F.cross_entropy = lambda out, y: plain(out, y) + 0.1 * (out - teacher(x)).square().mean()",
        "",
    ),
    "compiled helper": (
        "@torch.compile(backend='eager')\ndef helper(x): return x + 1\nx = helper(x)",
        "helper(torch.ones(3))",
    ),
}


@ON_BOTH
@pytest.mark.parametrize("name", BESIDE)
def test_what_is_beside_the_model_keeps_nobody_from_the_gain(
    name: str, gpu: GpuModel | None, tmp_path: Path
) -> None:
    before, after = BESIDE[name]
    run = ran(tmp_path, gpu, HEAD + AS_WRITTEN + before + MADE + LOOP + after, precision="bfloat16")
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    assert "measuring failed" not in run.errors


COMPILED = {
    "the model": "net = torch.compile(net, backend='eager')",
    "the model by its method": "net.compile(backend='eager')",
}


@ON_BOTH
@pytest.mark.parametrize("name", COMPILED)
def test_what_the_script_compiles_in_its_model_is_left_as_it_is(
    name: str, gpu: GpuModel | None, tmp_path: Path
) -> None:
    run = ran(tmp_path, gpu, HEAD + AS_WRITTEN + COMPILED[name] + MADE + LOOP, precision="bfloat16")
    assert run.report["tuned"]["precision"] == "float32", run.errors
    assert "the script compiles its model itself" in run.errors


def test_hooks_of_parameters_do_not_run_in_tries() -> None:
    module, seen = nn.Linear(2, 2), list[int]()

    def hook(gradient: torch.Tensor) -> None:
        seen.append(gradient.dim())

    module.weight.register_hook(hook)
    handle = module.bias.register_hook(hook)

    def backward(of: Callable[..., Any]) -> None:
        of(module(torch.ones(1, 2)).sum(), list(module.parameters()))

    with no_trace(module):
        backward(torch.autograd.grad)
    assert seen == []
    backward(torch.autograd.grad)
    assert sorted(seen) == [1, 2]
    handle.remove()
    backward(torch.autograd.grad)
    assert sorted(seen) == [1, 2, 2]


def test_the_precision_of_products_is_known_however_it_was_set() -> None:
    plain = torch.get_float32_matmul_precision()
    try:
        if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
            torch.backends.cuda.matmul.fp32_precision = "tf32"
            assert float32_products() == "tf32"
            assert tf32_refusal() == "the script chose 'tf32' itself"
            Tf32().switch(False)
            assert float32_products() == "tf32", "it is the script's"
    finally:
        torch.set_float32_matmul_precision(plain)
    assert float32_products() == plain


ACCUMULATES = (
    HEAD
    + MADE
    + """
scaler = torch.amp.GradScaler(at, init_scale=1024.0, enabled=SCALES)
for _ in range(12):
    o.zero_grad(); whole = 0.0
    for a, b in zip(x.chunk(4), y.chunk(4)):
        l = F.cross_entropy(net(a), b) / 4; whole += l.item()
        scaler.scale(l).backward()
    scaler.step(o); scaler.update()
print(whole)
"""
)


@ON_BOTH
@pytest.mark.parametrize("scales", [True, False])
def test_a_loss_in_parts_and_scaled_is_reported_as_it_is(
    scales: bool, gpu: GpuModel | None, tmp_path: Path
) -> None:
    """A quarter of it was, times the scale; and a quarter of the samples."""
    run = ran(tmp_path, gpu, ACCUMULATES.replace("SCALES", str(scales)), precision="float32")
    report = run.report
    assert report["loss"] == pytest.approx(float(run.output), rel=1e-5)
    baseline = report["baseline"]
    samples = baseline["samplesPerSecond"] * baseline["stepSeconds"]
    assert samples == pytest.approx(32.0)
    # Forward of both layers, their weights' gradients, and what goes back from the second one.
    flop = 2 * 32 * (2 * (16 * 64 + 64 * 4) + 64 * 4)
    assert report["efficiency"]["stepFlop"] == pytest.approx(flop)
    assert "roll-back" not in run.errors
