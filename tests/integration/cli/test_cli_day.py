"""A day at the command line, on a real control plane with process nodes: typed commands."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from gpujob_local.cluster.options import NodeOptions
from gpujob_local.control_plane.tools import find_tools
from tests.harness.scene import IMAGE, Scene, chaos_options, running_scene

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = """\
import pathlib, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
pathlib.Path("written").write_text("beside the script")
print("begins with", pathlib.Path("data/words.txt").read_text(), flush=True)
for step in range(int(sys.argv[sys.argv.index("--steps") + 1])):
    print("step", step, flush=True)
    time.sleep(0.1)
if "--fail" in sys.argv:
    raise SystemExit("label 1001 is out of range")
"""


class Desk:
    """A terminal of a user, in the folder of a script."""

    def __init__(self, scene: Scene, folder: Path) -> None:
        self.scene = scene
        self._folder = folder
        kubectl = find_tools()["kubectl"].parent
        self._environment = {
            **os.environ,
            "PATH": f"{kubectl}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(scene.cluster.control_plane.kubeconfig),
            "KUBECACHEDIR": str(folder / ".kubectl-cache"),
            "GPUJOB_IMAGE": IMAGE,
        }

    def types(self, *words: str, code: int = 0) -> str:
        """The output of the command, which must end with the code."""
        ran = subprocess.run(
            [sys.executable, "-m", "kubectl_gpujob", *words],
            cwd=self._folder, env=self._environment, capture_output=True, text=True,
            timeout=120, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert ran.returncode == code, f"{words}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        return ran.stdout + ran.stderr

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.05)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Generator[Desk]:
    folder = tmp_path_factory.mktemp("desk")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "data").mkdir()
    (folder / "data" / "words.txt").write_text("words")
    nodes = (NodeOptions("node-1", cards=2),)
    with running_scene(chaos_options(nodes)) as scene:
        yield Desk(scene, folder)


def test_from_a_script_to_its_log_with_one_command(desk: Desk) -> None:
    shown = desk.types(
        "submit", "first", "--dir", ".", "--follow", "--", "python", "train.py", "--steps", "3"
    )
    assert "gpujob/first created: " in shown
    assert "begins with words\nstep 0\nstep 1\nstep 2\n" in shown
    assert "--- first Succeeded ---" in shown
    assert desk.types("logs", "first", "--tail", "1").splitlines()[0] == "step 2"
    assert desk.types("wait", "first").splitlines() == ["gpujob/first: Succeeded"]
    assert "Succeeded" in desk.types("report", "first")
    assert "Created" in desk.types("timeline", "first")


def test_a_script_that_fails_ends_with_3_and_its_last_line(desk: Desk) -> None:
    words = ("--", "python", "train.py", "--steps", "1", "--fail")
    desk.types("submit", "broken", "--dir", ".", "--wait", *words, code=3)
    assert "label 1001 is out of range" in desk.types("why", "broken")
    assert "Failed:" in desk.types("list", "--failed")
    assert desk.types("list", "--failed", "-o", "name").split() == ["gpujob.gpujob.dev/broken"]
    desk.types("cancel", "--all", "--failed", "-y")
    desk.until(
        lambda: not desk.types("list", "--failed", "-o", "name").strip(" \n").startswith("g"),
        "gone",
    )


def test_suspend_resume_and_rerun(desk: Desk) -> None:
    desk.types("submit", "long", "--dir", ".", "--", "python", "train.py", "--steps", "3000")
    desk.types("wait", "long", "--for", "running", "--timeout", "60s")
    [held] = [one for one in json.loads(desk.types("nodes", "-o", "json"))["items"] if one["jobs"]]
    assert held["jobs"] == ["default/long"]
    assert "is being suspended" in desk.types("suspend", "long")
    desk.until(lambda: "Suspended" in desk.types("list"), "suspended")
    assert "waits for its GPUs again" in desk.types("resume", "long")
    desk.types("wait", "long", "--for", "running", "--timeout", "60s")
    copied = desk.types("rerun", "long", "--name", "short", "--set", "steps=1")
    assert copied == "gpujob/short created, like long\n"
    # The files belong to the first job, and stay as long as it does.
    desk.types("wait", "short", "--timeout", "60s")
    assert "begins with words\nstep 0\n" in desk.types("logs", "short")
    desk.types("wait", "long", "--for", "finished", "--timeout", "1s", code=4)
    assert "is being deleted" in desk.types("cancel", "long")


def test_a_job_in_the_short_form_runs_and_is_seen_at_work(desk: Desk) -> None:
    program = "import time; [print('step', n, flush=True) or time.sleep(0.1) for n in range(600)]"
    spec = {
        "image": IMAGE,
        "command": ["python", "-c", program],
        "env": [{"name": "A", "value": "1"}],
        "gpus": "cpu CARD:1",
    }
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "metadata": {"name": "brief"}}
    desk.scene.create_job({**head, "spec": spec})
    desk.types("wait", "brief", "--for", "running", "--timeout", "60s")
    assert json.loads(desk.types("get", "brief", "-o", "json"))["spec"]["command"][0] == "python"
    [use] = json.loads(desk.types("top", "-o", "json"))["items"]
    assert (use["name"], use["gpus"]) == ("brief", 1)
    cards = json.loads(desk.types("top", "--gpus", "-o", "json"))["items"]
    assert sorted(card["jobs"] for card in cards) == [[], ["default/brief"]]
    shown = desk.types("what-if", "brief", "--priority", "3")
    assert "spec.priority: 0 -> 3" in shown
    assert "the same" in shown
    assert "is interrupted" in desk.types("what-if", "brief", "--without-node", "node-1")
    desk.types("rerun", "brief", "--name", "brief-again", "--set", "lr=1")
    assert "--lr=1" in desk.types("get", "brief-again", "-o", "yaml")
    desk.types("cancel", "-y", "brief", "brief-again")


def test_a_sweep_runs_each_point(desk: Desk) -> None:
    words = ("--dir", ".", "--", "python", "train.py", "--steps", "{n}")
    assert "2 jobs created" in desk.types("sweep", "lengths", "--grid", "n=1,2", *words)
    for number in ("1", "2"):
        desk.types("wait", f"lengths-{number}", "--timeout", "60s")
    assert desk.types("logs", "lengths-2").count("step ") == 2
    assert "n=2" in desk.types("sweep", "lengths")


def test_a_wrong_value_is_named_by_its_option_and_nothing_stays(desk: Desk) -> None:
    words = ("submit", "odd", "--dir", ".", "--memory", "1GB", "--", "python", "train.py")
    assert "error: --memory: spec.gpu.memory: " in desk.types(*words, code=1)
    assert "not found" in desk.types("get", "odd", code=1)
    maps = desk.scene.client.get("/api/v1/namespaces/default/configmaps")["items"]
    assert "odd" not in [one["metadata"]["name"] for one in maps]


def test_a_dry_run_decides_and_creates_nothing(desk: Desk) -> None:
    shown = desk.types("submit", "maybe", "--dry-run", "--", "python", "train.py")
    assert "kind: GPUJob" in shown
    assert "at once on node-1" in shown
    assert "not found" in desk.types("get", "maybe", code=1)


def test_the_cluster_at_a_glance(desk: Desk) -> None:
    [heading, row] = desk.types("gpus").splitlines()
    assert heading.split()[:4] == ["MODEL", "GPUS", "FREE", "USED"]
    assert row.split()[:3] == ["CPU", "card", "2"]
    assert "node-1" in desk.types("nodes")
    assert "default" in desk.types("queue")
    assert "5 of gpujob.dev/v1alpha1" in desk.types("version")
    assert "no pending jobs" in desk.types("simulate")
    assert json.loads(desk.types("list", "-A", "-o", "json"))["kind"] == "List"


def test_what_is_not_there_is_one_line(desk: Desk) -> None:
    for verb in ("why", "report", "logs", "timeline", "checkpoints", "suspend"):
        shown = desk.types(verb, "nobody", code=1)
        assert shown == "error: not found: gpujob nobody in namespace default\n", verb
    assert "did you mean list?" in desk.types("lst", code=2)
