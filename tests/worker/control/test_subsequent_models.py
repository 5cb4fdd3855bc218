"""Scripts that train several models one after the other: all start with what the first one got."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = pytest.mark.timeout(240)

# `rows` has the samples of every call of a model, ours included.
HEAD = """
import gc, weakref
import torch
from torch import nn
torch.manual_seed(5)
x = torch.randn(32, 8); y = x.sum(1, keepdim=True).tanh()
rows = []
class Net(nn.Module):
    def __init__(self, width=16, mixes=False, fails=False):
        super().__init__()
        self.stem, self.head = nn.Linear(8, width), nn.Linear(width, 1)
        self.mixes, self.fails = mixes, fails
    def forward(self, v):
        rows.append(len(v))
        if self.fails and torch.is_autocast_enabled("cpu"):
            raise ValueError("bfloat16 is not for this")
        h = torch.tanh(self.stem(v))
        return self.head(h - h.mean(0) if self.mixes else h)
class Other(Net): pass
models, last = [], {}
def step(net, opt, x, y):
    opt.zero_grad(); loss = nn.functional.mse_loss(net(x), y); loss.backward(); opt.step()
    return loss
def train(name, net, opt, n=12, x=x, y=y, scheduler=None):
    models.append(weakref.ref(net))
    for i in range(n):
        rows.clear(); loss = step(net, opt, x, y)
        if scheduler is not None: scheduler.step()
    fused = [group["fused"] is True for group in opt.param_groups]
    print(name, "rows", max(rows), "fused", any(fused), "loss", round(loss.item(), 4))
def one(name, kind=Net, optimizer=torch.optim.AdamW, schedules=False, n=12, b=32, **keywords):
    net = kind(**keywords); opt = optimizer(net.parameters(), lr=0.01)
    s = torch.optim.lr_scheduler.StepLR(opt, 100) if schedules else None
    train(name, net, opt, n, x[:b], y[:b], s)
