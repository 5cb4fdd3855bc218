"""Whatever starts it, a process that trains is measured; what does not train stays as it is."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.report import Report, WorkerPhase
from gpujob_worker.launch.command import hooked
from gpujob_worker.options import ENV_OPTIONS

pytestmark = pytest.mark.timeout(240)
SLOW = pytest.mark.slow

TRAINING = """
import sys, torch
from torch import nn
def train(rank=0, steps=12):
    torch.set_num_threads(1); torch.manual_seed(rank)
    net = nn.Linear(4, 1); opt = torch.optim.Adam(net.parameters(), lr=0.1)
    for i in range(steps):
        if "fail" in sys.argv and i == 5: raise ValueError("it broke in the child")
        opt.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); opt.step()
    print(f"trained {rank}\\n", end="", flush=True)
"""
PLAIN = TRAINING + "train()\n"
CHILDREN = (
    TRAINING
    + """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context(sys.argv[1]).Process(target=train)
    child.start(); child.join()
    print("parent", child.exitcode); sys.exit(child.exitcode)
"""
)
# The optimizer, and with it the graph, is there before the child is.
SHARED = """
import os, torch
from torch import nn
torch.set_num_threads(1)
net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), lr=0.1)
pid = os.fork()
if not pid:
    for i in range(12):
        opt.zero_grad(); net(torch.ones(8, 4)).square().mean().backward(); opt.step()
else:
    os.waitpid(pid, 0); print("parent")
"""
DATA_PARALLEL = """
import os, sys, torch
import torch.distributed as dist, torch.multiprocessing as multiprocessing
from torch import nn
def train(rank, size):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/group", rank=rank,
                            world_size=size)
    torch.set_num_threads(1); torch.manual_seed(1)
    net = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for i in range(14):
        x = torch.randn(16, 8, generator=generator)
        opt.zero_grad(); (net(x) - x.sum(1, keepdim=True)).square().mean().backward(); opt.step()
    values = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
    with open(f"{rank}.txt", "w") as out: out.write(f"{opt.param_groups[0]['fused']} {values}")
    dist.destroy_process_group()
if __name__ == "__main__":
    multiprocessing.spawn(train, args=(int(sys.argv[1]),), nprocs=int(sys.argv[1]), join=True)
"""
EVALUATING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
net = torch.nn.Linear(4, 1)
data = TensorDataset(torch.ones(16, 4))
for _ in range(2):
    # From Python 3.14 on another method is chosen, and a script without a main guard fails.
    for (x,) in DataLoader(data, 16, num_workers=1, multiprocessing_context="fork"):
        with torch.no_grad(): net(x)
print("evaluated")
"""


