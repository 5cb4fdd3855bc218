"""Scripts that train several modules side by side get what one module gets, on each device."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = [pytest.mark.promise("I16"), pytest.mark.timeout(240)]
HEAD = """
import collections, json, sys, torch; from torch import nn; from torch.nn import functional as F
torch.manual_seed(0); at = sys.argv[1]
SEEN = collections.Counter()
class Net(nn.Sequential):
    def forward(s, x):
        x = s[0](x); SEEN[f"{s.name} {str(x.dtype)[6:]}"] += 1
        return s[2](s[1](x))
def net(name, *sizes):
    a, b, c = sizes; m = Net(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c)); m.name = name
    return m.to(at)
x, y = torch.randn(64, 16).to(at), torch.randint(4, (64,)).to(at)
"""
ENCODER = """
encoder, head = net("encoder", 16, 128, 64), net("head", 64, 32, 4)
opt = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], 1e-3)
for _ in range(STEPS):
    opt.zero_grad(); loss = F.cross_entropy(head(encoder(x)), y); loss.backward(); opt.step()
"""
TOWERS = """
one, other = net("one", 16, 128, 8), net("other", 16, 64, 8)
rows = torch.arange(64).to(at)
opt = torch.optim.AdamW([*one.parameters(), *other.parameters()], 1e-3)
for _ in range(STEPS):
    logits = F.normalize(one(x)) @ F.normalize(other(x + 0.1)).T / 0.1
    opt.zero_grad(); loss = F.cross_entropy(logits, rows); loss.backward(); opt.step()
"""
ADVERSARIES = """
g, d = net("g", 4, 64, 16), net("d", 16, 64, 1)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
bce = F.binary_cross_entropy_with_logits
ones, zeros = torch.ones(64, 1).to(at), torch.zeros(64, 1).to(at)
for _ in range(STEPS):
    do.zero_grad(); fake = g(torch.randn(64, 4).to(at))
    ld = bce(d(x), ones) + bce(d(fake.detach()), zeros); ld.backward()
    do.step()
    go.zero_grad(); loss = bce(d(fake), ones); loss.backward(); go.step()
"""
MARGIN = """
class Margin(nn.Module):
    def __init__(s): super().__init__(); s.weight = nn.Parameter(torch.randn(4, 64))
    def forward(s, x, y):
        cosine = F.linear(F.normalize(x), F.normalize(s.weight))
        SEEN[f"margin {str(cosine.dtype)[6:]}"] += 1
        return F.cross_entropy(8 * (cosine - 0.1 * rows[y]), y)
model, margin = net("model", 16, 128, 64), Margin().to(at)
rows = torch.eye(4).to(at)
opt = torch.optim.AdamW([*model.parameters(), *margin.parameters()], 1e-3)
for _ in range(STEPS):
    opt.zero_grad(); loss = margin(model(x), y); loss.backward(); opt.step()
"""
END = "\nprint(json.dumps([loss.item(), SEEN]))\n"
SCRIPTS = {"encoder": ENCODER, "towers": TOWERS, "adversaries": ADVERSARIES, "margin": MARGIN}
BFLOAT16 = {"compile": "Off", "precision": "bfloat16"}
ON_BOTH = pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])


def written(folder: Path, text: str, steps: int = 16) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "train.py"
    path.write_text(HEAD + text.replace("STEPS", str(steps)) + END)
    return str(path)


def ran(folder: Path, gpu: GpuModel | None, text: str, settings: dict[str, Any]) -> WorkerRun:
    command = ["python", written(folder, text), "cpu" if gpu is None else "cuda"]
    code, run = run_worker(folder, command, settings=settings, gpu=gpu)
    assert code == 0, run.errors
    return run


def loss_alone(folder: Path, text: str) -> float:
    code, alone = run_alone(folder, [written(folder, text), "cpu"])
    assert code == 0, alone.errors
    return json.loads(alone.output)[0]


@ON_BOTH
@pytest.mark.parametrize("name", SCRIPTS)
def test_each_module_gets_the_precision(name: str, gpu: GpuModel | None, tmp_path: Path) -> None:
    run = ran(tmp_path / "run", gpu, SCRIPTS[name], BFLOAT16)
    loss, seen = json.loads(run.output)
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    lower = {key.split()[0] for key in seen if key.endswith("bfloat16")}
    assert lower == {key.split()[0] for key in seen}, run.errors
    assert "batch split skipped: 2 modules are trained from outside" in run.errors
    assert run.report["efficiency"]["stepFlop"] > 0
    assert loss == pytest.approx(loss_alone(tmp_path / "alone", SCRIPTS[name]), rel=0.01)


@ON_BOTH
def test_a_model_whose_forward_is_called_directly_is_tuned_by_its_parts(
    gpu: GpuModel | None, tmp_path: Path
) -> None:
    """No hook sees the call of the whole."""
    text = ENCODER.replace("head(encoder(x))", "head.forward(encoder.forward(x))")
    run = ran(tmp_path / "run", gpu, text, BFLOAT16)
    assert run.report["tuned"]["precision"] == "bfloat16", run.errors
    assert run.errors.count("applied: bfloat16 from Linear") == 3, run.errors
    expected = loss_alone(tmp_path / "alone", text)
    assert json.loads(run.output)[0] == pytest.approx(expected, rel=0.01)


@ON_BOTH
def test_what_an_earlier_run_found_is_for_each_module(gpu: GpuModel | None, tmp_path: Path) -> None:
    settings = {**BFLOAT16, "tuned": {"precision": "bfloat16"}}
    run = ran(tmp_path / "run", gpu, ENCODER, settings)
    _, seen = json.loads(run.output)
    for name in ("encoder", "head"):
        assert seen[f"{name} bfloat16"] >= 16, run.errors


@ON_BOTH
def test_a_module_that_cannot_be_tried_keeps_the_other_from_nothing(
    gpu: GpuModel | None, tmp_path: Path
) -> None:
    hooked = ENCODER.replace("opt =", "head[0].register_forward_hook(lambda *_: None)\nopt =", 1)
    run = ran(tmp_path / "run", gpu, hooked, BFLOAT16)
    _, seen = json.loads(run.output)
    assert seen.get("encoder bfloat16"), run.errors
    assert "head bfloat16" not in seen
    assert "settings for speed of Net 2 skipped: module 0 has hooks of the script" in run.errors
