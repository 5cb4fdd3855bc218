"""deepspeed, mpirun and srun: their ranks are recognised, and they themselves left alone.

None of the three is installed. Stand-ins start processes as they do, with the variables that they
set: `deepspeed` runs `python -m deepspeed.launcher.launch`, which runs `python script
--local_rank=N` for each rank; `mpirun` and `srun` are no Python, and start each rank themselves.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_api.report import Report, WorkerPhase
from gpujob_worker.run.environment import read_environment
from gpujob_worker.run.session import Session
from tests.worker.launch.test_launchers import run_under

pytestmark = pytest.mark.timeout(240)
SCRIPT = """
import argparse, os, sys, torch, torch.distributed as dist
from torch import nn
options = argparse.ArgumentParser()
options.add_argument("--local_rank", type=int, default=-1); options = options.parse_args()
def named(*names): return int(next(os.environ[name] for name in names if name in os.environ))
rank = named("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
size = named("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")
if "deepspeed" in os.environ["STAND_IN"]: assert options.local_rank == rank
where = f"file://{os.getcwd()}/group"
dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
torch.manual_seed(1); torch.set_num_threads(1)
net = nn.parallel.DistributedDataParallel(nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(64, 8)[rank::2]
for i in range(9): opt.zero_grad(); net(x).square().mean().backward(); opt.step()
sys.stdout.write(f"rank {rank}\\n"); sys.stdout.flush()  # in one piece
dist.destroy_process_group()
"""
# The console script imports it and calls `main`.
RUNNER = """
import subprocess, sys
def main():
    module = "deepspeed.launcher.launch"
    words = [sys.executable, "-u", "-m", module, "--world_info=e30=", "--node_rank=0"]
    sys.exit(subprocess.call(words + sys.argv[1:]))
"""
# As pip writes it where the interpreter's path is long or has spaces.
CONSOLE_SCRIPT = f"""#!/bin/sh
'''exec' "{sys.executable}" "$0" "$@"
' '''
from deepspeed.launcher.runner import main
main()
"""
LAUNCHED = [sys.executable, "-u", "-m", "deepspeed.launcher.launch", "--node_rank=0"]
LAUNCH = """
import os, subprocess, sys
import torch
ranks = [word for word in sys.argv[1:] if not word.startswith("--")]
def started(rank):
    env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2",
               CROSS_RANK="0", CROSS_SIZE="1", LOCAL_SIZE="2")
    words = [sys.executable, "-u", ranks[0], f"--local_rank={rank}", *ranks[1:]]
    return subprocess.Popen(words, env=env)
children = [started(rank) for rank in range(2)]
sys.exit(max(child.wait() for child in children))
"""
VARIABLES = {
    "mpirun": "OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$rank",
    "mpiexec": "PMI_RANK=$rank PMI_SIZE=2 MPI_LOCALRANKID=$rank",
    "srun": "SLURM_PROCID=$rank SLURM_NTASKS=2 SLURM_LOCALID=$rank",
}
STARTS = """#!/bin/sh
for rank in 0 1; do env VARIABLES "$@" & pids="$pids $!"; done
for pid in $pids; do wait $pid || exit 1; done
"""


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def launched(
    folder: Path, launcher: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("STAND_IN", name)
    return run_under(folder, SCRIPT, launcher)


def all_are_recognised(folder: Path, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"rank {rank}" in done.stdout
    assert done.stderr.count("processes 2 processes decided together") == 2, done.stderr
    assert "no optimizer of torch made a step" not in done.stderr
    report = Report.from_text((folder / "termination").read_text())
    assert (report.step, report.phase) == (9, WorkerPhase.FINISHED)
    assert "processes 2 processes decided together" in "\n".join(report.explain)


@pytest.mark.parametrize("name", VARIABLES)
def test_ranks_of_a_program_that_is_not_python(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = STARTS.replace("VARIABLES", VARIABLES[name])
    launcher = [program(tmp_path / name, text), sys.executable]
    all_are_recognised(tmp_path, launched(tmp_path, launcher, name, monkeypatch))


@pytest.mark.parametrize("first", ["deepspeed", "deepspeed's launcher of one node"])
def test_ranks_of_deepspeed(first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site" / "deepspeed" / "launcher"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "launch.py").write_text(LAUNCH)
    (package / "runner.py").write_text(RUNNER)
    path = f"{package.parent.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", path.rstrip(os.pathsep))
    runner = program(tmp_path / "deepspeed", CONSOLE_SCRIPT)
    launcher = [runner] if first == "deepspeed" else LAUNCHED
    all_are_recognised(tmp_path, launched(tmp_path, launcher, "deepspeed", monkeypatch))


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("variables", "local_rank"),
    [
        ({}, None),
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 1),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, 2),
        ({"MPI_LOCALRANKID": "3", "PMI_RANK": "7"}, 3),
        ({"SLURM_LOCALID": "0", "SLURM_PROCID": "4"}, 0),
        ({"SLURM_LOCALID": "what Slurm does not write"}, None),
    ],
)
def test_the_number_on_the_node_is_that_of_the_launcher(
    variables: dict[str, str], local_rank: int | None
) -> None:
    found = read_environment(variables)
    assert (found.local_rank, found.rank, found.world_size) == (local_rank, 0, 1)


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("variables", "rank", "speaks"),
    [
        ({"SLURM_LOCALID": "0"}, 2, True),
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 3, False),
        # Where no launcher says it, one pod is all there is.
        ({}, 0, True),
        ({}, 2, False),
    ],
)
def test_the_first_process_of_each_node_speaks_for_its_pod(
    variables: dict[str, str], rank: int, speaks: bool, tmp_path: Path
) -> None:
    path = tmp_path / "termination"
    session = Session(read_environment({**variables, "GPUJOB_TERMINATION_FILE": str(path)}))
    session.joins(rank, 4)
    session.start()
    session.report()
    assert path.exists() == speaks
