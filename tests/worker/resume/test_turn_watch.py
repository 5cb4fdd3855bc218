"""The watch calls at the beginning of each turn, and leaves nothing behind."""

import functools
import linecache
import sys
import textwrap
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpujob_worker.resume.turn_watch import TurnWatch

pytestmark = pytest.mark.any_torch


class Script:
    """Runs a source in this process; `start()` in it begins to watch, as a step does."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train.py"
        self.turns: list[tuple[str, int]] = []
        # The place that is good enough; all are met if there is none.
        self.wanted: Callable[[FrameType], bool] = lambda frame: False
        self.watch = TurnWatch(self._at_turn)

    def _at_turn(self, frame: FrameType) -> bool:
        self.turns.append((frame.f_code.co_name, frame.f_lineno))
        return self.wanted(frame)

    def run(self, source: str, **more: Any) -> None:
        self.path.write_text(textwrap.dedent(source))
        linecache.checkcache(str(self.path))
        code = compile(self.path.read_text(), str(self.path), "exec")
        start = functools.partial(_start, self.watch)
        names = {"__name__": "__main__", "start": start, **more}
        before = sys.gettrace()
        try:
            exec(code, names)
        finally:
            self.watch.stop()
        assert sys.gettrace() is before


def _start(watch: TurnWatch) -> None:
    watch.start(sys._getframe(1))


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


NESTED = """
def train():
    for i in range(2):
        start()
    return i
for e in range(2):
    train()
"""


def test_each_turn_of_the_loops_around_is_met(script: Script) -> None:
    script.run(NESTED)
    # A function that is called after the watch began is not watched.
    assert script.turns == [("train", 3), ("train", 3), ("<module>", 6), ("<module>", 6)]


def test_functions_that_are_called_meanwhile_are_watched_where_that_is_wanted(
    script: Script,
) -> None:
    script.watch.looks_everywhere = True
    script.run(NESTED)
    first = [("train", 3), ("train", 3), ("<module>", 6)]
    assert script.turns == [*first, ("train", 3), ("train", 3), ("<module>", 6)]


def test_nothing_is_called_after_the_place_was_found(script: Script) -> None:
    script.wanted = lambda frame: frame.f_code.co_name == "<module>"
    script.run(
        """
        def train():
            for i in range(2):
                if not e: start()
        for e in range(3):
            train()
        """
    )
    assert script.turns == [("train", 3), ("train", 3), ("<module>", 5)]
    assert not script.watch.waits


def test_the_watch_begins_anew(script: Script) -> None:
    script.wanted = lambda frame: True
    script.run("for e in range(3):\n    start()\n")
    assert script.turns == [("<module>", 1)] * 3


def test_what_is_raised_at_a_turn_is_raised_in_the_script(script: Script) -> None:
    def stops(frame: FrameType) -> bool:
        raise KeyboardInterrupt("saved")

    script.wanted = stops
    with pytest.raises(KeyboardInterrupt, match="saved"):
        script.run("for e in range(3):\n    start()\n")
    assert script.turns == [("<module>", 1)]
    assert not script.watch.waits


def test_a_function_that_is_over_keeps_nothing_alive(script: Script) -> None:
    class Loss:
        pass

    losses: list[weakref.ref[Loss]] = []

    def loss() -> Loss:
        made = Loss()
        losses.append(weakref.ref(made))
        return made

    script.watch.looks_everywhere = True
    alive: list[int] = []
    script.wanted = lambda frame: bool(alive.append(sum(each() is not None for each in losses)))
    source = """
    def step():
        made = loss()
        start()
    def evaluate():
        made = loss()
    for e in range(3):
        step()
        evaluate()
    """
    script.run(source, loss=loss)
    assert alive == [0, 0, 0]


def test_a_tracer_of_the_user_comes_back(script: Script) -> None:
    seen: list[str] = []

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        seen.append(frame.f_code.co_name)
        return tracer

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        script.wanted = lambda frame: True
        code = "def f(): pass\nfor e in range(1):\n    start()\nf()\n"
        script.run(code)
        assert sys.gettrace() is tracer
    finally:
        sys.settrace(before)
    assert "f" in seen


def test_a_library_that_traces_for_a_while_does_not_end_the_watch(script: Script) -> None:
    script.run(
        """
        import sys
        for e in range(3):
            start()
            if not e:
                sys.settrace(None)
        """
    )
    # The turn in which nothing traced is lost; the next step begins to trace again.
    assert script.turns == [("<module>", 3), ("<module>", 3)]


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("while True:\n    with block():\n        start()\n    n += 1\n    if n > 2: break\n", 3),
        ("while True:\n    start(\n    )\n    n += 1\n    if n > 2: break\n", 3),
        ("while n < 3:\n    start()\n    n += 1\n", 3),
        ("while True:\n    n += 1\n    start()\n    if n < 3: continue\n    break\n", 3),
    ],
)
def test_a_turn_begins_once(script: Script, source: str, lines: int) -> None:
    head = "import contextlib\nn = 0\nblock = contextlib.nullcontext\n"
    script.run(head + source)
    assert len(script.turns) <= lines
    assert len(script.turns) >= lines - 1