def run(
    folder: Path,
    words: list[str],
    source: str,
    settings: dict[str, Any] | None = None,
    options: str = "--explain --tuning-seconds 1",
) -> tuple[subprocess.CompletedProcess[str], Report | None]:
    """In the environment of a pod whose command does not begin with `gpujob-run`."""
    (folder / "train.py").write_text(source)
    message = folder / "termination"
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "GPUJOB_TERMINATION_FILE": str(message),
        "GPUJOB_SETTINGS": json.dumps(settings or {}),
        ENV_OPTIONS: options,
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        words,
        cwd=folder,
        env={**hooked(environment), "GPUJOB_FIRST_PROCESS": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    written = message.read_text() if message.exists() else ""
    return done, Report.from_text(written) if written else None


def test_a_script_of_a_shell(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("set -e\npython -u train.py\necho after\n")
    done, report = run(tmp_path, ["sh", "run.sh"], PLAIN)
    assert (done.returncode, done.stdout) == (0, "trained 0\nafter\n"), done.stderr
    assert report is not None, done.stderr
    assert (report.step, report.phase) == (12, WorkerPhase.FINISHED)
    assert "gpujob: fused optimizer" in done.stderr


def test_a_console_script(tmp_path: Path) -> None:
    command = tmp_path / "train-it"
    # As pip writes such a command where the interpreter's path is too long for a first line or has
    # spaces: the second line is shell and, for Python, a part of a string.
    shell = f"""#!/bin/sh\n'''exec' "{sys.executable}" "$0" "$@"\n' '''\n"""
    command.write_text(f"{shell}import train\n")
    command.chmod(0o755)
    done, report = run(tmp_path, [str(command)], PLAIN)
    assert (done.returncode, done.stdout) == (0, "trained 0\n"), done.stderr
    assert report is not None, done.stderr
    assert report.step == 12


@pytest.mark.parametrize("method", ["", "fork"])
def test_settings_among_the_options_are_in_place_of_others(method: str, tmp_path: Path) -> None:
    options, source = """--settings '{"mode":"Off"}'""", CHILDREN if method else PLAIN
    done, report = run(tmp_path, ["python", "train.py", method], source, {}, options)
    assert done.returncode == 0, done.stderr
    assert report is not None, done.stderr
    assert report.explain == ("everything skipped: optimize mode is Off",)


@pytest.mark.parametrize("method", ["spawn", "fork", pytest.param("forkserver", marks=SLOW)])
def test_a_child_of_the_script(method: str, tmp_path: Path) -> None:
    done, report = run(tmp_path, ["python", "train.py", method], CHILDREN)
    assert (done.returncode, done.stdout) == (0, "trained 0\nparent 0\n"), done.stderr
    assert report is not None, done.stderr
    assert (report.step, report.phase) == (12, WorkerPhase.FINISHED)


@pytest.mark.parametrize(
    "method",
    ["spawn", pytest.param("fork", marks=SLOW), pytest.param("forkserver", marks=SLOW)],
)
def test_a_child_that_fails_says_why(method: str, tmp_path: Path) -> None:
    done, report = run(tmp_path, ["python", "train.py", method, "fail"], CHILDREN)
    assert (done.returncode, done.stdout) == (1, "parent 1\n"), done.stderr
    assert report is not None, done.stderr
    assert report.failure is not None
    assert report.failure.message == "ValueError: it broke in the child"


def test_a_forked_child_with_the_parents_optimizer(tmp_path: Path) -> None:
    done, report = run(tmp_path, ["python", "train.py"], SHARED)
    assert (done.returncode, done.stdout) == (0, "parent\n"), done.stderr
    assert report is not None, done.stderr
    assert report.step == 12


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=SLOW)])
def test_spawned_replicas_decide_together(size: int, tmp_path: Path) -> None:
    done, report = run(tmp_path, ["python", "train.py", str(size)], DATA_PARALLEL)
    assert done.returncode == 0, done.stderr
    replicas = {(tmp_path / f"{rank}.txt").read_text() for rank in range(size)}
    assert len(replicas) == 1, "the processes drifted apart"
    assert replicas.pop().startswith("True "), "the fused optimizer was not applied"
    assert done.stderr.count(f"{size} processes decided together") == size
    assert report is not None, done.stderr
    assert report.step == 14


def test_what_only_evaluates_says_nothing(tmp_path: Path) -> None:
    done, report = run(tmp_path, ["python", "train.py"], EVALUATING)
    assert (done.returncode, done.stdout, done.stderr) == (0, "evaluated\n", "")
    assert report is None


LOOPING = (
    TRAINING
    + """
print("ready", flush=True)
train(steps=10**6)
"""
)


def test_a_stop_of_the_first_process(tmp_path: Path) -> None:
    """As process 1 of a container: without a handler the kernel would drop the signal."""
    (tmp_path / "train.py").write_text(LOOPING)
    own = [sys.executable, "-m", "gpujob_worker", "--", "python", "train.py"]
    message = tmp_path / "termination"
    environment = {**os.environ, "GPUJOB_TERMINATION_FILE": str(message)}
    with subprocess.Popen(own, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 144
        finally:
            process.kill()
    assert Report.from_text(message.read_text()).phase is WorkerPhase.DRAINING


STOPPED_CHILDREN = (
    TRAINING
    + """
import multiprocessing
if __name__ == "__main__":
    print("ready", flush=True)
    child = multiprocessing.get_context("fork").Process(target=train, args=(0, 10**6))
    child.start(); child.join(); print("not here", flush=True)
"""
)


def test_a_stop_of_a_process_whose_children_train(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STOPPED_CHILDREN)
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--", "python", "train.py"]
    with subprocess.Popen(
        own, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "ready\n"
            # What the child says of its tuning: it has made its first steps.
            assert process.stderr.readline().startswith("gpujob: ")
            process.send_signal(signal.SIGTERM)
            rest, _ = process.communicate(timeout=100)
            assert process.returncode == 144
            assert "not here" not in rest
        finally:
            process.kill()
