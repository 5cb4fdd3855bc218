"""One process of a pod holds the claim on the termination message, and only while it lives."""

import subprocess
import sys
from pathlib import Path

import pytest

from gpujob_worker.run.lineage import Claim

pytestmark = pytest.mark.any_torch
# The holder ends, and what it forked, a loader's process, lives on.
HOLDER = """
import os, sys
from pathlib import Path
from gpujob_worker.run.lineage import Claim
claim = Claim(Path(sys.argv[1]))
assert claim.take()
child = os.fork()
if not child:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
if "waits" in sys.argv:
    os.waitpid(child, 0)
"""


def holder(path: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_one_process_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    first, second = Claim(path), Claim(path)
    assert first.take()
    assert first.take(), "it is held already"
    assert not second.take()
    first.release()
    assert second.take()
    second.release()


def test_a_forked_child_does_not_hold_it_for_a_parent_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    with holder(path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        process.wait(60)
        claim = Claim(path)
        assert claim.take(), "what the holder forked still holds it"
        claim.release()


def test_a_forked_child_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    with holder(path, "waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forked\n"
        assert not Claim(path).take()


def test_where_nothing_can_be_locked_everybody_speaks(tmp_path: Path) -> None:
    assert Claim(None).take()
    assert Claim(tmp_path / "no" / "such" / "folder").take()
