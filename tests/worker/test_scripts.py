"""Unmodified scripts of many shapes: injected runs print what plain runs print, nearly."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import gpujob_worker
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)

HEAD = """
import copy, io, math, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(5)
x = torch.randn(32, 8); y = x.sum(1, keepdim=True).tanh()
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
class Block(nn.Module):
    def __init__(self, w=16):
        super().__init__()
        self.a = nn.Linear(w, w); self.n = nn.LayerNorm(w)
    def forward(self, h): return h + torch.tanh(self.a(self.n(h)))
class Net(nn.Module):
    def __init__(self, bad=False):
        super().__init__()
        self.stem = nn.Linear(8, 16); self.bad = bad
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 1)
    def forward(self, v):
        h = self.stem(v)
        for b in self.blocks: h = b(h)
        return self.head(h)
mse = nn.MSELoss()
"""

SHAPES: dict[str, str] = {
    "plain loop": """
net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for epoch in range(5):
    for a, b in loader:
        opt.zero_grad(); loss = mse(net(a), b); loss.backward(); opt.step()
    net.eval()
    with torch.no_grad(): print("eval", mse(net(x), y).item())
    net.train()
print("loss", loss.item())
""",
    "class, clipping, scheduler, copies": """
class Trainer:
    def __init__(self):
        self.net = Net(); self.opt = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.opt, 2)
        self.ema = copy.deepcopy(self.net)
    def step(self, a, b):
        self.opt.zero_grad(set_to_none=False)
        loss = mse(self.net(a), b); loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 0.5)
        self.opt.step()
        with torch.no_grad():
            for e, p in zip(self.ema.parameters(), self.net.parameters()): e.lerp_(p, 0.1)
        return loss.item()
t = Trainer()
for epoch in range(5):
    for a, b in loader: last = t.step(a, b)
    t.schedule.step()
late = copy.deepcopy(t.net)
file = io.BytesIO(); torch.save(t.net, file); file.seek(0)
loaded = torch.load(file, weights_only=False)
print("loss", last, mse(t.ema(x), y).item(), mse(late(x), y).item(), mse(loaded(x), y).item())
print(sorted(t.net.state_dict())[:2], repr(t.net)[:4])
""",
    "gan with two optimizers": """
g = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8))
d = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
og, od = torch.optim.Adam(g.parameters(), lr=1e-3), torch.optim.Adam(d.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
for epoch in range(4):
    for a, _ in loader:
        od.zero_grad(); fake = g(torch.randn(len(a), 4))
        ld = bce(d(a), torch.ones(len(a), 1)) + bce(d(fake.detach()), torch.zeros(len(a), 1))
        ld.backward(); od.step()
        og.zero_grad(); lg = bce(d(fake), torch.ones(len(a), 1)); lg.backward(); og.step()
print("loss", ld.item(), lg.item())
""",
    "lbfgs with a closure": """
net = nn.Linear(8, 1); opt = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=4)
for i in range(24):
    def closure():
        opt.zero_grad(); loss = mse(net(x), y); loss.backward(); return loss
    loss = opt.step(closure)
print("loss", loss.item())
""",
    "no optimizer, no loader": """
net = nn.Linear(8, 1)
for i in range(12):
    loss = mse(net(x), y); loss.backward()
    with torch.no_grad():
        for p in net.parameters(): p.sub_(0.1 * p.grad); p.grad = None
print("loss", loss.item())
""",
    "accumulation and own autocast": """
net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for i in range(24):
    a, b = x[:8], y[:8]
    with torch.autocast("cpu", dtype=torch.bfloat16): out = net(a)
    (mse(out.float(), b) / 2).backward()
    if i % 2: opt.step(); opt.zero_grad()
print("loss", mse(net(x), y).item())
""",
    "own compile": """
net = Net(); fast = torch.compile(net, backend="eager"); opt = torch.optim.Adam(net.parameters())
for i in range(10):
    opt.zero_grad(); loss = mse(fast(x), y); loss.backward(); opt.step()
