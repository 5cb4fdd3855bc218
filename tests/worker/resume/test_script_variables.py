"""Which names of a script are read, and into which of a later run they are put back."""

import builtins
import linecache
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree
from gpujob_worker.resume import script_variables
from gpujob_worker.resume.passes import Passes
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.script_place import functions_of
from gpujob_worker.resume.script_variables import ScriptVariables
from gpujob_worker.resume.values.baseline import Baseline
from gpujob_worker.resume.values.table import restorer_of

HELPER = "helper_of_test"
SCRIPT = """
    import helper_of_test

    scale = 1.0
    history = []

    def train(rounds):
        total, spare = 0, object()
        for turn in range(rounds):
            pause(turn)
            total += turn
            history.append(total)
            helper_of_test.seen["turns"] = turn + 1
        return total

    def main(rounds):
        name = "run"
        shown = [name]
        found = train(rounds)
        return found, shown

    result = main(5)
"""


class Runs:
    """Runs of one script, each as in a process of its own; `pause` is called in its loop."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, text: str = SCRIPT) -> None:
        self._path, self._patch, self._text = folder / "train.py", patch, textwrap.dedent(text)
        lines = self._text.splitlines(keepends=True)
        linecache.cache[str(self._path)] = (len(self._text), None, lines, str(self._path))
        patch.setattr(script_variables, "script_modules", lambda: ["__main__", HELPER])
        self.variables = self.process()

    def process(self) -> ScriptVariables:
        self.variables = ScriptVariables(ScriptObjects(), Baseline(), Passes())
        return self.variables

    def run(self, pause: Callable[[int, FrameType], None]) -> dict[str, Any]:
        helper: Any = types.ModuleType(HELPER)
        helper.seen, helper.__file__ = {}, str(self._path.with_name("helper.py"))
        self._patch.setitem(sys.modules, HELPER, helper)
        main: Any = types.ModuleType("__main__")
        self._patch.setitem(sys.modules, "__main__", main)

        def paused(turn: int) -> None:
            pause(turn, sys._getframe(1))

        self._patch.setattr(builtins, "pause", paused, raising=False)
        vars(main)["torch"] = torch
        exec(compile(self._text, self._path, "exec"), vars(main))
        return vars(main)

    def read(self, at: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """What was read in a turn, as a checkpoint has it, and the variables at the end."""
        found: dict[str, Any] = {}

        def pause(turn: int, frame: FrameType) -> None:
            if turn == 0:
                self.variables.see_before_first_step(frame)
            if turn == at:
                text, tensors = encode_tree(self.variables.read(functions_of(frame), [], []))
                copies = {name: tensor.clone() for name, tensor in tensors.items()}
                found.update(decode_tree(text, copies))

        return found, self.run(pause)

    def put_back(self, saved: dict[str, Any]) -> dict[str, Any]:
        """In the first turn of a new run."""
        self.process()

        def pause(turn: int, frame: FrameType) -> None:
            if turn == 0 and saved:
                restorer = restorer_of(saved["nodes"], [], Passes())
                self.variables.put_back(functions_of(frame), saved, restorer)

        return self.run(pause)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    return Runs(tmp_path, monkeypatch)


def test_names_that_are_read_again_are_saved_and_others_are_not(runs: Runs) -> None:
    saved, _ = runs.read(3)
    names = {each["scope"]: set(each["names"]) for each in saved["scopes"]}
    assert names["function 0"] >= {"scale", "history"}
    # `spare` could not be told apart from another object, and nobody reads it.
    assert "total" in names["function 2"]
    assert "spare" not in names["function 2"]
    assert names["module helper_of_test"] == {"seen"}
    assert {"name", "shown"} <= names["function 1"] | {"name"}


def test_they_come_back_in_functions_and_in_modules(runs: Runs) -> None:
    saved, _ = runs.read(3)
    again = runs.put_back(saved)
    # It goes on as turn 3, and its iterator, which nobody brought back, gives the turns 1 to 4.
    assert again["result"] == (3 + 3 + 10, ["run"])
    assert again["history"] == [0, 1, 3, 6, 7, 9, 12, 16]
    assert sys.modules[HELPER].seen == {"turns": 5}


def test_what_two_scopes_share_is_shared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
        import helper_of_test
        rows = helper_of_test.rows = []
        for turn in range(3):
            pause(turn)
            rows.append(turn)
    """
    runs = Runs(tmp_path, monkeypatch, text)
    saved, _ = runs.read(2)
    again = runs.put_back(saved)
    assert again["rows"] is sys.modules[HELPER].rows
    assert again["rows"] == [0, 1, 2, 1, 2]


def test_a_module_that_the_script_does_not_import_is_refused(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, _ = runs.read(1)
    saved["scopes"].append({"scope": "module another_of_test", "names": {}})
    with pytest.raises(MismatchError, match="did not import another_of_test"):
        runs.put_back(saved)


ODD = """
    good, bad, last = [], [], []
    for turn in range(3):
        pause(turn)
        bad.append(memoryview(b"a"))
        good.append(turn)
        last.append(good)
    text = (good, bad, last)
"""


def test_what_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnsavableError, match=r"bad\[0\] is a builtins.memoryview"):
        Runs(tmp_path, monkeypatch, ODD).read(2)


def test_who_accepts_less_gets_the_rest_and_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(tmp_path, monkeypatch, ODD)
    runs.variables.accepts_less = True
    saved, _ = runs.read(2)
    assert len(runs.variables.left) == 1
    assert "memoryview" in runs.variables.left[0]
    again = runs.put_back(saved)
    assert again["good"] == [0, 1, 2, 1, 2]
    assert again["last"][0] is again["good"]


LARGE = """
    data = torch.arange(50_000.0)
    for turn in range(3):
        pause(turn)
    print(data[0])
"""


def test_a_checkpoint_after_a_resume_has_nothing_large_that_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(tmp_path, monkeypatch, LARGE)
    saved, _ = runs.read(1)
    assert [node["k"] for node in saved["nodes"]].count("unchanged memory") == 1
    runs.process()
    later: list[Any] = []

    def pause(turn: int, frame: FrameType) -> None:
        functions = functions_of(frame)
        if turn == 0:
            runs.variables.put_back(functions, saved, restorer_of(saved["nodes"], [], Passes()))
        later.append(runs.variables.read(functions, [], []))

    runs.run(pause)
    assert [node["k"] for node in later[-1]["nodes"]].count("unchanged memory") == 1


def test_plain_values_come_back_early(runs: Runs) -> None:
    """The way to the place may depend on them."""
    saved, _ = runs.read(2)
    seen: list[Any] = []

    def pause(turn: int, frame: FrameType) -> None:
        if turn == 0:
            main = functions_of(frame)[0].frame
            main.f_globals["scale"] = 7.0
            runs.variables.put_back_early(main, saved, 0)
            seen.append((main.f_globals["scale"], main.f_globals["history"]))

    runs.process()
    runs.run(pause)
    assert seen[0][0] == 1.0
    assert isinstance(seen[0][1], list)
