"""Which files are compiled anew: those that are listed, wherever they are, if they are the same."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.resume import rerun, started_process
from tests.harness.pythons import python
from tests.harness.rerun_scripts import RerunScript, script

pytestmark = [pytest.mark.any_torch, pytest.mark.timeout(240)]

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


LOADS_IN_ITS_WAY = """
import sys
from importlib.machinery import FileFinder, SourceFileLoader
class Loader(SourceFileLoader):
    def source_to_code(self, data, path, **more):
        return super().source_to_code(data.replace(b"total = 0", b"total = 100"), path, **more)
sys.path_hooks.insert(0, FileFinder.path_hook((Loader, [".py"])))
sys.path_importer_cache.clear()
import helper
print(helper.train(4))
"""


def test_a_module_that_is_compiled_in_a_way_of_its_own_is_left_alone(tmp_path: Path) -> None:
    folder = importing(tmp_path)
    folder.write("train.py", LOADS_IN_ITS_WAY)
    assert folder.same().stdout == "106\n"
    assert folder.asked == []


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


def test_a_script_that_another_program_runs_is_not_counted(tmp_path: Path) -> None:
    folder = script(tmp_path, SHORT + REPORT)
    folder.write("runs.py", "import runpy; runpy.run_path('train.py', run_name='__main__')")
    folder.command = ["runs.py"]
    folder.same()
    assert folder.asked == []
    assert reported(tmp_path) == [False, [], {}, []]


def test_a_process_that_runs_no_script_is_not_on_the_way_back(tmp_path: Path) -> None:
    folder = importing(tmp_path)
    folder.command = ["-c", REPORT]
    folder.same()
    assert reported(tmp_path) == [False, [], {}, []]


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
