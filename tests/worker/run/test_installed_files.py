"""The user's files are told from those of installed packages, wherever these are."""

import ast
from pathlib import Path

import pytest

from gpujob_worker.run import installed_files
from gpujob_worker.run.installed_files import is_script_file


def install(folder: Path, name: str, *files: str) -> None:
    """As an installer leaves a distribution: with a record of its files."""
    record = folder / f"{name}-1.0.dist-info" / "RECORD"
    record.parent.mkdir(parents=True)
    lines = (*files, f"{name}-1.0.dist-info/RECORD", "../../bin/tool")
    record.write_text("".join(f"{file},sha256=abc,12\n" for file in lines))


def test_installed_files_are_not_of_the_script(tmp_path: Path) -> None:
    for name in (ast.__file__, pytest.__file__, installed_files.__file__, "<string>", "<frozen x>"):
        assert not is_script_file(name)
    assert is_script_file(str(tmp_path / "train.py"))


@pytest.mark.parametrize("ending", ["", "/"])
def test_packages_of_a_target_folder_are_not_of_the_script(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of `pip install --target FOLDER`, next to the user's own files."""
    folder = tmp_path / "packages"
    install(folder, "trainer", "trainer/__init__.py", "trainer/deep/loop.py", "single.py")
    monkeypatch.syspath_prepend(str(folder) + ending)
    assert not is_script_file(str(folder / "trainer" / "deep" / "loop.py"))
    assert not is_script_file(str(folder / "single.py"))
    assert is_script_file(str(folder / "train.py"))
    assert is_script_file(str(folder / "trainer" / "mine.py"))
    assert is_script_file(str(tmp_path / "trainer" / "loop.py"))


def test_a_project_installed_in_place_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.egg-info").mkdir()
    (tmp_path / "mine.egg-info" / "top_level.txt").write_text("mine\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_script_file(str(tmp_path / "mine" / "train.py"))


def test_a_record_that_cannot_be_read_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken-1.0.dist-info" / "RECORD").mkdir(parents=True)
    install(tmp_path, "whole", "whole/__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert is_script_file(str(tmp_path / "broken" / "a.py"))
    assert not is_script_file(str(tmp_path / "whole" / "__init__.py"))
