"""Loops that are listed ask the listener; all else of a file is compiled as it is written."""

import builtins
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from gpujob_worker.resume import rerun, started_process
from tests.harness.pythons import python
from tests.harness.rerun_scripts import RerunScript, loops, script

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

LIBRARY = Path(sysconfig.get_paths()["stdlib"])
SOURCES = ["argparse.py", "ast.py", "asyncio/base_events.py", "enum.py", "typing.py", "tarfile.py"]


class Asked:
    """A listener that changes nothing, or what a test puts into it."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.instead: dict[int, Any] = {}
        self.frames: list[str] = []

    def loop(self, file: str, line: int, iterable: Any) -> Any:
        self.asked.append(("for", line))
        self.frames.append(sys._getframe(2).f_code.co_filename)
        return self.instead.get(line, iterable)

    def turn(self, file: str, line: int) -> bool:
        self.asked.append(("while", line))
        self.frames.append(sys._getframe(2).f_code.co_filename)
        return self.instead.get(line, True)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()
    monkeypatch.setattr(rerun, "listener", found)
    monkeypatch.setattr(builtins, rerun.LOOP, rerun._loop, raising=False)
    monkeypatch.setattr(builtins, rerun.TURN, rerun._turn, raising=False)
    return found


def run(source: str, lines: set[int] | None = None) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "script"}
    data = source.encode()
    exec(rerun.rewritten(data, "script.py", set(loops(data)) if lines is None else lines), names)
    return names


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.parametrize("name", SOURCES)
def test_without_a_listed_loop_the_code_is_what_it_was(name: str) -> None:
    source = (LIBRARY / name).read_bytes()
    plain = compile(source, name, "exec", dont_inherit=True)
    assert rerun.rewritten(source, name, ()) == plain
    assert rerun.rewritten(source, name, loops(source)) != plain


@pytest.mark.parametrize("name", SOURCES)
def test_names_and_lines_stay_with_all_loops_listed(name: str) -> None:
    source = (LIBRARY / name).read_bytes()
    plain = list(codes(compile(source, name, "exec", dont_inherit=True)))
    again = list(codes(rerun.rewritten(source, name, loops(source))))
    for before, after in zip(plain, again, strict=True):
        for field in ("co_name", "co_qualname", "co_firstlineno", "co_flags", "co_varnames"):
            assert getattr(after, field) == getattr(before, field)
        assert after.co_consts[:1] == before.co_consts[:1] or "<" in before.co_name
        assert lines_of(after) == lines_of(before)


def lines_of(code: CodeType) -> list[int]:
    return sorted({line for *_, line in code.co_lines() if line is not None})


def test_each_kind_of_loop_asks_where_it_stands(asked: Asked) -> None:
    source = """
def f():
    for x in (1, 2):
        n = 3
        while n > 1 or not n:
            n -= 1
        else:
            n = "else"
    while True:
        break
    while 0:
        print("never")
    return n