"""
FOLDS = """
for fold in range(3): one(f"fold{fold}", schedules=True)
gc.collect(); print([model() is None for model in models])
"""
KNOWN = {"tuned": {"precision": "float32", "batchPerStep": 8, "fusedOptimizer": True}}


def run(folder: Path, body: str, **keywords: Any) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(HEAD + body)
    code, found = run_worker(folder, ["python", str(script)], **keywords)
    assert code == 0, found.errors
    return found


def trained(found: WorkerRun) -> dict[str, tuple[int, bool, float]]:
    """Of each model: samples in a call of its last step, whether it stepped fused, its loss."""
    pattern = r"^(\S+) rows (\d+) fused (\w+) loss (\S+)$"
    lines = re.findall(pattern, found.output, re.MULTILINE)
    return {name: (int(rows), fused == "True", float(loss)) for name, rows, fused, loss in lines}


def said(found: WorkerRun) -> str:
    return "\n".join(found.report["explain"])


@pytest.mark.parametrize("settings", [KNOWN, {"batchPerStep": 8}])
def test_all_folds_start_with_the_settings_of_the_first(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    plain = trained(run(tmp_path / "plain", FOLDS, settings={"mode": "Off"}))
    found = run(tmp_path / "injected", FOLDS, settings=settings)
    folds = trained(found)
    assert {kept[0] for kept in plain.values()} == {32}
    assert {kept[0] for kept in folds.values()} == {8}, said(found)
    # Whether a fused step is faster here is what the run measured.
    fused = found.report["tuned"]["fusedOptimizer"]
    assert {kept[1] for kept in folds.values()} == {fused}
    assert fused or settings is not KNOWN
    for name, (_, _, loss) in folds.items():
        assert loss == pytest.approx(plain[name][2], rel=1e-3)
    line = "later models 2 of 2 started with the settings found for Net: steps of 8"
    assert line in said(found), said(found)
    # What was said of the first one stays, and nothing of it is left behind.
    assert said(found).count("batch split applied: 32 samples in steps of 8") == 1
    assert found.report["tuned"]["batchPerStep"] == 8
    assert found.report["step"] == 36
    assert found.output.splitlines()[-1] == "[True, True, True]"


def test_what_is_of_another_shape_runs_as_written(tmp_path: Path) -> None:
    body = (
        "one('first'); one('wide', width=24); one('other', kind=Other)\n"
        "one('plain', optimizer=torch.optim.SGD); one('small', b=16); one('again')\n"
    )
    found = run(tmp_path, body, settings=KNOWN)
    models = trained(found)
    whole = {"wide": 32, "other": 32, "plain": 32, "small": 16}
    for name, kept in models.items():
        assert kept[:2] == ((whole[name], False) if name in whole else (8, True)), said(found)
    assert "1 of 5 started with the settings found for Net: steps of 8, fused" in said(found)
    for why in ("Net has other parameters", "Other is another model than Net", "SGD steps it"):
        assert f"1 as written: {why}" in said(found)
    assert "1 more as written" in said(found)
    assert found.report["tuned"]["batchPerStep"] == 8
    assert found.report["tuned"]["fusedOptimizer"]


def test_what_is_not_safe_for_a_later_model_is_left_out_or_taken_back(tmp_path: Path) -> None:
    body = "one('first'); one('mixed', mixes=True); one('third')\n"
    plain = trained(run(tmp_path / "plain", body, settings={"mode": "Off"}))
    found = run(tmp_path / "injected", body, settings=KNOWN)
    models = trained(found)
    assert models["first"][:2] == (8, True)
    assert models["mixed"][:2] == (32, True), said(found)
    for name, (_, _, loss) in models.items():
        assert loss == pytest.approx(plain[name][2], rel=1e-3)
    assert "skipped in model 2 (Net): batch split skipped: samples" in said(found)


TAKEN_BACK = """
one('first')
net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
train('good', net, opt, 3)
print(net(x).grad_fn.name())
net.fails = True
train('fails', net, opt, 3)
del net, opt
one('after')
"""


def test_a_later_model_that_fails_with_them_takes_them_back_for_all(tmp_path: Path) -> None:
    tuned = {"precision": "bfloat16", "fusedOptimizer": True}
    found = run(tmp_path, TAKEN_BACK, settings={"tuned": tuned})
    fused = {name: kept[1] for name, kept in trained(found).items()}
    assert fused == {"first": True, "good": True, "fails": False, "after": False}, said(found)
    assert "ToCopyBackward0" in found.output  # back from bfloat16
    assert "roll-back to plain settings in model 2 (Net): a call of the model failed" in said(found)
    assert "1 as written: they were taken back" in said(found)
    assert found.report["tuned"]["precision"] == "float32"
    assert not found.report["tuned"]["fusedOptimizer"]


KEPT = """
one('first')
kept = [Net() for _ in range(2)]
optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in kept]
for number, net in enumerate(kept): train(f"kept{number}", net, optimizers[number], 12)
train("long", kept[1], optimizers[1], 120)
kept.clear(); optimizers.clear(); phases = Net()
for number in range(2):
    train(f"phase{number}", phases, torch.optim.AdamW(phases.parameters(), lr=0.01), 12)
train("switch", phases, torch.optim.SGD(phases.parameters(), lr=0.01), 12)
"""


def test_models_that_are_kept_and_optimizers_that_follow(tmp_path: Path) -> None:
    found = run(tmp_path, KEPT, settings=KNOWN)
    rows = {name: kept[:2] for name, kept in trained(found).items()}
    assert rows["first"] == rows["kept0"] == (8, True), said(found)
    # The first one kept may go on at any time, until the next was stepped often enough.
    assert rows["kept1"] == (32, False)
    assert rows["long"] == (8, True), said(found)
    assert rows["phase0"] == rows["phase1"] == (8, True), said(found)
    assert rows["switch"] == (8, False)
    assert "later models 3 of 3 started" in said(found)


def test_models_that_the_script_compiles_are_said_to_run_as_written(tmp_path: Path) -> None:
    body = """
for fold in range(3):
    net = Net(); fast = torch.compile(net, backend="eager")
    train(f"fold{fold}", fast, torch.optim.SGD(net.parameters(), lr=0.01))
