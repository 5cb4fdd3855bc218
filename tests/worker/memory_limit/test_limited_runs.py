"""Whole runs under a memory limit: kept from the first step on, or ended with what it takes."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

HEAD = """
import sys, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(1)
steps, batch = int(sys.argv[1]), int(sys.argv[2])

def train(model, loss_of, optimizer):
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        print(step, loss.item(), flush=True)
"""
# The loss takes three times the logits, and those are most of what a split step takes.
LANGUAGE = (
    HEAD
    + """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(4096, 64)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64))
            for _ in range(12))
        self.head = nn.Linear(64, 4096)
    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)
model = Model()
text = torch.randint(4096, (batch, 17))
def loss_of(model):
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.reshape(-1, 4096), text[:, 1:].reshape(-1))
train(model, loss_of, torch.optim.AdamW(model.parameters()))
"""
)
# Normalized blocks: never split, but computed again.
PICTURES = (
    HEAD
    + """
blocks = int(sys.argv[3])
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.Sequential(*(Block() for _ in range(blocks))),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
x, y = torch.randn(batch, 3, 32, 32), torch.randint(4, (batch,))
train(model, lambda model: F.cross_entropy(model(x), y),
      torch.optim.SGD(model.parameters(), lr=0.01))
layer = model[1][-1].norm
print("statistics", int(layer.num_batches_tracked), float(layer.running_var.sum()))
"""
)
QUIET = {"precision": "float32", "compile": "Off"}
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def limited(folder: Path, script: str, limit: int, *arguments: object) -> WorkerRun:
    """Runs to the end; the run's exit code is in its process."""
    folder.mkdir()
    (folder / "train.py").write_text(script)
    command = ["python", str(folder / "train.py"), *map(str, arguments)]
    environment = {"GPUJOB_MEMORY_LIMIT_BYTES": str(limit)}
    options = ("--explain", "--no-channels-last", "--no-optimizer", "--no-attention")
    keywords: dict[str, Any] = {"environment": environment, "options": options}
    _, run = run_worker(folder, command, settings=QUIET, **keywords)
    return run


def peak_of(folder: Path, script: str, *arguments: int) -> int:
    """What the script takes without a limit that binds."""
    run = limited(folder, script, 2**40, *arguments)
    return int(run.report["baseline"]["peakMemoryBytes"])


def amount(text: str, what: str) -> float:
    found = re.search(rf"(\S+) ([KMG]iB) {what}", text)
    assert found is not None, text
    return float(found[1]) * UNITS[found[2]]


def said_of(run: WorkerRun, item: str) -> str:
    lines = [line for line in run.errors.splitlines() if line.startswith(f"gpujob: {item} ")]
    assert lines, run.errors
    return lines[-1]


def test_a_loss_of_the_whole_batch_is_in_the_prediction(tmp_path: Path) -> None:
    whole = peak_of(tmp_path / "whole", LANGUAGE, 9, 64)
    logits = 64 * 16 * 4096 * 4
    limit = whole - logits
    run = limited(tmp_path / "tight", LANGUAGE, limit, 20, 64)
    assert run.process.exitcode == 0, run.errors
    said = said_of(run, "memory limit")
    assert said.startswith("gpujob: memory limit kept: "), run.errors
    measured, predicted = amount(said, "measured"), amount(said, "predicted for 64 samples")
    assert measured <= limit
    assert predicted == pytest.approx(measured, rel=0.05)
    # Assumed for the first step, known from the second on.
    lines = [line for line in run.errors.splitlines() if " memory limit " in line]
    assert ["assumed" in line for line in lines] == [True, False, False], lines
    split = [line for line in run.errors.splitlines() if "batch split applied" in line]
    assert not any("measured" in line for line in split), "no step had to show that it was too much"
    assert run.report["current"]["peakMemoryBytes"] <= limit
    assert "activation checkpointing skipped: the split keeps the limit alone" in run.errors


def test_batch_norm_is_kept_within_a_limit_by_checkpointing(tmp_path: Path) -> None:
    whole = peak_of(tmp_path / "whole", PICTURES, 9, 32, 12)
    # A block keeps about five times its 2 MiB of output.
    limit = whole - 50 * 2**20
    run = limited(tmp_path / "tight", PICTURES, limit, 20, 32, 12)
    assert run.process.exitcode == 0, run.errors
    assert "activation checkpointing applied: 12 blocks" in said_of(run, "activation checkpointing")
    assert "BatchNorm2d" in said_of(run, "batch split")
    assert run.report["current"]["peakMemoryBytes"] <= limit, run.errors
    _, alone = run_alone(tmp_path / "alone", [str(tmp_path / "tight/train.py"), "20", "32", "12"])
    assert run.output == alone.output, "every digit, of losses and of statistics, is the script's"


def test_what_cannot_be_kept_ends_before_the_first_step_with_what_it_needs(tmp_path: Path) -> None:
    whole = peak_of(tmp_path / "whole", PICTURES, 9, 256, 1)
    run = limited(tmp_path / "tight", PICTURES, int(whole * 0.65), 9, 256, 1)
    assert run.process.exitcode == 1
    assert run.output == ""
    failure = run.report["failure"]
    assert failure["failureClass"] == "OutOfMemory"
    assert "batch split skipped: BatchNorm2d 1.0.norm learns from the whole" in failure["message"]
    assert "activation checkpointing skipped: no list of two" in failure["message"]
    needed = failure["neededBytes"]
    assert 0.8 * whole < needed < 1.2 * whole
    assert f"It needs a limit of {needed} bytes" in failure["message"]
    enough = limited(tmp_path / "enough", PICTURES, needed, 9, 256, 1)
    assert enough.process.exitcode == 0, enough.errors
    assert enough.report["current"]["peakMemoryBytes"] <= needed, enough.errors


