"""Several processes of torchrun: all are hooked, they decide together, and one speaks."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gpujob_worker
from gpujob_api.report import Failure, FailureClass, Report, WorkerPhase
from gpujob_api.settings import Settings
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.reporter import write_termination_message
from gpujob_worker.tune.trial import AcceptanceRule

pytestmark = pytest.mark.timeout(240)

DISTRIBUTED = """
import os, sys, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1); torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
net = nn.parallel.DistributedDataParallel(net)
opt = torch.optim.Adam(net.parameters(), lr=0.01)
x = torch.randn(64, 8)[rank::2]; y = x.sum(1, keepdim=True).tanh()
for i in range(20):
    if "fail" in sys.argv and rank == 1 and i == 12: raise ValueError("rank one broke")
    opt.zero_grad(); loss = (net(x) - y).square().mean(); loss.backward(); opt.step()
total = loss.detach().clone(); dist.all_reduce(total)
if rank == 0: open("loss.txt", "w").write(f"{total.item()} {sys.argv[1:]}")
dist.destroy_process_group()
"""
# Two modules in a step, and a model afterwards.
SEVERAL = """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo"); rank = dist.get_rank()
torch.manual_seed(1); torch.set_num_threads(1)
class First(nn.Sequential): pass
class Second(nn.Sequential): pass
def made(kind, width):
    net = kind(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, width))
    return nn.parallel.DistributedDataParallel(net)
a, b = made(First, 16), made(Second, 1)
opts = [torch.optim.Adam(net.parameters()) for net in (a, b)]
x = torch.randn(64, 16, generator=torch.Generator().manual_seed(rank))
for i in range(12):
    for opt in opts: opt.zero_grad()
    loss = a(x).square().mean() + (b(x) - x[:, :1]).square().mean(); loss.backward()
    for opt in opts: opt.step()
c = made(Second, 2); opt = torch.optim.SGD(c.parameters(), lr=0.1)
for i in range(9): opt.zero_grad(); c(x).square().mean().backward(); opt.step()
if rank == 0: open("loss.txt", "w").write(f"{loss.item()} {c(x).sum().item()}")
dist.destroy_process_group()
"""


def launch(
    folder: Path, source: str, launcher: list[str], *arguments: str
) -> tuple[subprocess.CompletedProcess[str], Report]:
    done = run_under(folder, source, launcher, *arguments)
    return done, Report.from_text((folder / "termination").read_text())


def run_under(
    folder: Path, source: str, launcher: list[str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(source)
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--"]
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    message = folder / "termination"
    variables = {"PATH": binaries, "GPUJOB_TERMINATION_FILE": str(message)}
    return subprocess.run(
        [*own, *launcher, "train.py", *arguments],
        cwd=folder,
        env={**os.environ, **variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def losses(folder: Path) -> str:
    """As the first process wrote them. Older gloo says on stdout whom it is connected to, in parts
    that run together with the lines of other processes."""
    return (folder / "loss.txt").read_text()


TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]


def test_torchrun_with_two_processes(tmp_path: Path) -> None:
    done, report = launch(tmp_path, DISTRIBUTED, TORCHRUN, "a", "--b")
    assert done.returncode == 0, done.stderr
    written = losses(tmp_path)
    assert written.startswith("0.")
    assert written.endswith("['a', '--b']")
    assert (report.rank, report.step, report.phase) == (0, 20, WorkerPhase.FINISHED)
    said = "\n".join(report.explain)
    assert "processes 2 processes decided together" in said
    assert "could measure and decide differently" not in done.stderr
    assert done.stderr.count("2 processes decided together") == 2


def test_several_modules_of_several_processes_are_said_to_be_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUJOB_MEMORY_LIMIT_BYTES", str(2**40))
    done, report = launch(tmp_path, SEVERAL, TORCHRUN)
    assert done.returncode == 0, done.stderr
    said = "\n".join(report.explain)
    assert "memory limit of Second skipped: nothing was measured: several processes" in said
    assert "memory model is of First; what steps took is of all (First, Second)" in said
    assert "memory limit kept: " in said
    later = "later models skipped: several processes that train together look at the first model"
    assert f"{later} alone; 1 more ran as written, without a look at the memory limit" in said
    tuned = losses(tmp_path)
    monkeypatch.setenv("GPUJOB_SETTINGS", '{"mode": "Off"}')
    launch(tmp_path, SEVERAL, TORCHRUN)
    assert losses(tmp_path) == tuned


FAILS_EARLY = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "raise KeyError('of a process that a rank started')"])
raise ValueError("no such model")
"""


