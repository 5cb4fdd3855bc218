"""Sessions of a day, typed on a real control plane; each ends as its transcript.

`python -m tests.integration.cli.test_cli_sessions` writes the transcripts again.
"""

import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpujob_local.cluster.options import NodeOptions
from gpujob_local.control_plane.tools import find_tools
from tests.harness.scene import IMAGE, Scene, chaos_options, running_scene
from tests.harness.sessions import Session, sessions_in

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

FOLDER = Path(__file__).parent / "sessions"
SESSIONS = sessions_in(FOLDER)
NODES = (NodeOptions("node-1", cards=2),)
GONE_SECONDS_MAX = 30.0
SCRIPT = """\
import argparse, pathlib, signal, sys, time

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
parser = argparse.ArgumentParser(prog="train.py")
parser.add_argument("--steps", type=int, default=1)
parser.add_argument("--fail", action="store_true")
options = parser.parse_args()
for step in range(options.steps):
    print("step", step, flush=True)
    time.sleep(0.05)
if options.fail:
    raise ValueError("label 1001 is out of range")
"""


@dataclass(frozen=True, slots=True)
class Terminal:
    """A terminal in the folder of a script. Each session has a namespace of its own."""

    scene: Scene
    folder: Path

    def play(self, session: Session) -> str:
        # Without digits, which would look like a time.
        namespace = "day-" + "".join(secrets.choice("abcefg") for _ in range(8))
        self.scene.client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        kubeconfig = self.folder / f"{namespace}.kubeconfig"
        config = yaml.safe_load(self.scene.cluster.control_plane.kubeconfig.read_text())
        config["contexts"][0]["context"]["namespace"] = namespace
        kubeconfig.write_text(yaml.safe_dump(config))
        try:
            text = session.played(lambda words: self._run(words, kubeconfig))
            return _steady_paths(text).replace(namespace, "day")
        finally:
            self._run(["cancel", "--all", "-y"], kubeconfig)
            self._wait_until_gone(namespace)

    def _run(self, words: Sequence[str], kubeconfig: Path) -> tuple[str, int]:
        kubectl = find_tools()["kubectl"].parent
        environment = {
            **os.environ,
            "PATH": f"{kubectl}{os.pathsep}{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "KUBECACHEDIR": str(self.folder / ".kubectl-cache"),
            "GPUJOB_IMAGE": IMAGE,
            "COLUMNS": "100",
        }
        ran = subprocess.run(
            [sys.executable, "-m", "kubectl_gpujob", *words],
            cwd=self.folder / "scripts", env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=120, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        return ran.stdout, ran.returncode

    def _wait_until_gone(self, namespace: str) -> None:
        deadline = time.monotonic() + GONE_SECONDS_MAX
        path = f"/api/v1/namespaces/{namespace}/pods"
        while self.scene.client.get(path)["items"]:
            assert time.monotonic() < deadline, f"pods in {namespace}"
            time.sleep(0.1)


def _steady_paths(text: str) -> str:
    """Returns the text with the folders of pods, which are those of process nodes, replaced."""
    return re.sub(r"/\S*/pods/<id>/\S*/(?=[\w.]+['\"])", "<pod>/", text)


def _terminal(scene: Scene, folder: Path) -> Terminal:
    (folder / "scripts").mkdir()
    (folder / "scripts" / "train.py").write_text(SCRIPT)
    return Terminal(scene, folder)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Generator[Terminal]:
    with running_scene(chaos_options(NODES)) as scene:
        yield _terminal(scene, tmp_path_factory.mktemp("terminal"))


def test_there_are_enough_sessions() -> None:
    assert len(SESSIONS) >= 20


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.name)
def test_a_session_ends_as_it_is_written(terminal: Terminal, session: Session) -> None:
    assert terminal.play(session) == session.text


def record(names: Sequence[str]) -> None:
    """Writes the named transcripts again, or all."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder, running_scene(chaos_options(NODES)) as scene:
        terminal = _terminal(scene, Path(folder))
        for session in SESSIONS:
            if not names or session.name in names:
                text = terminal.play(session)
                (FOLDER / f"{session.name}.txt").write_text(text, encoding="utf-8")
                print("same" if text == session.text else "changed", session.name, flush=True)


if __name__ == "__main__":
    record(sys.argv[1:])
