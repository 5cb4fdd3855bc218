"""A script that saves where it catches `KeyboardInterrupt` does so when it is asked to stop."""

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpujob_worker.run.keyboard_interrupt import caught_by_script
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = pytest.mark.timeout(240)
LOOP = """
import os, signal, torch
from torch import nn
def loop():
    net = nn.Linear(4, 1); opt = torch.optim.SGD(net.parameters(), 0.1)
    try:
        for step in range(40):
            if step == 5: os.kill(os.getpid(), signal.SIGTERM)
            opt.zero_grad(); net(torch.ones(2, 4)).sum().backward(); opt.step()
    except CAUGHT:
        print("saved after", step)
    finally:
        print("cleaned up")
"""
KEYBOARD = LOOP.replace("CAUGHT", "(KeyboardInterrupt, ZeroDivisionError)")


def ran(folder: Path) -> tuple[int, WorkerRun]:
    settings = {"compile": "Off", "precision": "float32"}
    return run_worker(folder / "run", ["python", str(folder / "train.py")], settings=settings)


def test_it_saves_and_ends_as_it_likes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEYBOARD + "loop()\nprint('end')\n")
    code, run = ran(tmp_path)
    assert run.output.split("\n")[:3] == ["saved after 5", "cleaned up", "end"], run.errors
    assert code == 0
    assert run.report["phase"] == "draining"
    assert run.report["step"] == 6


@pytest.mark.parametrize("where", ["another error", "a library", "a target folder"])
def test_others_leave_as_they_did(where: str, tmp_path: Path) -> None:
    """Whoever catches nothing of the kind; and a library, which would leave in its own way."""
    text = LOOP.replace("CAUGHT", "ZeroDivisionError") + "loop()\nprint('end')\n"
    if where != "another error":
        folder = "site-packages" if where == "a library" else "packages"
        library = tmp_path / folder / "trainer.py"
        record = library.parent / "trainer-1.0.dist-info" / "RECORD"
        record.parent.mkdir(parents=True)
        record.write_text("trainer.py,,\n")
        library.write_text(KEYBOARD)
        text = f"import sys; sys.path.insert(0, {str(library.parent)!r})\n"
        text += "import trainer\ntrainer.loop()\nprint('end')\n"
    (tmp_path / "train.py").write_text(text)
    code, run = ran(tmp_path)
    assert (code, run.output) == (144, "cleaned up\n"), run.errors
    assert run.report["phase"] == "draining"


def frame_of() -> FrameType:
    return sys._getframe(1)  # pyright: ignore[reportPrivateUsage]


def test_the_place_of_the_call_decides() -> None:
    try:

        def made_inside() -> bool:
            return caught_by_script(frame_of())

        assert made_inside()
    except KeyboardInterrupt:
        raise AssertionError from None
    assert not made_inside(), "it is called outside"
    assert caught_by_script(frame_of()) is False
    try:
        found = frame_of()
        assert caught_by_script(found)
        try:
            raise ValueError
        except ValueError:
            assert caught_by_script(frame_of()), "an outer one"
    except KeyboardInterrupt:
        raise AssertionError from None
    else:
        assert not caught_by_script(found), "it is past the place"
    assert not caught_by_script(None)


def test_code_without_a_file_is_the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of `python -c`, whose lines Python 3.13 keeps."""
    name = "<string>"
    text = "def run(probe):\n  try: return probe()\n  except KeyboardInterrupt: pass\n"
    monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(True), name))
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)
    assert names["run"](lambda: caught_by_script(frame_of()))
