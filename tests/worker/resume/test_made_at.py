"""Whether a resume from a place makes an object again, by the turns in which it was made."""

import linecache
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gpujob_worker.resume.made_at import MadeAt, made_at
from gpujob_worker.resume.script_place import functions_of

pytestmark = pytest.mark.any_torch


class Item:
    """What a loop goes over, and no number."""


class Script:
    """Runs a source; `make(name)` makes an object, `place()` asks which are lost."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "train.py"
        self.made: dict[str, MadeAt] = {}
        self.lost: list[list[str]] = []

    def make(self, name: str) -> None:
        self.made[name] = made_at(sys._getframe(1))

    def place(self) -> None:
        frame: FrameType = sys._getframe(1)
        functions = functions_of(frame)
        self.lost.append([name for name, at in self.made.items() if at.is_lost(functions)])

    def run(self, source: str, **more: Any) -> list[list[str]]:
        self.path.write_text(source)
        linecache.checkcache(str(self.path))
        names = {"__name__": "__main__", "make": self.make, "place": self.place, **more}
        exec(compile(source, str(self.path), "exec"), names)
        return self.lost


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


def test_what_is_made_before_the_loops_is_made_again(script: Script) -> None:
    source = """
def build(count):
    for i in range(count):
        make(f"part {i}")
make("model")
build(2)
for e in range(2):
    for i in range(2):
        place()
"""
    assert script.run(source) == [[]] * 4


def test_what_another_turn_made_is_lost(script: Script) -> None:
    source = """
for fold in range(3):
    make(f"model {fold}")
    for i in range(1):
        place()
"""
    assert script.run(source) == [[], ["model 0"], ["model 0", "model 1"]]


def test_what_the_innermost_loop_made_is_lost(script: Script) -> None:
    source = """
for e in range(2):
    if not e:
        make("model")
    place()
"""
    assert script.run(source) == [["model"], ["model"]]


def test_turns_of_a_while_cannot_be_told_apart(script: Script) -> None:
    source = """
n = 0
while n < 2:
    make(f"model {n}")
    for i in range(1):
        place()
    n += 1
"""
    assert script.run(source) == [["model 0"], ["model 0", "model 1"]]


def test_what_a_loop_before_made_is_made_again(script: Script) -> None:
    source = """
for e in range(2):
    for i in range(2):
        if not e:
            make(f"warm {i}")
    for j in range(1):
        place()
"""
    assert script.run(source) == [[], ["warm 0", "warm 1"]]


def test_items_of_a_list_tell_turns_apart(script: Script) -> None:
    source = """
for model in models:
    make(f"optimizer {models.index(model)}")
    for i in range(1):
        place()
"""
    assert script.run(source, models=[Item(), Item()]) == [[], ["optimizer 0"]]


def test_an_item_at_the_place_of_one_that_is_gone_is_another_turn(script: Script) -> None:
    identities: list[int] = []

    def fresh(number: int) -> Item:
        # The item before dies first: this one may have its identity.
        del number
        sys._getframe(1).f_globals["item"] = None
        item = Item()
        identities.append(id(item))
        return item

    source = """
first = True
for item in map(fresh, range(4)):
    if first:
        make("model")
    else:
        for i in range(1):
            place()
    first = False
"""
    assert script.run(source, fresh=fresh) == [["model"]] * 3
    assert len(set(identities)) < len(identities), "no identity came again: this shows nothing"


def test_an_item_that_cannot_be_referenced_weakly_tells_nothing(script: Script) -> None:
    source = """
for pair in [(1, 2)]:
    make("model")
    for i in range(1):
        place()
"""
    assert script.run(source) == [["model"]]


def test_the_key_names_the_calls(script: Script) -> None:
    source = """
def build():
    make("model")
def main():
    build()
main()
"""
    script.run(source)
    assert script.made["model"].key == "build:3 main:5 <module>:6"
