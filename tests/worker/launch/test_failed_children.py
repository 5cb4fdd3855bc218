"""Why a spawned child failed is known under every Python that the worker is let into.

For children that are forked, also by a server, see `test_reach.py`: that takes a torch that the
worker hooks.
"""

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from gpujob_worker.launch.command import HOOK_FOLDER
from tests.harness.pythons import python

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

# What stands for torch here. It is too old, so that the worker does nothing but to see the end.
TORCH = """
import sys
__version__ = "2.3.1"
sys.modules["torch.optim"] = optim = type(sys)("torch.optim")
class Optimizer: pass
optim.Optimizer = Optimizer
"""
PARENT = """
import multiprocessing, traceback
import torch
def train():
    torch.optim.Optimizer()
    try:
        raise KeyError("caught")
    except KeyError:
        traceback.print_exc()
    {ends}
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=train)
    child.start(); child.join()
    print(child.exitcode)
"""
API = HOOK_FOLDER.parents[3] / "api" / "src"


def ended(folder: Path, version: str, ends: str) -> tuple[str, str | None]:
    """The child's exit code and the failure that was reported."""
    program = python(version)
    if program is None:
        pytest.skip(f"no Python {version} here")
    (folder / "torch.py").write_text(TORCH)
    (folder / "train.py").write_text(textwrap.dedent(PARENT).format(ends=ends))
    message = folder / "termination"
    done = subprocess.run(
        [program, "train.py"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join([str(HOOK_FOLDER), str(API)]),
            "GPUJOB_TERMINATION_FILE": str(message),
        },
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert "KeyError: 'caught'" in done.stderr
    failure = json.loads(message.read_text()).get("failure")
    return done.stdout.strip(), failure and failure["message"]


VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_is_said(version: str, tmp_path: Path) -> None:
    ends = 'raise ValueError("it broke in the child")'
    found = ended(tmp_path, version, ends)
    assert found == ("1", "ValueError: it broke in the child")


@pytest.mark.parametrize("version", VERSIONS)
def test_an_error_that_was_caught_is_none(version: str, tmp_path: Path) -> None:
    assert ended(tmp_path, version, "pass") == ("0", None)
