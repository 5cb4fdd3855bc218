"""What the worker decides for scripts of many shapes, recorded: a change of its structure changes
no decision.

    python -m tests.worker.control.test_golden_decisions

records them anew. Everything that is tried is found faster (`fixed_speed`), so that the decisions
do not depend on the machine.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)

RECORDED = Path(__file__).parent / "golden" / "decisions.json"
HEAD = """
import copy, gc
import torch
from torch import nn
from tests.worker.control.fixed_speed import everything_is_faster
everything_is_faster()
torch.manual_seed(5)
x = torch.randn(64, 8); y = x.sum(1, keepdim=True).tanh()
class Net(nn.Module):
    def __init__(self, width=64, inputs=8, outputs=1):
        super().__init__()
        self.stem = nn.Linear(inputs, width); self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
    def forward(self, v): return self.head(torch.tanh(self.norm(self.stem(v))))
class Head(Net): pass
class Other(Net): pass
mse = nn.functional.mse_loss
def train(net, n=24, kind=torch.optim.AdamW, rows=64):
    opt = kind(net.parameters(), lr=0.01)
    for i in range(n):
        opt.zero_grad(); loss = mse(net(x[:rows]), y[:rows]); loss.backward(); opt.step()
"""
TOWERS = """
body, head = Net(128, outputs=16), Head(32, inputs=16)
opt = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=0.01)
for i in range({steps}):
    opt.zero_grad(); loss = mse(head(body(x)), y); loss.backward(); opt.step()
"""
GAN = """
maker, judge = Net(96, outputs=8), Head(32)
first = torch.optim.Adam(maker.parameters()); second = torch.optim.Adam(judge.parameters())
for i in range(24):
    second.zero_grad()
    loss = mse(judge(x), torch.ones(64, 1)) + mse(judge(maker(x).detach()), torch.zeros(64, 1))
    loss.backward(); second.step()
    first.zero_grad(); mse(judge(maker(x)), torch.ones(64, 1)).backward(); first.step()
"""
TEACHER = """
teacher = Other(256); teacher.requires_grad_(False); teacher.eval()
net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for i in range(24):
    with torch.no_grad(): target = teacher(x)
    opt.zero_grad(); loss = mse(net(x), target); loss.backward(); opt.step()
"""
FOLDS = """
for fold in range(3): train(Net())
train(Other(32))
train(Net(), rows=32)
"""
DROPPED = """
first = Net(128); train(first)
second = Head(32); train(second)
del first; gc.collect()
train(Net(128))
"""
FAILS = """
class Fails(Net):
    def forward(self, v):
        if torch.is_autocast_enabled("cpu") and fails: raise ValueError("not for bfloat16")
        return super().forward(v)