found = f()
"""
    assert run(source)["found"] == "else"
    turns = [("while", 5)] * 3
    assert asked.asked == [("for", 3), *turns, *turns, ("while", 9)]
    assert set(asked.frames) == {"script.py"}


def test_what_the_listener_returns_is_gone_over(asked: Asked) -> None:
    asked.instead = {1: iter([8, 9]), 3: False, 5: False}
    names = run("for x in (1, 2): last = x\n\nwhile True: last = 0\n\nwhile last: last = 0\n")
    assert names["last"] == 9


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for found, *rest in [(1, 2), (3, 4)]: pass", 3),
        ("for found in 1, *(2, 3): pass", 3),
        ("for found in (yes := [1, 5]): pass", 5),
        ("for found in {7}: pass", 7),
        ("for found in (x for x in range(3) for y in range(2)): pass", 2),
        ("def f():\n    for x in (yield 1): yield x\ng = f(); next(g); found = g.send([4])", 4),
        ("class A:\n    for __x in (1, 2): y = __x\nfound = A.y", 2),
        ("class A:\n    __n = 3\n    while __n: __n -= 1\nfound = A._A__n", 0),
        ("def f(n):\n    while n:\n        n -= 1\n        yield n\n*_, found = f(4)", 0),
        ("found = 0\nwhile found < 3 if True else 0: found += 1", 3),
        ("found = 0\nwhile (found := found + 1) and found < 4: continue", 4),
        ("found = 9\nwhile None: found = 0\nelse: found = 8", 8),
        ("found = 9\nwhile 'x': found = 7; break\nelse: found = 0", 7),
    ],
)
def test_loops_of_any_form_go_on(source: str, expected: Any, asked: Asked) -> None:
    assert run(source)["found"] == expected
    assert len(asked.asked) > 0 or "None" in source


def test_only_what_is_listed_asks(asked: Asked) -> None:
    source = "for x in 1, 2:\n    for y in 1, 2:\n        pass\nwhile x:\n    x = 0\n"
    run(source, {2})
    assert asked.asked == [("for", 2), ("for", 2)]


def test_asynchronous_loops_are_left_alone(asked: Asked) -> None:
    source = b"async def f(values):\n    async for x in values:\n        pass\n"
    plain = compile(source, "script.py", "exec", dont_inherit=True)
    assert rerun.rewritten(source, "script.py", {2}) == plain


def test_the_futures_of_the_source_hold_and_no_others() -> None:
    source = b"from __future__ import annotations\ndef f(x: none): pass\nfor x in 1, 2: pass\n"
    names: dict[str, Any] = {}
    code = rerun.rewritten(source, "script.py", ())
    exec(code, names)
    assert names["f"].__annotations__ == {"x": "none"}
    with pytest.raises(NameError):
        run("def f(x: none): pass\nfor x in (): pass")


def test_other_encodings_are_read(asked: Asked) -> None:
    source = "# -*- coding: latin-1 -*-\nfound = '\xe9'\nfor x in 1, 2: pass\n".encode("latin-1")
    names: dict[str, Any] = {}
    exec(rerun.rewritten(source, "script.py", {3}), names)
    assert (names["found"], asked.asked) == ("\xe9", [("for", 3)])


def test_what_the_listener_raises_the_loop_raises(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*values: Any) -> Any:
        raise ValueError("no place")

    monkeypatch.setattr(asked, "loop", fails)
    names = run(
        "def f():\n    try:\n        for x in 1, 2: pass\n    except ValueError: return 1\n"
    )
    assert names["f"]() == 1


def test_without_a_listener_loops_do_what_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rerun.listener is None
    monkeypatch.setattr(builtins, rerun.LOOP, rerun._loop, raising=False)
    monkeypatch.setattr(builtins, rerun.TURN, rerun._turn, raising=False)
    assert run("n = 0\nfor x in 1, 2: n += x\nwhile n < 9: n += 1")["n"] == 9


# Modules, and what is listed.

HELPER = """
def train(count):
    total = 0
    for each in range(count):
        total += each
    return total
