"""Files of a script that resumes: as they were when it was saved, once it is at its place."""

import csv
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import IO

import pytest
import torch

from gpujob_worker.resume import written_files
from tests.harness.script_attempts import append, attempt, saved


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log.txt"


def test_a_csv_that_is_open_all_the_time_goes_on_where_it_was_saved(log: Path) -> None:
    with attempt() as files, open(log, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["epoch", "loss"])
        writer.writerow([0, 2])
        state = saved(files)
        # It is killed in the middle of a line.
        stream.write("1,")
    assert log.read_text() == "epoch,loss\n0,2\n1,"
    with attempt(resumes=True) as files, open(log, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["epoch", "loss"])
        assert files.release(state) == []
        assert log.read_text() == "epoch,loss\n0,2\n"
        writer.writerow([1, 4])
    assert log.read_text() == "epoch,loss\n0,2\n1,4\n"


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_log_handler(mode: str, log: Path) -> None:
    def handler() -> logging.Logger:
        logger = logging.Logger("script")
        logger.addHandler(logging.FileHandler(log, mode=mode))
        logger.info("started")
        return logger

    log.write_text("of another run\n")
    with attempt() as files:
        logger = handler()
        logger.info("one")
        state = saved(files)
        logger.info("two")
        logger.handlers[0].close()
    with attempt(resumes=True) as files:
        logger = handler()
        assert files.release(state) == []
        logger.info("two")
        logger.info("three")
        logger.handlers[0].close()
    before = ["of another run"] if mode == "a" else []
    assert log.read_text().splitlines() == [*before, "started", "one", "two", "three"]


def test_lines_that_a_killed_process_appended_after_its_save_are_made_again(log: Path) -> None:
    with attempt() as files:
        append(log, 0)
        state = saved(files)
        append(log, 1)
    with attempt(resumes=True) as files:
        append(log, 0)
        assert log.read_text() == "0\n1\n"
        assert files.release(state) == []
        append(log, 1)
        append(log, 2)
        state = saved(files)
        append(log, 3)
    with attempt(resumes=True) as files:
        # Not opened on the way: it is known from the attempt before.
        assert files.release(state) == []
        state = saved(files)
        append(log, 3)
        assert state["files"][str(log)]["size"] == len("0\n1\n2\n")
    assert log.read_text() == "0\n1\n2\n3\n"