print("loss", loss.item())
""",
    "batch norm and loader workers": """
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True, num_workers=1)
opt = torch.optim.RMSprop(net.parameters())
for epoch in range(4):
    for a, b in loader:
        opt.zero_grad(); loss = mse(net(a), b); loss.backward(); opt.step()
print("loss", loss.item(), net[1].running_mean.sum().item(), net[1].num_batches_tracked.item())
""",
    "folds that write into their batch, and a child": """
import gc, os, weakref
class Sized(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 16); self.head = nn.Linear(self.body(x).shape[1], 1)
    def forward(self, batch): batch["out"] = self.head(torch.tanh(self.body(batch["x"])))
models = []
def steps(n):
    net = Sized(); groups = [{"params": []}, {"params": list(net.parameters())}]
    opt = torch.optim.Adam(groups, lr=0.01); models.append(weakref.ref(net))
    for i in range(n):
        batch = {"x": x}; net(batch); loss = mse(batch["out"], y)
        opt.zero_grad(); loss.backward(); opt.step()
    return loss.item()
child = os.fork()
if not child: os._exit(int(steps(10) > 10))
print(os.waitpid(child, 0)[1], [steps(12) for fold in range(3)])
gc.collect(); print([model() is None for model in models])
""",
    "gradients by autograd.grad": """
net = Net(); params = list(net.parameters()); opt = torch.optim.SGD(params, lr=0.1)
for i in range(14):
    grads = torch.autograd.grad(mse(net(x), y), params)
    for p, g in zip(params, grads): p.grad = g
    opt.step()
print("loss", mse(net(x), y).item())
""",
}

EXPECTED = {
    "plain loop": [
        "batch split applied: 8 samples in steps of 4",
        "activation checkpointing applied",
    ],
    "class, clipping, scheduler, copies": [
        "batch split applied",
        "activation checkpointing applied",
    ],
    "gan with two optimizers": ["batch split skipped: 2 modules are trained from outside"],
    "lbfgs with a closure": ["fused optimizer skipped: LBFGS has no fused kernel"],
    "no optimizer, no loader": ["tuning skipped: no optimizer of torch made a step"],
    "accumulation and own autocast": ["batch split applied: 8 samples in steps of 4"],
    "own compile": ["compile skipped: the script compiles its model itself"],
    "batch norm and loader workers": [
        "batch split skipped: BatchNorm1d 1 learns from the whole batch",
        "activation checkpointing skipped: no list",
    ],
    "folds that write into their batch, and a child": [
        "batch split skipped: forward writes into the dict or list that it is given",
    ],
    "gradients by autograd.grad": ["batch split applied: 32 samples in steps of 4"],
}
SETTINGS = {"batchPerStep": 4, "activationCheckpointing": "On", "precision": "float32"}
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What every script prints when nothing is injected: one process, mode Off."""
    folder = tmp_path_factory.mktemp("plain")
    driver = folder / "driver.py"
    driver.write_text(
        "import contextlib, io, json, runpy, sys\n"
        "printed = {}\n"
        "for name, path in json.load(open(sys.argv[1])).items():\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        runpy.run_path(path)\n"
        "    printed[name] = out.getvalue()\n"
        "print(json.dumps(printed))\n"
    )
    paths: dict[str, str] = {}
    for number, (name, body) in enumerate(SHAPES.items()):
        path = folder / f"script_{number}.py"
        path.write_text(HEAD + body)
        paths[name] = str(path)
    (folder / "paths.json").write_text(json.dumps(paths))
    code, run = run_worker(
        folder, ["python", str(driver), str(folder / "paths.json")], settings={"mode": "Off"}
    )
    assert code == 0, run.errors
    return json.loads(run.output)