"""
IMPORTS = """
import os, sys
import helper
print(helper.train(4), helper.__file__, helper.__cached__, type(helper.__loader__), helper.__spec__)
print(sorted(os.listdir(os.path.dirname(helper.__file__))) if len(sys.argv) > 1 else "")
"""


def importing(folder: Path) -> RerunScript:
    made = RerunScript(folder, ["train.py"])
    made.write("train.py", IMPORTS)
    made.lists(made.write("helper.py", HELPER))
    return made


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"])
def test_a_module_that_is_listed_asks(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    folder = importing(tmp_path)
    folder.program = program
    folder.same()
    assert folder.asked == ["helper.py 3 3"]


def test_no_bytecode_is_read_or_written_for_a_listed_module(tmp_path: Path) -> None:
    folder = importing(tmp_path)
    # The plain run has put it there; the run again does not change it.
    folder.plain()
    (kept,) = (tmp_path / "__pycache__").glob("helper*.pyc")
    before = kept.read_bytes()
    assert folder.again().returncode == 0
    assert folder.asked == ["helper.py 3 3"]
    assert kept.read_bytes() == before
    kept.unlink()
    folder.again()
    assert not kept.exists()


@pytest.mark.parametrize("version", ["3.9", "3.11", "3.13"])
def test_a_module_that_is_the_main_program_asks(version: str, tmp_path: Path) -> None:
    program = python(version)
    if program is None:
        pytest.skip(f"there is no Python {version} here")
    folder = RerunScript(tmp_path, ["-m", "package.train", "5"], program)
    folder.write("package/__init__.py", "")
    main = folder.write("package/train.py", HELPER + "import sys\nprint(train(3), sys.argv, 1)\n"
                        "print(__name__, __spec__, __file__)\nlen(1)\n")  # fmt: skip
    folder.lists(main)
    folder.same()
    assert folder.asked == ["train.py 3 3"]


def test_a_folder_that_is_the_main_program_asks(tmp_path: Path) -> None:
    folder = RerunScript(tmp_path, ["program"])
    folder.lists(folder.write("program/__main__.py", "for x in 1, 2:\n    print(x, __file__)\n"))
    folder.same()
    assert folder.asked == ["__main__.py 1 1"]


SHORT = "for x in 1, 2:\n    print(x, __file__)\n"


def test_a_script_that_has_changed_runs_as_written(tmp_path: Path) -> None:
    folder = script(tmp_path, SHORT)
    folder.write("train.py", SHORT + REPORT)
    folder.again()
    assert folder.asked == []
    name = str(tmp_path / "train.py")
    assert reported(tmp_path) == [False, [], {name: f"{name} has changed since it was saved"}, []]


REPORT = """
import json
try:
    from gpujob_worker.resume import rerun
except ImportError:
    rerun = None
if rerun is not None:
    found = [rerun.is_active(), sorted(rerun.files()), rerun.changed, rerun.notes]
    json.dump(found, open("reported", "w"))