"""
    found = run(tmp_path, body)
    line = "later models 0 of 2 started with the settings found for the first; 2 as written: the"
    assert f"{line} script compiles its model itself" in said(found)
    assert not any(fused for _, fused, _ in list(trained(found).values())[1:])


LIMITED = """
import sys
import torch
from torch import nn
rows = []
class Stack(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        parts = (nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(24))
        self.parts = nn.Sequential(*parts)
    def forward(self, v):
        rows.append(len(v))
        return self.parts(v)
x = torch.randn(16384, 64)
for fold, width in enumerate([64, 64, 64, 8][:int(sys.argv[1])]):
    net = Stack(width); opt = torch.optim.SGD(net.parameters(), lr=0.01); rows.clear()
    for i in range(int(sys.argv[2])):
        opt.zero_grad(); net(x[:, :width]).square().mean().backward(); opt.step()
    print("fold", fold, max(rows))
"""


def test_a_memory_limit_is_kept_by_every_model(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LIMITED)
    options = ("--explain", "--tuning-seconds", "2")
    command = ["python", str(script)]
    unlimited = {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**40)}
    _, free = run_worker(
        tmp_path / "free", [*command, "1", "8"], environment=unlimited, options=options
    )
    found = re.search(r"(\d+) MiB predicted for 16384 samples", said(free))
    assert found is not None, free.errors
    limit = {"GPUJOB_MEMORY_LIMIT_BYTES": str((int(found[1]) - 60) * 2**20)}
    code, tight = run_worker(
        tmp_path / "tight", [*command, "4", "12"], environment=limit, options=options
    )
    assert code == 0, tight.errors
    largest = [int(rows) for rows in re.findall(r"fold \d (\d+)", tight.output)]
    # From the first step on; the last model takes little, and is looked at by itself.
    assert all(rows < 16384 for rows in largest[:3]), tight.errors
    # Which other settings are found beside the split depends on the machine's processor.
    started = "later models 2 of 3 started with the settings found for Stack: .*steps of "
    assert re.search(started, said(tight))
    assert "1 as written but for the memory limit: Stack has other parameters" in said(tight)
    assert re.search(r"memory limit, \d+ MiB predicted for 16384 .* in model 4", said(tight))
    assert tight.report["tuned"]["batchPerStep"] < 16384


ALONE = """
one('first', schedules=True)
one('second', width=24)
net = Net(); opt = torch.optim.AdamW(net.parameters(), lr=0.01)
train('third', net, opt)
head = torch.optim.SGD(net.head.parameters(), lr=0.01)  # another one of the same model
train('head', net, head)
"""


@pytest.mark.parametrize(
    ("settings", "environment", "why"),
    [
        ({"mode": "Recommend"}, {}, "mode Recommend looks at the first model alone"),
        (
            {},
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"},
            "several processes that train together look at the first model alone",
        ),
        ({"mode": "Recommend"}, {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**40)}, "mode Recommend"),
    ],
)
def test_models_that_are_left_alone_are_said_to_be(
    settings: dict[str, Any], environment: dict[str, str], why: str, tmp_path: Path
) -> None:
    plain = run(tmp_path / "plain", ALONE, settings={"mode": "Off"})
    assert "later models" not in said(plain)
    found = run(tmp_path / "injected", ALONE, settings=settings, environment=environment)
    assert f"later models skipped: {why}" in said(found)
    end = (
        ", without a look at the memory limit" if "GPUJOB_MEMORY_LIMIT_BYTES" in environment else ""
    )
    assert found.report["explain"][-1].endswith(f"; 2 more ran as written{end}"), said(found)
    later = ("second", "third", "head")
    assert {name: trained(found)[name] for name in later} == {
        name: trained(plain)[name] for name in later
    }


def test_two_that_train_together_are_no_later_models(tmp_path: Path) -> None:
    body = """
a, b = Net(), Net()
first, second = (torch.optim.SGD(net.parameters(), lr=0.01) for net in (a, b))
for i in range(12): step(a, first, x, y); step(b, second, x, y)
"""
    found = run(tmp_path, body, settings={"mode": "Recommend"})
    assert "later models" not in said(found)


def test_a_model_that_is_left_alone_gets_another_optimizer(tmp_path: Path) -> None:
    """It is known again by its parameters, and counted once."""
    body = """
one("first"); net = Other(width=20)
for kind in (torch.optim.SGD, torch.optim.Adam): train("later", net, kind(net.parameters(), 0.01))
"""
    found = run(tmp_path / "run", body, settings={"mode": "Recommend", "compile": "Off"})
    assert found.output.count("later rows 32") == 2
    assert "the first model alone; 1 more ran as written" in found.errors, found.errors