# `large` is the part of the two that takes most; the graphs of both are held before backward.
PAIR = (
    HEAD
    + """
import re
kind, large, norm = sys.argv[3], sys.argv[4], sys.argv[5]
def body(inputs, outputs, depth):
    layers = [nn.Linear(inputs, 128)]
    for _ in range(depth):
        layers += [nn.Linear(128, 128), nn.BatchNorm1d(128) if norm == "batch" else nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(128, outputs))
class First(nn.Sequential): pass
class Second(nn.Sequential): pass
one = First(*body(16, 32, 12 if large == "first" else 2))
two = Second(*body(32 if kind == "gan" else 16, 1, 12 if large == "second" else 2))
opt = torch.optim.Adam(one.parameters()); opt2 = torch.optim.Adam(two.parameters())
x, real = torch.randn(batch, 16), torch.randn(batch, 32)
status = re.compile(r"^(?:RssAnon|RssShmem):\\s+(\\d+)", re.MULTILINE)
most = 0
def backward(loss):
    global most
    with open("/proc/self/status") as file: now = sum(map(int, status.findall(file.read())))
    most = max(most, now * 1024)
    loss.backward()
def critic():
    opt.zero_grad(); opt2.zero_grad()
    loss = one(x).square().mean() + (two(x) - x[:, :1]).square().mean()
    backward(loss); opt.step(); opt2.step()
    return loss
def gan():
    fake = one(x); opt2.zero_grad()
    loss = F.softplus(-two(real)).mean() + F.softplus(two(fake.detach())).mean()
    backward(loss); opt2.step(); opt.zero_grad()
    loss = F.softplus(-two(fake)).mean(); backward(loss); opt.step()
    return loss
for step in range(steps):
    print(step, (gan if kind == "gan" else critic)().item(), flush=True)
print("most", most)
"""
)


def of_pair(run: WorkerRun) -> tuple[int, list[float]]:
    """What was held at most when a backward began, and the losses."""
    most = re.search(r"^most (\d+)$", run.output, re.MULTILINE)
    assert most is not None, run.errors
    return int(most[1]), [float(line.split()[1]) for line in run.output.splitlines()[:-1]]


# How often a limit is lowered until the whole batch no longer fits.
TRIALS_MAX = 4


def predicted_of(run: WorkerRun) -> int:
    """The larger of what the two were predicted to take; a heap without a limit keeps more."""
    predicted = re.findall(r"(\d+) MiB predicted for 8192 samples", run.errors)
    return max(map(int, predicted)) * 2**20


@pytest.mark.parametrize("kind", ["critic", "gan"])
@pytest.mark.parametrize("large", ["first", "second"])
def test_a_limit_is_kept_by_two_that_train_together(kind: str, large: str, tmp_path: Path) -> None:
    arguments = (12, 8192, kind, large, "none")
    whole = limited(tmp_path / "whole", PAIR, 2**40, *arguments)
    _, losses = of_pair(whole)
    module = "" if large == "first" else " of Second"
    applied = f"gpujob: batch split{module} applied: 8192 samples in steps of"
    run, limit = whole, 0
    for trial in range(TRIALS_MAX):
        # Near a limit the heap gives back what it keeps otherwise, and the whole may fit.
        limit = int(0.95 * predicted_of(run))
        run = limited(tmp_path / f"tight{trial}", PAIR, limit, *arguments)
        if applied in run.errors:
            break
    assert run.process.exitcode == 0, run.errors
    assert applied in run.errors
    most, split = of_pair(run)
    # From the first step on, but for what a heap keeps; without a look at both it was a fifth more.
    assert most <= limit * 1.1, run.errors
    assert run.report["baseline"]["peakMemoryBytes"] <= limit * 1.1, run.errors
    assert split == pytest.approx(losses, rel=1e-4)


def test_a_second_module_that_does_not_fit_ends_the_run_before_its_first_call(
    tmp_path: Path,
) -> None:
    arguments = (9, 8192, "critic", "second", "batch")
    free = limited(tmp_path / "whole", PAIR, 2**40, *arguments)
    # Of the probes before its first call; later ones see what a heap without a limit keeps.
    probed = re.search(r"limit of Second (\d+) MiB predicted for 8192 samples, the", free.errors)
    assert probed is not None, free.errors
    whole = int(probed[1]) * 2**20
    run = limited(tmp_path / "tight", PAIR, int(whole * 0.86), *arguments)
    assert run.process.exitcode == 1
    assert run.output == "", "no step was made above the limit"
    failure = run.report["failure"]
    assert failure["failureClass"] == "OutOfMemory"
    assert "BatchNorm1d 2 learns from the whole" in failure["message"]
    assert "memory limit of Second skipped: cannot be kept" in run.errors
    needed = failure["neededBytes"]
    assert 0.9 * whole < needed < 1.2 * whole
    enough = limited(tmp_path / "enough", PAIR, needed, *arguments)
    assert enough.process.exitcode == 0, enough.errors
    assert of_pair(enough)[0] <= needed