"""


def reported(folder: Path) -> list[Any]:
    return json.loads((folder / "reported").read_text())


def test_a_script_that_is_rewritten_is_known_as_that(tmp_path: Path) -> None:
    folder = script(tmp_path, SHORT + REPORT)
    folder.again()
    assert reported(tmp_path) == [True, [str(tmp_path / "train.py")], {}, []]


def test_a_module_that_was_not_imported_yet_is_counted_if_it_is_the_same(tmp_path: Path) -> None:
    folder = script(tmp_path, SHORT + REPORT)
    helper, other = folder.write("helper.py", HELPER), folder.write("other.py", HELPER)
    folder.lists(tmp_path / "train.py", helper, other)
    other.write_text("changed = 1\n")
    folder.again()
    is_active, files, changed, _ = reported(tmp_path)
    assert (is_active, files) == (True, [str(helper), str(tmp_path / "train.py")])
    assert list(changed) == [str(other)]


PLACES = {
    "none": None,
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "another format": '{"format": 2, "files": {}}',
    "no files": '{"format": 1}',
    "files that are a list": '{"format": 1, "files": ["x"]}',
    "no hash": '{"format": 1, "files": {"FILE": {"loops": [1]}}}',
    "a hash that is no text": '{"format": 1, "files": {"FILE": {"sha256": 1, "loops": [1]}}}',
    "lines that are none": '{"format": 1, "files": {"FILE": {"sha256": "x", "loops": ["x"]}}}',
    "a folder": "FOLDER",
    "too deep": "[" * 100_000,
    "a zero byte": '{"format": 1, "files": {"\\u0000": {"sha256": "x", "loops": [1]}}}',
}


@pytest.mark.parametrize("name", PLACES)
def test_places_that_cannot_be_read_change_nothing(name: str, tmp_path: Path) -> None:
    folder = script(tmp_path, SHORT + REPORT)
    places, text = folder.checkpoints / "places.json", PLACES[name]
    places.unlink()
    if text == "FOLDER":
        places.mkdir()
    elif text is not None:
        places.write_text(text.replace("FILE", str(tmp_path / "train.py")))
    folder.same()
    assert folder.asked == []
    is_active, files, changed, notes = reported(tmp_path)
    assert (is_active, files, changed) == (False, [], {})
    assert len(notes) == (0 if name in ("none", "a zero byte") else 1)


def test_a_script_that_links_lead_to_is_known_by_its_own_path(tmp_path: Path) -> None:
    """As in a volume of a ConfigMap, whose links lead to another folder in each pod."""
    folder = RerunScript(tmp_path, ["scripts/train.py"])
    folder.write("..first/train.py", SHORT)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "..data").symlink_to(tmp_path / "..first")
    (tmp_path / "scripts" / "train.py").symlink_to("..data/train.py")
    folder.lists(tmp_path / "scripts" / "train.py")
    (tmp_path / "..first").rename(tmp_path / "..second")
    (tmp_path / "scripts" / "..data").unlink()
    (tmp_path / "scripts" / "..data").symlink_to(tmp_path / "..second")
    folder.same()
    assert folder.asked == ["train.py 1 1"]


@pytest.mark.parametrize("command", ["train.py", "./train.py", "../here/./train.py", "link.py"])
def test_a_script_is_known_however_it_is_called(command: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    folder = script(tmp_path / "here", SHORT)
    (folder.path / "link.py").symlink_to("train.py")
    folder.command = [command]
    folder.same()
    assert folder.asked == [f"{os.path.basename(command)} 1 1"]


def test_a_script_that_lies_elsewhere_is_known_by_its_content(tmp_path: Path) -> None:
    folder = RerunScript(tmp_path, ["second/train.py"])
    first = folder.write("first/train.py", SHORT)
    folder.lists(first)
    folder.write("second/train.py", SHORT)
    first.write_text("another = 1\n")
    folder.same()
    assert folder.asked == ["train.py 1 1"]


def test_another_file_of_the_same_name_says_nothing_of_the_listed_one(tmp_path: Path) -> None:
    folder = RerunScript(tmp_path, ["train.py"])
    folder.write("train.py", f"import package.helper\n{REPORT}\nimport helper; helper.train(2)")
    folder.write("package/__init__.py", "")
    folder.write("package/helper.py", SHORT)
    helper = folder.write("helper.py", HELPER)
    folder.lists(helper)
    folder.same()
    assert reported(tmp_path) == [True, [str(helper)], {}, []]
    assert folder.asked == ["helper.py 3 3"]


def test_the_folder_of_what_a_shell_starts_is_read_too(tmp_path: Path) -> None:
    folder = RerunScript(tmp_path, ["train.py"])
    own = folder.checkpoints / started_process.FOLDER
    own.mkdir()
    folder.lists(folder.write("train.py", SHORT), into=own)
    folder.same()
    assert folder.asked == ["train.py 1 1"]
    assert started_process.FOLDER in rerun.FOLDERS


def test_loops_of_both_folders_are_taken(tmp_path: Path) -> None:
    folder = RerunScript(tmp_path, ["train.py"])
    own = folder.checkpoints / started_process.FOLDER
    own.mkdir()
    path = folder.write("train.py", SHORT + SHORT)
    folder.lists(path, loops=[1])
    folder.lists(path, into=own, loops=[3])
    folder.same()
    assert folder.asked == ["train.py 1 1", "train.py 3 3"]


def test_a_process_without_a_checkpoint_directory_reads_nothing(tmp_path: Path) -> None:
    folder = script(tmp_path, "import sys; print('gpujob_worker.resume.rerun' in sys.modules)")
    assert folder.plain().stdout == "False\n"
    (folder.checkpoints / "places.json").unlink()
    assert folder.again().stdout == "True\n"
