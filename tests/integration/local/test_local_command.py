"""`gpujob-local` as people use it: every way in which a cluster ends leaves nothing behind."""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gpujob_local.cluster.options import WORKER_IMAGE
from gpujob_local.cluster.state import ClusterState, in_use
from gpujob_local.processes.processes import marked_processes

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(180)]

COMMAND = [sys.executable, "-m", "gpujob_local"]
SMALL = ["--nodes", "1", "--spot", "0", "--cards", "1", "--no-operator", "--no-agents"]


class Machine:
    """A state folder of its own, so that clusters of others are not touched."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environment = os.environ | {"GPUJOB_LOCAL_STATE": str(root)}

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*COMMAND, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def state(self, name: str = "default") -> ClusterState:
        return ClusterState.read(name)

    def clean(self) -> bool:
        return list(self.root.iterdir()) == []


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Generator[Machine]:
    root = Path(tempfile.mkdtemp(prefix="gpujob-cli-"))
    monkeypatch.setenv("GPUJOB_LOCAL_STATE", str(root))
    machine = Machine(root)
    yield machine
    for folder in root.iterdir():
        machine.run("down", "--name", folder.name)
    shutil.rmtree(root)


def until(condition: Callable[[], bool], what: str, limit_seconds: float = 60) -> None:
    deadline = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def nothing_left(machine: Machine, marker: str) -> bool:
    return marked_processes(marker) == [] and machine.clean()


def test_a_cluster_from_up_to_down(machine: Machine) -> None:
    done = machine.run("up", "--nodes", "2", "--spot", "1", "--cards", "2", *SMALL[-2:])
    assert done.returncode == 0, done.stdout + done.stderr
    state = machine.state()
    shown = machine.run("env").stdout
    kubeconfig = re.search(r"export KUBECONFIG='(.*)'", shown)
    assert kubeconfig is not None
    script = f"{shown}\nkubectl get nodes -o name"
    listed = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout
    assert listed.split() == ["node/node-1", "node/spot-1"]
    taken = machine.run("unmanaged-process", "node-1/1", "--memory", "300Mi")
    assert taken.stdout.startswith("unmanaged-"), taken.stderr
    table = machine.run("status").stdout
    [row] = [line for line in table.splitlines() if "CPU-node-1-1" in line]
    assert re.search(r"30\d MiB of 2 GiB", row)
    assert machine.run("kill", taken.stdout.strip()).returncode == 0
    until(
        lambda: "0 B of 2 GiB" in machine.run("status").stdout,
        "the unmanaged process's memory is free",
    )
    assert "kube-apiserver" in machine.run("logs").stdout.split()
    assert machine.run("reclaim", "spot-1", "--notice", "0", "--grace", "1").returncode == 0
    listed = subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout
    assert listed.split() == ["node/node-1"]
    assert machine.run("down").returncode == 0
    assert nothing_left(machine, state.marker)


def test_parts_that_were_killed_are_started_again(machine: Machine) -> None:
    assert machine.run("up", *SMALL).returncode == 0
    # The second operator gets the Lease of the first one.
    for _ in range(2):
        started = machine.run("start", "operator")
        assert started.returncode == 0, started.stderr
        again = machine.run("start", "operator")
        assert (again.returncode, again.stderr) == (1, "gpujob-local: operator runs already\n")
        assert machine.run("kill", "operator").returncode == 0
    assert machine.run("start", "agent-node-1").returncode == 0
    assert machine.run("kill", "node-1").returncode == 0
    assert machine.run("start", "node-1").returncode == 0
    assert machine.run("start", "node-1").returncode == 1
    wrong = machine.run("start", "etcd")
    assert wrong.returncode == 1
    assert (
        "no part 'etcd' can be started; there are: operator, node-1, agent-node-1" in wrong.stderr
    )


def test_two_named_clusters_side_by_side(machine: Machine) -> None:
    for name in ("one", "two"):
        assert machine.run("up", "--name", name, *SMALL).returncode == 0
    again = machine.run("up", "--name", "one", *SMALL)
    assert again.returncode == 1
    assert "'one' is up already" in again.stderr
    first, second = machine.state("one"), machine.state("two")
    for state in (first, second):
        kubectl = shutil.which("kubectl", path=state.environment["PATH"]) or ""
        marked = [kubectl, "create", "namespace", f"only-in-{state.name}"]
        subprocess.run(marked, check=True, env=os.environ | state.environment)
        listed = subprocess.run(
            [kubectl, "get", "namespaces", "-o", "name"],
            check=True,
            env=os.environ | state.environment,
            capture_output=True,
            text=True,
        ).stdout
        assert [line for line in listed.split() if "only-in" in line] == [
            f"namespace/only-in-{state.name}"
        ]
    assert machine.run("down", "--name", "one").returncode == 0
    assert marked_processes(first.marker) == []
    assert len(marked_processes(second.marker)) >= 6
    assert machine.run("status", "--name", "two").returncode == 0
    assert machine.run("down", "--name", "two").returncode == 0
    assert nothing_left(machine, second.marker)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_ends(machine: Machine, number: signal.Signals) -> None:
    assert machine.run("up", *SMALL).returncode == 0
    state = machine.state()
    pod = """{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "works"}, "spec":
        {"containers": [{"name": "worker", "image": "IMAGE", "command":
        ["python", "-c", "import subprocess; subprocess.run(['sleep', '600'])"]}]}}"""
    pod = pod.replace("IMAGE", WORKER_IMAGE)
    kubectl = [shutil.which("kubectl", path=state.environment["PATH"]) or "", "create", "-f", "-"]
    subprocess.run(kubectl, input=pod, text=True, check=True, env=os.environ | state.environment)

    def sleeps() -> bool:
        commands = [Path(f"/proc/{pid}/cmdline") for pid in marked_processes(state.marker)]
        return any(path.exists() and b"sleep\x00600" in path.read_bytes() for path in commands)

    until(sleeps, "the pod's child runs")
    os.kill(state.owner_pid, number)
    until(lambda: nothing_left(machine, state.marker), "processes or files are left")


def test_control_c_while_starting_leaves_nothing(machine: Machine) -> None:
    before = secrets.token_hex(4)
    starting = subprocess.Popen(
        [*COMMAND, "up", "--name", before, *SMALL],
        env=machine.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    directory = machine.root / before
    until(lambda: (directory / "control-plane" / "etcd").exists(), "etcd has started")
    os.killpg(starting.pid, signal.SIGINT)
    starting.communicate(timeout=60)
    assert starting.returncode != 0
    until(lambda: machine.clean() and not in_use(directory), "processes or files are left")


def test_mistakes_are_answered_in_one_line(machine: Machine) -> None:
    absent = machine.run("status")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr == "gpujob-local: no cluster 'default' is running (running: none)\n"
    assert "--name must be letters" in machine.run("up", "--name", "../evil").stderr
    assert "must be a quantity such as 20Gi" in machine.run("up", "--card-memory", "2GB").stderr
    assert "--spot 4 is more than --nodes 3" in machine.run("up", "--spot", "4").stderr
    assert machine.clean()