def test_a_rank_that_fails_before_it_trains_says_why(tmp_path: Path) -> None:
    """The launcher reports an exit code only. What a rank starts may fail, and the rank go on."""
    done, report = launch(tmp_path, FAILS_EARLY, ["torchrun", "--standalone"])
    assert done.returncode == 1
    assert report.failure == Failure(FailureClass.USER_ERROR, "ValueError: no such model")


def test_a_rank_that_says_nothing_has_its_code_in_the_launchers_words(tmp_path: Path) -> None:
    done, report = launch(tmp_path, "import os; os._exit(3)", ["torchrun", "--standalone"])
    assert done.returncode == 1
    assert report.failure is not None
    text = "ChildFailedError: train.py: rank 0 ended with exit code 3; the log has its error"
    assert report.failure.message == text


def test_the_process_that_failed_first_has_the_last_word(tmp_path: Path) -> None:
    done, report = launch(tmp_path, DISTRIBUTED, TORCHRUN, "fail")
    assert done.returncode == 1
    assert report.failure is not None
    assert report.failure.message == "ValueError: rank one broke"
    assert report.rank == 1
    assert str(Path(gpujob_worker.__file__).parent) not in done.stderr


DYING = """
import os, torch
import torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
calls = 0
class Dies(nn.Linear):
    def forward(self, x):
        global calls
        calls += 1
        # Seven steps and one look at two samples are over: this is a try of the first process.
        if dist.get_rank() == 0 and calls == 11: os._exit(9)
        return super().forward(x)
net = nn.parallel.DistributedDataParallel(nn.Sequential(Dies(8, 16), nn.Tanh(), nn.Linear(16, 1)))
opt = torch.optim.Adam(net.parameters(), lr=0.01)
for i in range(20):
    opt.zero_grad(); net(torch.randn(16, 8)).square().mean().backward(); opt.step()
"""


def test_a_first_process_that_dies_while_measuring_holds_up_nobody(tmp_path: Path) -> None:
    done = run_under(tmp_path, DYING, TORCHRUN)
    assert done.returncode == 1
    assert "exitcode  : 9" in done.stderr
    # The other one was told to leave and left before the wait's own end.
    assert "tuning skipped: the first process proposed nothing" in done.stderr


def test_last_words_do_not_replace_the_first_failure(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    failed = Report(2, WorkerPhase.TRAINING, 1, failure=Failure(FailureClass.DATA, "first"))
    later = replace(failed, rank=0, failure=Failure(FailureClass.USER_ERROR, "second"))
    for report, expected in (
        (Report(2, WorkerPhase.TRAINING), 0),
        (failed, 1),
        (later, 1),
        (Report(2, WorkerPhase.DRAINING), 1),
        (replace(failed, step=4), 1),
        (Report(3, WorkerPhase.STARTING), 0),
    ):
        write_termination_message(path, report)
        assert json.loads(path.read_text())["rank"] == expected


def test_processes_do_not_decide_by_measuring() -> None:
    log = DecisionLog()
    assert AcceptanceRule(Settings(), log, 1.0).measures("compile", forced=False)
    several = AcceptanceRule(Settings(), log, 1.0, processes=2)
    assert several.measures("compile", forced=True)
    assert not several.measures("compile", forced=False)
    assert log.lines == ("compile skipped: 2 processes could measure and decide differently",)
