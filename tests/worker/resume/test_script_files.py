"""Files that a script writes: noted, and saved with their sizes."""

import bz2
import gzip
import os
import shutil
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from gpujob_worker.resume.written_files import mark_of
from tests.harness.script_attempts import append, attempt, saved


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def test_a_snapshot_has_what_is_written(tmp_path: Path, log: Path) -> None:
    with attempt() as files, log.open("w") as stream:
        stream.write("seven b")
        append(tmp_path / "more.txt", 12)
        (tmp_path / "closed").write_bytes(b"12")
        found: dict[str, dict[str, Any]] = saved(files)["files"]
    closed = found[str(tmp_path / "closed")]
    assert closed.pop("mark") == mark_of(str(tmp_path / "closed"))
    assert closed.pop("content") == b"12"
    assert found[str(log)].pop("content") == b"seven b"
    assert found[str(tmp_path / "more.txt")].pop("content") == b"12\n"
    assert found == {
        str(log): {"mode": "write", "size": 7, "open": True, "position": 7},
        str(tmp_path / "more.txt"): {"mode": "append", "size": 3, "open": False, "position": None},
        str(tmp_path / "closed"): {"mode": "write", "size": 2, "open": False, "position": None},
    }


@pytest.mark.parametrize("given", ["log.txt", "./log.txt", "there/../log.txt", b"log.txt"])
def test_a_path_is_known_by_its_absolute_name(
    given: str | bytes, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log.parent / "there").mkdir()
    monkeypatch.chdir(log.parent)
    with attempt() as files:
        open(given, "w").close()
        open(f"{log.parent}//there/../log.txt", "w").close()
        assert list(files.snapshot()["files"]) == [str(log)]


WRITERS: list[tuple[str, Callable[[Path], object]]] = [
    ("a.txt", lambda path: path.write_text("x")),
    ("a.npy", lambda path: np.save(path, np.ones(1))),
    ("a.npz", lambda path: np.savez(path, a=np.ones(1))),
    ("a.pt", lambda path: torch.save(torch.ones(1), path)),
    ("b.pt", lambda path: torch.save(torch.ones(1), f=str(path))),
    ("a.safetensors", lambda path: safetensors.torch.save_file({"a": torch.ones(1)}, path)),
    ("a.bz2", lambda path: bz2.open(path, "wb").close()),
    ("a.gz", lambda path: gzip.open(path, "wb").close()),
    ("a.tar", lambda path: tarfile.open(path, "w").close()),
    ("copy", lambda path: shutil.copy(__file__, path)),
]


@pytest.mark.parametrize(("name", "write"), WRITERS)
def test_whoever_writes_is_noted_and_held(
    name: str, write: Callable[[Path], object], tmp_path: Path
) -> None:
    path = tmp_path / name
    with attempt() as files:
        write(path)
        state = saved(files)
        assert state["files"][str(path)]["size"] == path.stat().st_size
    path.write_bytes(b"as it was")
    with attempt(resumes=True) as files:
        write(path)
        assert path.read_bytes() == b"as it was"
        assert list(files.held()) == [str(path)]
        assert files.release(state) == []
        write(path)
        assert path.read_bytes() != b"as it was"


@pytest.mark.parametrize("mode", ["r+", "a+"])
def test_updates_in_place_are_a_conflict_only_where_something_is_written(
    mode: str, log: Path
) -> None:
    log.write_text("old")
    with attempt(resumes=True) as files:
        with open(log, mode) as stream:
            stream.read()
            assert files.conflicts() == []
            stream.write("more")
        (reason,) = files.conflicts()
        assert str(log) in reason
        assert files.release({"saves": 0, "files": {}}) == [reason]


def test_a_map_into_memory_is_updated_in_place(tmp_path: Path) -> None:
    path = tmp_path / "predictions"
    with attempt() as files:
        np.memmap(path, dtype="u1", mode="w+", shape=(4,))
        assert len(files.conflicts()) == 1
    with attempt() as files:
        np.memmap(path, dtype="u1")
        assert files.conflicts() == []


@pytest.mark.parametrize("mode", ["wb", "w+b"])
def test_a_writer_with_a_state_cannot_stay_open(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "log.gz"
    with attempt() as files:
        with gzip.open(path, mode) if mode == "wb" else path.open(mode):
            (reason,) = files.conflicts()
            assert str(path) in reason
        assert files.conflicts() == []


def test_what_is_not_the_scripts_is_left_alone(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "old").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with attempt(resumes=True) as files:
        files.exclude(checkpoints)
        (checkpoints / "old").write_text("new")
        (checkpoints / "old").unlink()
        with open("/dev/null", "w") as stream:
            stream.write("x")
        with open(tmp_path / "pipe", "w") as stream:
            stream.write("x")
        with open(os.dup(reader), "rb", closefd=True) as stream:
            assert stream.read(1) == b"x"
        assert files.snapshot()["files"] == {}
        assert files.held() == {}
    assert not (checkpoints / "old").exists()
    os.close(reader)


def test_our_own_package_is_not_the_script(log: Path) -> None:
    log.write_text("old")
    own: dict[str, Any] = {"__name__": "gpujob_worker.checkpoint.manifest"}
    exec("def write(path): path.write_text('new'); path.rename(f'{path}.1')", own)
    with attempt(resumes=True) as files:
        own["write"](log)
        assert files.snapshot()["files"] == {}
    assert Path(f"{log}.1").read_text() == "new"


def test_a_forked_child_writes_as_it_likes(log: Path) -> None:
    log.write_text("old")
    with attempt(resumes=True) as files:
        child = os.fork()
        if child == 0:
            log.write_text("child")
            os._exit(0)
        os.waitpid(child, 0)
        assert files.held() == {}
    assert log.read_text() == "child"


def test_many_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpujob_worker.resume.written_files.CLOSED_MAX", 3)
    monkeypatch.setattr("gpujob_worker.resume.written_files.PATHS_MAX", 3)
    with attempt() as files, open(tmp_path / "log", "w"):
        for number in range(9):
            (tmp_path / str(number)).write_text("x")
        found = {Path(path).name for path in files.snapshot()["files"]}
        assert found == {"log", "6", "7", "8"}
        assert files.conflicts() == []
        for number in range(9):
            append(tmp_path / f"appended {number}", 1)
        assert files.conflicts() == ["the script writes more files than are kept track of"]


def test_errors_are_those_of_open(tmp_path: Path) -> None:
    with attempt(resumes=True):
        with pytest.raises(IsADirectoryError):
            tmp_path.open("w")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "no" / "file").open("w")
        with pytest.raises(ValueError, match="mode"):
            (tmp_path / "file").open("wz")
        with pytest.raises(FileNotFoundError):
            (tmp_path / "file").unlink()


def test_opening_takes_a_little_longer_only(log: Path) -> None:
    def seconds(mode: str) -> float:
        def once() -> float:
            start = time.process_time()
            for _ in range(200):
                open(log, mode).close()
            return (time.process_time() - start) / 200

        return min(once() for _ in range(5))

    log.write_text("x")
    plain = seconds("a")
    reading = seconds("r")
    with attempt():
        assert seconds("a") < 10 * plain
        assert seconds("r") < 2 * reading
