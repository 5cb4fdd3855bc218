"""Files that a script wrote, moved or removed after the save that it comes back to."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.resume.script_files import ScriptFiles
from gpujob_worker.resume.written_files import mark_of
from tests.harness.script_attempts import attempt, saved

LARGE = 200_000


class LeftError(Exception):
    """The script cannot go on."""


def comes_back(files: ScriptFiles, state: dict[str, Any]) -> None:
    def leaves(why: str) -> None:
        raise LeftError(why)

    files.leaves = leaves
    assert files.release(state) == []


def test_a_file_that_is_gone_is_removed_once_more(tmp_path: Path) -> None:
    old = tmp_path / "4.pt"
    with attempt() as files:
        old.write_bytes(bytes(LARGE))
        state = saved(files)
        os.remove(old)
    with attempt(resumes=True) as files:
        comes_back(files, state)
        os.remove(old)
        with pytest.raises(FileNotFoundError):
            os.remove(old)
        with pytest.raises(FileNotFoundError):
            (tmp_path / "of nobody").unlink()


def test_a_file_that_is_gone_is_known_to_every_later_attempt(tmp_path: Path) -> None:
    best = tmp_path / "best.pt"
    with attempt() as files:
        best.write_bytes(bytes(LARGE))
        state = saved(files)
    best.unlink()  # with the pod
    with attempt(resumes=True) as files:
        comes_back(files, state)
        (said,) = files.lost()
        assert said.startswith(f"{best} is gone since an earlier attempt")
        state = saved(files)
    with attempt(resumes=True) as files:
        comes_back(files, state)
        with pytest.raises(LeftError, match=r"best\.pt is gone since an earlier attempt"):
            best.read_bytes()
        best.write_bytes(b"better")
        assert files.lost() == []
        assert best.read_bytes() == b"better"


def test_a_folder_that_is_gone_is_removed_once_more(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-4"
    with attempt() as files:
        folder.mkdir()
        (folder / "model.pt").write_bytes(bytes(LARGE))
        (folder / "state.json").write_text("{}")
        state = saved(files)
        shutil.rmtree(folder)
    with attempt(resumes=True) as files:
        comes_back(files, state)
        shutil.rmtree(folder)
        with pytest.raises(FileNotFoundError):
            shutil.rmtree(folder)


def test_a_folder_that_was_made_after_the_save_is_made_once_more(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    with attempt() as files:
        first.mkdir()
        state = saved(files)
        second.mkdir()
        with open(second / "new.txt", "x") as stream:
            stream.write("one")
    with attempt(resumes=True) as files:
        comes_back(files, state)
        with pytest.raises(FileExistsError):
            first.mkdir()
        second.mkdir()
        with open(second / "new.txt", "x") as stream:
            stream.write("two")
        with pytest.raises(FileExistsError):
            second.mkdir()
    assert (second / "new.txt").read_text() == "two"


def test_a_small_file_is_as_it_was(tmp_path: Path) -> None:
    history, pointer = tmp_path / "history.json", tmp_path / "latest"
    with attempt() as files:
        history.write_text("[1]")
        pointer.write_text("4.pt")
        state = saved(files)
        history.write_text("[1, 2]")
        os.remove(pointer)
    with attempt(resumes=True) as files:
        comes_back(files, state)
        assert history.read_text() == "[1]"
        assert pointer.read_text() == "4.pt"


def test_a_large_file_of_the_future_is_not_read(tmp_path: Path) -> None:
    best, same = tmp_path / "best.pt", tmp_path / "same.pt"
    with attempt() as files:
        best.write_bytes(bytes(LARGE))
        same.write_bytes(bytes(LARGE))
        state = saved(files)
        best.write_bytes(bytes(LARGE - 1) + b"1")
        os.utime(same)
    with attempt(resumes=True) as files:
        comes_back(files, state)
        assert len(same.read_bytes()) == LARGE
        for read in (best.read_bytes, lambda: shutil.copy(best, tmp_path / "copy")):
            with pytest.raises(LeftError, match=r"best\.pt was changed after the run was saved"):
                read()
        with pytest.raises(LeftError):
            os.replace(best, tmp_path / "previous.pt")
        best.write_bytes(bytes(LARGE))
        assert len(best.read_bytes()) == LARGE


def test_a_file_that_was_moved_to_its_place_is_known(tmp_path: Path) -> None:
    part, last = tmp_path / "last.tmp", tmp_path / "last.pt"

    def write(content: bytes) -> None:
        part.write_bytes(content)
        os.replace(part, last)

    with attempt() as files:
        write(bytes(LARGE))
        state = saved(files)
        write(bytes(LARGE) + b"1")
    with attempt(resumes=True) as files:
        comes_back(files, state)
        with pytest.raises(LeftError):
            last.read_bytes()
        write(bytes(LARGE) + b"1")
        assert len(last.read_bytes()) == LARGE + 1


def test_a_mark_tells_the_beginning_and_the_end_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    marks = set[str | None]()
    for content in (b"", b"1", bytes(LARGE), b"1" + bytes(LARGE - 1), bytes(LARGE - 1) + b"1"):
        path.write_bytes(content)
        marks.add(mark_of(str(path)))
    assert len(marks) == 5
    assert mark_of(str(tmp_path / "none")) is None
