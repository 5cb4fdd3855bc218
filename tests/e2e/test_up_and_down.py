"""`gpujob-local up --nodes kubelet` and `down`, also after a crash: nothing stays."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from gpujob_local.cluster.state import ClusterState, cluster_directory
from gpujob_local.kubelets import cgroups
from gpujob_local.kubelets.record import Record
from gpujob_local.kubelets.requirements import Machine, refusal
from gpujob_local.processes.processes import marked_processes
from tests.harness.guides import commands
from tests.harness.repository import ROOT
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NAME = f"e2e-command-{os.getpid()}"
COMMAND_SECONDS = 240


def gpujob_local(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "gpujob_local", *arguments, "--name", NAME],
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


@pytest.fixture
def directory() -> Generator[Path]:
    if words := refusal(Machine.look()):
        pytest.skip(words)
    gpujob_local("down")
    yield cluster_directory(NAME)
    gpujob_local("down")


def kubectl(*arguments: str) -> str:
    environment = os.environ | ClusterState.read(NAME).environment
    return subprocess.run(
        ["kubectl", *arguments], capture_output=True, text=True, env=environment, check=True
    ).stdout


def play_guide() -> None:
    """What the guide does with the cluster that is up, in one shell."""
    first, *others = commands(ROOT / "docs" / "guides" / "kubelets.md")[2:-1]
    assert first.startswith("eval")
    ours = f"{shlex.quote(sys.executable)} -m gpujob_local env --name {NAME}"
    lines = [first.replace(".venv/bin/gpujob-local env", ours), *others]
    subprocess.run(
        ["bash", "-euc", "\n".join(lines).replace(" --watch", "")],
        cwd=ROOT,
        timeout=COMMAND_SECONDS,
        check=True,
    )
    status = ("get", "gpujob", "classifier", "--output=jsonpath={.status.phase}")
    wait_until(lambda: kubectl(*status) == "Running", COMMAND_SECONDS, "the guide's job runs")


def test_a_cluster_comes_crashes_comes_again_and_goes(directory: Path) -> None:
    up = gpujob_local("up", "--nodes", "kubelet:1")
    assert up.returncode == 0, up.stdout + up.stderr
    assert "torch is not copied" in up.stdout, "what is not real is said"
    assert "helm install" in up.stdout
    assert " Ready " in kubectl("get", "nodes", "--no-headers")
    play_guide()
    again = gpujob_local("up", "--nodes", "kubelet:1")
    assert again.returncode == 1
    assert "is up already" in again.stderr
    status = gpujob_local("status")
    assert "use kubectl" in status.stderr

    state, record = ClusterState.read(NAME), Record.read(directory)
    assert record is not None
    os.kill(state.owner_pid, signal.SIGKILL)
    wait_until(lambda: not state.alive(), 10, "the owner is gone")
    up = gpujob_local("up", "--nodes", "kubelet:1")
    assert up.returncode == 0, up.stdout + up.stderr
    assert f"removed what an earlier cluster {NAME} left" in up.stdout
    assert marked_processes(state.marker) == []

    second = ClusterState.read(NAME)
    down = gpujob_local("down")
    assert down.returncode == 0, down.stderr
    assert not directory.exists()
    assert marked_processes(second.marker) == []
    for group in record.cgroups:
        for hierarchy in cgroups.hierarchies():
            assert not (hierarchy / group.lstrip("/")).exists()
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()


def test_after_a_crash_down_alone_cleans(directory: Path) -> None:
    up = gpujob_local("up", "--nodes", "kubelet:1")
    assert up.returncode == 0, up.stdout + up.stderr
    state = ClusterState.read(NAME)
    os.kill(state.owner_pid, signal.SIGKILL)
    down = gpujob_local("down")
    assert down.returncode == 0, down.stderr
    assert not directory.exists()
    assert marked_processes(state.marker) == []