def same_text(left: str, right: str, relative: float) -> bool:
    numbers = [[float(n) for n in _NUMBER.findall(text)] for text in (left, right)]
    if _NUMBER.sub("#", left) != _NUMBER.sub("#", right):
        return False
    return all(abs(a - b) <= relative * max(abs(a), 1e-3) for a, b in zip(*numbers, strict=True))


@pytest.mark.parametrize("name", SHAPES)
def test_a_script_learns_the_same(name: str, plain: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SHAPES[name])
    code, run = run_worker(tmp_path, ["python", str(script)], settings=SETTINGS)
    assert code == 0, run.errors
    assert same_text(run.output, plain[name], 1e-3), f"{run.output}\n{plain[name]}"
    report = run.report
    said = "\n".join(report["explain"])
    for line in EXPECTED[name]:
        assert line in said, said
    assert report["phase"] == "finished"
    if name == "plain loop":
        assert report["step"] == 20
        assert report["baseline"]["stepSeconds"] > 0
        assert report["current"]["peakMemoryBytes"] > 0
        tuned = report["tuned"]
        assert tuned["batchPerStep"] == 4
        assert tuned["precision"] == "float32"
        # Whether a fused step is faster here is what the run measured.
        assert tuned.pop("fusedOptimizer") is ("fused optimizer applied" in said)
        assert [name for name, on in tuned.items() if on is True] == ["activationCheckpointing"]
        assert report["loss"] == pytest.approx(float(run.output.split()[-1]))


def explain_of(folder: Path, options: tuple[str, ...], **settings: Any) -> list[str]:
    script = folder / "train.py"
    script.parent.mkdir(exist_ok=True)
    script.write_text(HEAD + SHAPES["plain loop"])
    code, run = run_worker(folder, ["python", str(script)], settings=settings, options=options)
    assert code == 0, run.errors
    return run.report["explain"]


def test_every_item_can_be_switched_off(tmp_path: Path) -> None:
    names = ("precision", "compile", "optimizer", "activation-checkpointing", "data-loader")
    options = tuple(f"--no-{name}" for name in (*names, "batch-split"))
    said = explain_of(tmp_path, options, **{**SETTINGS, "compile": "On", "precision": "Auto"})
    items = ("batch split", "activation checkpointing", "fused optimizer", "precision", "compile")
    assert [line for line in said if line.endswith("skipped: switched off")] == [
        f"{item} skipped: switched off" for item in (*items, "data loading")
    ]


def test_tuned_settings_are_in_force_at_once(tmp_path: Path) -> None:
    tuned = {"precision": "float32", "batchPerStep": 2, "activationCheckpointing": True}
    said = explain_of(tmp_path, (), tuned=tuned)
    assert "batch split applied: 8 samples in steps of 2, from an earlier run" in said
    assert "tuning settings of an earlier run are known; nothing was probed" in said


def test_recommend_changes_nothing(plain: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + SHAPES["plain loop"])
    settings = {**SETTINGS, "mode": "Recommend"}
    _, run = run_worker(tmp_path, ["python", str(script)], settings=settings)
    assert run.output == plain["plain loop"]
    assert any("batch split recommended" in line for line in run.report["explain"])


def test_errors_show_the_users_frames_only(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        HEAD.replace("h = self.stem(v)", "h = self.stem(v); calls.append(1); check()")
        + "calls = []\n"
        "def check():\n    if len(calls) > 30: raise IndexError('label 12 is out of range')\n"
        + SHAPES["plain loop"].replace("range(5)", "range(50)")
    )
    code, run = run_worker(tmp_path, ["python", str(script)], settings=SETTINGS, options=())
    assert code == 1
    assert str(Path(gpujob_worker.__file__).parent) not in run.errors
    assert run.errors.rstrip().endswith("IndexError: label 12 is out of range")
    frames = re.findall(r'File "(.*?)", line \d+, in (\S+)', run.errors)
    assert [frames[0], frames[-1]] == [(str(script), "<module>"), (str(script), "check")]
    failure = run.report["failure"]
    assert failure["failureClass"] == "UserError"
    assert failure["message"] == "IndexError: label 12 is out of range"