@pytest.mark.parametrize("before", ["", "of another run\n"])
def test_a_file_first_appended_to_after_the_save_is_as_before(
    before: str, log: Path, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    log.write_text(before)
    with attempt(journal) as files:
        state = saved(files)
        append(log, 0)
        append(log, 1)
    with attempt(journal, resumes=True) as files:
        assert files.release(state) == []
        append(log, 0)
    assert log.read_text() == before + "0\n"


def test_a_file_that_was_made_after_the_save_is_made_again(log: Path, tmp_path: Path) -> None:
    def script() -> None:
        if not log.exists():
            append(log, "header")
        append(log, "line")

    journal = tmp_path / "journal"
    with attempt(journal) as files:
        append(tmp_path / "other", 1)
        state = saved(files)
        script()
    with attempt(journal, resumes=True) as files:
        assert files.release(state) == []
        assert not log.exists()
        script()
    assert log.read_text() == '"header"\n"line"\n'


def test_what_happened_first_after_the_save_counts(log: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with attempt(journal) as files:
        state = saved(files)
        append(log, 0)
        log.write_text("anew\n")
        append(log, 1)
    with attempt(journal, resumes=True) as files:
        assert files.release(state) == []
        assert not log.exists()


def test_what_happened_before_the_save_is_saved_with_it(log: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    other = tmp_path / "other"
    with attempt(journal) as files:
        append(log, 0)
        log.write_text("anew\n")
        saved(files)
        state = saved(files)
        append(other, 0)
    with attempt(journal, resumes=True) as files:
        assert files.release(state) == []
        assert log.read_text() == "anew\n"
        append(other, 0)
        other.write_text("anew\n")
        state = saved(files)
    with attempt(journal, resumes=True) as files:
        assert files.release(state) == []
    assert other.read_text() == "anew\n"


def test_a_handle_appends_to_what_others_append_meanwhile(log: Path) -> None:
    with attempt() as files, open(log, "a") as stream:
        stream.write("one ")
        state = saved(files)
    with attempt(resumes=True) as files, open(log, "a") as stream:
        assert files.release(state) == []
        append(log, "of another")
        stream.write("two")
    assert log.read_text() == 'one "of another"\ntwo'


def test_a_header_that_was_written_before_the_save_stays(log: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with attempt(journal) as files:
        log.write_text("header\n")
        state = saved(files)
        append(log, 0)
    with attempt(journal, resumes=True) as files:
        log.write_text("header\n")
        assert files.release(state) == []
        append(log, 0)
    assert log.read_text() == "header\n0\n"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
@pytest.mark.parametrize("early", ["", "é"])
def test_an_encoding_has_one_mark_at_its_beginning(encoding: str, early: str, log: Path) -> None:
    with attempt() as files, open(log, "w", encoding=encoding) as stream:
        stream.write("äöü")
        state = saved(files)
    with attempt(resumes=True) as files, open(log, "w", encoding=encoding) as stream:
        assert (stream.name, stream.encoding) == (str(log), encoding)
        stream.write(early)
        assert files.release(state) == []
        stream.write("ß")
    assert log.read_bytes() == "äöüß".encode(encoding)


@pytest.mark.parametrize(("mode", "buffering"), [("wb", 0), ("wb", -1), ("w", 1), ("x", -1)])
def test_a_held_handle_is_what_the_script_asked_for(
    mode: str, buffering: int, log: Path, tmp_path: Path
) -> None:
    one = b"1" if "b" in mode else "1"
    with attempt() as files, open(log, mode, buffering) as plain:
        plain.write(one)
        state = saved(files)
    with attempt(resumes=True) as files, open(log, mode, buffering) as held:
        assert type(held) is type(plain)
        assert (held.name, held.mode) == (plain.name, plain.mode)
        held.write(one)
        assert files.release(state) == []
        held.write(one)
        assert saved(files)["files"][str(log)] == {
            **state["files"][str(log)],
            "size": 2,
            "position": 2,
            "content": b"11",
        }
    assert log.read_text() == "11"


def test_a_place_in_the_middle_of_a_file_comes_back(log: Path) -> None:
    with attempt() as files, open(log, "wb") as stream:
        stream.write(b"0000")
        stream.seek(2)
        state = saved(files)
    with attempt(resumes=True) as files, open(log, "wb") as stream:
        assert files.release(state) == []
        stream.write(b"1")
    assert log.read_bytes() == b"0010"


def test_a_new_file_is_written_on_the_way(tmp_path: Path) -> None:
    with attempt(resumes=True) as files:
        for name in ("a", "b"):
            (tmp_path / name).write_text("new")
        torch.save(1, tmp_path / "c")
        (tmp_path / "a").unlink()
        os.rename(tmp_path / "b", tmp_path / "d")
        shutil.rmtree(Path(os.path.join(tmp_path, "e")).mkdir() or tmp_path / "e")
        descriptor = os.open(tmp_path / "lock", os.O_CREAT | os.O_EXCL)
        os.close(descriptor)
        os.remove(path=tmp_path / "lock")
        assert files.held() == {}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["c", "d"]


def test_what_was_there_is_neither_removed_nor_moved_on_the_way(tmp_path: Path) -> None:
    old = {name: tmp_path / name for name in ("a", "b", "c", "d")}
    for path in old.values():
        path.write_text("old")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "inner").write_text("old")
    (tmp_path / "latest").symlink_to("a")
    with attempt(resumes=True) as files:
        os.remove(path=old["a"])
        old["b"].unlink()
        os.rename(old["c"], tmp_path / "c.1")
        os.truncate(old["d"], 0)
        shutil.rmtree(folder)
        os.makedirs(folder)
        (tmp_path / "latest").unlink()
        (tmp_path / "latest").symlink_to("b")
        (tmp_path / "new").write_text("new")
        os.replace(tmp_path / "new", old["d"])
        assert len(files.held()) == 6
        assert files.release({"saves": 0, "files": {}, "folders": []}) == []
        old["b"].unlink()
    assert not old.pop("b").exists()
    assert {path.read_text() for path in old.values()} == {"old"}
    assert (folder / "inner").read_text() == "old"
    assert os.readlink(tmp_path / "latest") == "a"
    assert not (tmp_path / "new").exists()


def test_a_file_that_became_smaller_is_a_reason_with_numbers(log: Path) -> None:
    with attempt() as files:
        append(log, 12345)
        state = saved(files)
    log.write_text("12")
    with attempt(resumes=True) as files:
        assert files.release(state) == [f"{log} has 2 bytes; it had 6 when the run was saved"]
    log.unlink()
    state["files"][str(log)]["content"] = None
    with attempt(resumes=True) as files:
        assert files.release(state) == [f"{log} is gone; it had 6 when the run was saved"]


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_log_that_went_with_the_pod_is_written_again(mode: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    log, closed = folder / "log.txt", folder / "closed.txt"

    def begin() -> IO[str]:
        folder.mkdir(exist_ok=True)
        stream = open(log, mode)  # noqa: SIM115 - the caller closes it
        stream.write("head\n")
        return stream

    with attempt() as files, begin() as stream:
        append(closed, 1)
        stream.write("one\n")
        state = saved(files)
        stream.write("two\n")
        append(closed, 2)
    whole = log.read_text(), closed.read_text()
    shutil.rmtree(folder)
    with attempt(resumes=True) as files, begin() as stream:
        assert files.release(state) == []
        assert (log.read_text(), closed.read_text()) == ("head\none\n", "1\n")
        assert stream.tell() == len("head\none\n")
        stream.write("two\n")
        append(closed, 2)
    assert (log.read_text(), closed.read_text()) == whole


def test_a_log_that_cannot_be_written_again_is_a_reason(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with attempt() as files:
        append(folder / "log.txt", 12345)
        state = saved(files)
        monkeypatch.setattr(written_files, "_LOG_BYTES", 5)
        append(log, 12345)
        large = saved(files)
    shutil.rmtree(folder)
    log.unlink()
    with attempt(resumes=True) as files:
        # The script makes no such folder any more.
        reason = f"{folder / 'log.txt'} is gone; it had 6 when the run was saved"
        assert files.release(state) == [reason]
        assert f"{log} is gone; it had 6 when the run was saved" in files.release(large)
    assert not log.exists()


def test_nothing_is_changed_where_there_is_a_reason(tmp_path: Path, log: Path) -> None:
    other = tmp_path / "other"
    with attempt() as files:
        append(log, 1)
        state = saved(files)
        append(log, 2)
        other.write_text("of somebody")
    with attempt(resumes=True) as files, open(other, "w") as stream:
        stream.write("x")
        stream.flush()
        assert files.release(state) == [
            f"{other} is open for writing, and was not when the run was saved"
        ]
        other.unlink()
        append(log, 3)
    assert (log.read_text(), other.read_text()) == ("1\n2\n", "of somebody")


def test_a_handle_that_is_missing_is_a_reason(log: Path) -> None:
    with attempt() as files, open(log, "w") as stream:
        stream.write("x")
        state = saved(files)
    with attempt(resumes=True) as files:
        (reason,) = files.release(state)
        assert "is not open now" in reason


KILLED = """
    import ast, csv, os, signal, sys
    from pathlib import Path
    from gpujob_worker.resume.script_files import ScriptFiles

    files, state = ScriptFiles(), Path("state.txt")
    files.install()
    files.exclude(Path("checkpoints"))
    files.journal.keep(Path("checkpoints/journal").absolute())
    saved = ast.literal_eval(state.read_text()) if state.exists() else None
    if saved:
        files.hold()
    stream = open("steps.csv", "w", newline="")
    rows = csv.writer(stream)
    rows.writerow(["step"])
    for step in range(10):
        if saved:
            if step < saved["step"]:
                continue
            assert files.release(saved["files"]) == []
            saved = None
        rows.writerow([step])
        if step % 4 == 3:
            with open("epochs.jsonl", "a") as log:
                log.write(f"{step}\\n")
        if step == 5:
            stream.flush()
            if sys.argv[1] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
        if step == 1:
            state.write_text(repr({"step": 2, "files": files.snapshot()}))
"""


def test_after_a_kill_the_files_are_those_of_a_run_without_one(tmp_path: Path) -> None:
    def run(folder: str, how: str) -> int:
        (tmp_path / folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", textwrap.dedent(KILLED), how]
        return subprocess.run(command, cwd=tmp_path / folder, check=False).returncode

    assert run("whole", "") == 0
    assert run("resumed", "killed") == -signal.SIGKILL
    assert (tmp_path / "resumed" / "epochs.jsonl").read_text() == "3\n"
    assert run("resumed", "") == 0
    for name in ("steps.csv", "epochs.jsonl"):
        resumed = (tmp_path / "resumed" / name).read_text()
        assert resumed == (tmp_path / "whole" / name).read_text()