fails = False
net = Fails(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for i in range(30):
    fails = i > 14
    opt.zero_grad(); loss = mse(net(x), y); loss.backward(); opt.step()
"""
DIVERGES = """
net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
for i in range(90):
    opt.zero_grad(); loss = mse(net(x), y) * (1e4 if i > 30 else 1.0); loss.backward(); opt.step()
"""
COPIES = """
net = Net(); average = copy.deepcopy(net)
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for i in range(24):
    opt.zero_grad(); loss = mse(net(x), y); loss.backward(); opt.step()
    with torch.no_grad():
        for a, b in zip(average.parameters(), net.parameters()): a.lerp_(b, 0.1)
"""
RANDOM = """
class Draws(Net):
    def forward(self, v): return super().forward(v + torch.randn_like(v))
train(Draws())
"""
SCRIPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one module": ("train(Net())", {}),
    "one module, SGD": ("train(Net(), kind=torch.optim.SGD)", {}),
    "split as asked": ("train(Net())", {"batchPerStep": 16}),
    "checkpointing as asked": ("train(Net())", {"activationCheckpointing": "On"}),
    "recommend": (TOWERS.format(steps=24), {"mode": "Recommend"}),
    "two towers": (TOWERS.format(steps=24), {}),
    "two towers, split as asked": (TOWERS.format(steps=24), {"batchPerStep": 16}),
    "two optimizers": (GAN, {}),
    "a frozen teacher": (TEACHER, {}),
    "a frozen teacher, recommend": (TEACHER, {"mode": "Recommend"}),
    "folds, and other models": (FOLDS, {}),
    "folds, split as asked": (FOLDS, {"batchPerStep": 16}),
    "a model that is dropped": (DROPPED, {}),
    "a call that fails": (FAILS, {}),
    "a loss that diverges": (DIVERGES, {}),
    "a copy of the model": (COPIES, {}),
    "random numbers in forward": (RANDOM, {}),
    "too few steps": (TOWERS.format(steps=4), {}),
    "known, one module": ("train(Net())", {"tuned": {"precision": "bfloat16", "batchPerStep": 16}}),
    "known, two towers": (
        TOWERS.format(steps=24),
        {"tuned": {"precision": "bfloat16", "fusedOptimizer": True}},
    ),
    "known, folds": (FOLDS, {"tuned": {"precision": "bfloat16", "batchPerStep": 16}}),
}
# On an imitated GPU, whose allocator takes the same each time.
SCALES = """
class Scales(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.scales = nn.Parameter(torch.linspace(0.5, 1.5, depth * 512).view(depth, 512))
    def forward(self, v):
        for scale in self.scales: v = torch.tanh(v * scale)
        return v
class Top(Scales): pass
wide = torch.randn(1024, 512, device="cuda")
def steps(*nets, n=16):
    opt = torch.optim.SGD([p for net in nets for p in net.parameters()], 0.1)
    for i in range(n):
        opt.zero_grad(); out = wide
        for net in nets: out = net(out)
        (out.mean(1) - 1).square().mean().backward(); opt.step()
"""
LIMITED = {
    "limited, one module": 'steps(Scales(10).to("cuda"))',
    "limited, two modules": 'steps(Scales(6).to("cuda"), Top(6).to("cuda"))',
    "limited, folds": 'for fold in range(3): steps(Scales(10).to("cuda"))',
    "limited, another model": 'steps(Scales(10).to("cuda")); steps(Top(12).to("cuda"))',
}
LIMIT_BYTES = 580 * 2**20
_MEASURED = re.compile(r"-?\d+\.\d+(e[-+]?\d+)?|\d+(e[-+]?\d+)|\d+ MiB")


def decisions(folder: Path, name: str) -> list[str]:
    """Every line that explains a decision, with the settings in force at the end."""
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    if name in LIMITED:
        script.write_text(HEAD + SCALES + LIMITED[name])
        settings: dict[str, Any] = {"precision": "float32", "compile": "Off"}
        environment = {"GPUJOB_MEMORY_LIMIT_BYTES": str(LIMIT_BYTES)}
    else:
        body, settings = SCRIPTS[name]
        script.write_text(HEAD + body)
        environment = {}
    code, run = run_worker(
        folder,
        ["python", str(script)],
        settings=settings,
        options=("--explain", "--tuning-seconds", "100"),
        environment=environment,
        gpu=GpuModel() if name in LIMITED else None,
    )
    report = run.report
    tuned = {item: value for item, value in (report.get("tuned") or {}).items() if value}
    # How long steps wait for data depends on the machine.
    lines = [line for line in report["explain"] if not line.startswith("data loading ")]
    explained = [_without_measures(line) for line in lines]
    return [f"exit {code}", *explained, f"tuned {json.dumps(tuned, sort_keys=True)}"]


def _without_measures(line: str) -> str:
    return _MEASURED.sub("#", line)


@pytest.mark.parametrize("name", [*SCRIPTS, *LIMITED])
def test_decisions_are_as_recorded(name: str, tmp_path: Path) -> None:
    recorded: dict[str, list[str]] = json.loads(RECORDED.read_text())
    assert decisions(tmp_path, name) == recorded[name]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        found = {name: decisions(Path(made) / name, name) for name in (*SCRIPTS, *LIMITED)}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")
    print(f"recorded in {RECORDED}", file=sys.stderr)