def test_running_out_of_memory_is_reported_with_what_was_needed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    body = SHAPES["plain loop"].replace("opt.zero_grad();", "opt.zero_grad(); torch.empty(10**15);")
    script.write_text(HEAD + body)
    code, run = run_worker(tmp_path, ["python", str(script)])
    assert code == 1
    assert run.report["failure"]["failureClass"] == "OutOfMemory"
    assert run.report["failure"]["neededBytes"] >= 4 * 10**15


def test_exit_codes_of_the_script_stay(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + "sys.exit(3)\n")
    code, run = run_worker(tmp_path, ["python", str(script)])
    assert code == 3
    assert run.report["failure"]["message"] == "the script ended with exit code 3"


@pytest.mark.slow
def test_a_memory_limit_is_kept_by_splitting(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, torch\nfrom torch import nn\n"
        "net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(24)))\n"
        "opt = torch.optim.SGD(net.parameters(), lr=0.01)\n"
        "x = torch.randn(16384, 64)\n"
        "for i in range(int(sys.argv[1])):\n"
        "    opt.zero_grad(); net(x).square().mean().backward(); opt.step()\n"
    )
    options = ("--explain", "--tuning-seconds", "3")
    unlimited = {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**40)}
    command = ["python", str(script)]
    _, free = run_worker(tmp_path / "free", [*command, "8"], environment=unlimited, options=options)
    found = re.search(r"(\d+) MiB predicted for 16384 samples", "\n".join(free.report["explain"]))
    assert found is not None, free.errors
    limit = (int(found[1]) - 60) * 2**20
    _, run = run_worker(
        tmp_path / "tight",
        [*command, "30"],  # two looks at what was measured come after those at the first steps
        environment={"GPUJOB_MEMORY_LIMIT_BYTES": str(limit)},
        options=options,
    )
    report = run.report
    said = "\n".join(report["explain"])
    assert "batch split applied:" in said, said
    assert report["tuned"]["batchPerStep"] < 16384
    assert report["current"]["peakMemoryBytes"] <= limit, said


HOOKED = """
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
calls = []
net[0].register_forward_hook(lambda module, args, output: calls.append(len(args[0])))
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for i in range(12):
    opt.zero_grad(); net(torch.randn(32, 8)).square().mean().backward(); opt.step()
print(calls)
"""
# Its forward depends on how many rows it gets; no probe of fewer rows can run.
STUBBORN = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.offsets = nn.Linear(8, 1), nn.Parameter(torch.zeros(32, 1))
    def forward(self, x):
        return self.layer(x) + self.offsets
net = Net(); opt = torch.optim.SGD(net.parameters(), lr=0.01)
for i in range(12):
    opt.zero_grad(); net(torch.randn(32, 8)).square().mean().backward(); opt.step()
print("done")
"""


@pytest.mark.parametrize("limit", ["", str(2**40)])
def test_hooks_see_the_scripts_own_calls_only(limit: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(HOOKED)
    environment = {"GPUJOB_MEMORY_LIMIT_BYTES": limit}
    code, run = run_worker(tmp_path, ["python", str(script)], environment=environment)
    assert code == 0, run.errors
    assert run.output == f"{[32] * 12}\n"
    assert "precision skipped: module 0 has hooks of the script" in run.errors
    assert ("memory limit skipped: nothing was measured" in run.errors) is bool(limit)


def test_a_model_that_cannot_be_probed_trains_on(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STUBBORN)
    environment = {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**40)}
    settings = {"batchPerStep": 8}
    for given in ({}, settings):
        code, run = run_worker(
            tmp_path, ["python", str(script)], environment=environment, settings=given
        )
        assert code == 0, run.errors
        assert "memory limit skipped: measuring failed: RuntimeError" in run.errors
    assert run.output == "done\ndone\n"
