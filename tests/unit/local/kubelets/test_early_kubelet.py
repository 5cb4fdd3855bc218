"""A kubelet that came before containerd's service for kubelets is started again; no other one."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_local.kubelets.node import KubeletNode
from gpujob_local.processes.processes import Child

EARLY = 'command failed err="rpc error: code = Unavailable desc = server is not initialized yet"'


class Started(KubeletNode):
    """A node of which only the kubelet's process is there."""

    def __init__(self, kubelet: Child) -> None:
        self.children = {"kubelet": kubelet}
        self.starts = 0

    def start_kubelet(self) -> None:
        self.starts += 1


def kubelet(folder: Path, said: str, code: str) -> Child:
    log = folder / "kubelet.log"
    log.write_text(said)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    return Child("kubelet", process, log)


@pytest.mark.parametrize(
    ("said", "code", "starts"),
    [
        (EARLY, "raise SystemExit(1)", 1),
        ("no such flag", "raise SystemExit(1)", 0),
        (EARLY, "input()", 0),
    ],
    ids=["too early", "another reason", "it runs"],
)
def test_only_one_that_was_too_early_begins_again(
    said: str, code: str, starts: int, tmp_path: Path
) -> None:
    child = kubelet(tmp_path, said, code)
    if "Exit" in code:
        child.process.wait(30)
    node = Started(child)
    node.restart_early_kubelet()
    assert node.starts == starts
    child.process.communicate(b"\n", 30)
