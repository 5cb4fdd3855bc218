"""What the system cannot read is not damaged: the attempt fails, and every checkpoint stays."""

import errno
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_worker.checkpoint import reading, store
from gpujob_worker.checkpoint.errors import CheckpointError, CorruptError, UnreadableError
from gpujob_worker.checkpoint.folder_claim import FolderClaim
from gpujob_worker.checkpoint.manifest import read_small
from gpujob_worker.checkpoint.store import QUARANTINED_MAX, Store
from tests.worker.checkpoint.failing_reads import ALWAYS, FailingReads
from tests.worker.checkpoint.test_shared_store import opened, saved, together

FILES = ["MANIFEST.json", "rank-0.manifest.json", "rank-0/state.json", "rank-0/state.safetensors"]
ERRORS = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES, errno.ENOMEM]
STATE = {"weights": torch.arange(50.0)}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WAIT_SECONDS", (0.001, 0.001), raising=False)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.glob("step-*"))


def with_steps(directory: Path, *steps: int, keep: int = 9) -> Store:
    opened_store = Store(directory, attempt=1, keep=keep)
    for step in steps:
        opened_store.save(step, STATE)
    return opened_store


def damage(directory: Path, step: int) -> None:
    (directory / f"step-{step}" / "MANIFEST.json").write_text("{}")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("number", ERRORS)
def test_an_error_that_stays_fails_the_load_and_changes_nothing(
    tmp_path: Path, file: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_by = with_steps(tmp_path, 10, 20)
    with monkeypatch.context() as patch:
        FailingReads(patch, f"step-20/{file}", number, ALWAYS)
        with pytest.raises(UnreadableError) as raised:
            saved_by.load()
    assert f"step-20/{file} cannot be read after 3 tries" in str(raised.value)
    assert errno.errorcode[number] in str(raised.value)
    assert "move its folder out of the checkpoint directory" in str(raised.value)
    assert names(tmp_path) == ["step-10", "step-20"]
    loaded = Store(tmp_path, attempt=2).load()
    assert loaded is not None
    assert loaded.step == 20


@pytest.mark.parametrize("file", FILES)
def test_an_error_that_passes_costs_nothing(
    tmp_path: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_by = with_steps(tmp_path, 10, 20)
    failing = FailingReads(monkeypatch, f"step-20/{file}", errno.ESTALE, 2)
    loaded = saved_by.load()
    assert failing.failed == 2
    assert loaded is not None
    assert loaded.step == 20
    assert saved_by.notes == []


def test_too_many_open_files(tmp_path: Path) -> None:
    """The kernel's own error: nothing can be listed, opened or mapped."""
    saved_by = with_steps(tmp_path, *range(9))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    try:
        # Listed and hashed by one at a time; mapped by two.
        for more, where in ((0, str(tmp_path)), (1, "step-8/rank-0/state.safetensors")):
            resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
            with pytest.raises(UnreadableError, match=f"{where} cannot be read .*open files"):
                saved_by.load()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert saved_by.steps() == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    loaded = saved_by.load()
    assert loaded is not None
    assert loaded.step == 8


@pytest.mark.parametrize("error", [FileNotFoundError("No such file"), RuntimeError, MemoryError])
def test_a_file_whose_hash_is_right_is_not_damaged(
    tmp_path: Path, error: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's words for a file that cannot be opened or mapped are many."""

    def fails(path: Path) -> None:
        raise error

    saved_by = with_steps(tmp_path, 10, 20)
    monkeypatch.setattr(store, "load_file", fails)
    with pytest.raises(UnreadableError, match=r"step-20/rank-0/state\.safetensors cannot be read"):
        saved_by.load()
    assert names(tmp_path) == ["step-10", "step-20"]


def test_a_damaged_one_stays_until_an_older_one_has_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved_by = with_steps(tmp_path, 10, 20)
    damage(tmp_path, 20)
    with monkeypatch.context() as patch:
        FailingReads(patch, "step-10/MANIFEST.json", errno.EIO, ALWAYS)
        with pytest.raises(UnreadableError):
            saved_by.load()
    assert names(tmp_path) == ["step-10", "step-20"]
    loaded = saved_by.load()
    assert loaded is not None
    assert loaded.step == 10
    assert saved_by.steps() == [10]
    (aside,) = tmp_path.glob("step-20.corrupt-*")
    assert "MANIFEST.json does not match its own hash" in (aside / "CORRUPT").read_text()


def test_only_what_was_proven_damaged_is_ever_removed(tmp_path: Path) -> None:
    """An older version set aside what it could not read, in folders of the same names."""
    saved_by = with_steps(tmp_path, *range(1, 8))
    for step in (1, 2, 3, 4):
        (tmp_path / f"step-{step}").rename(tmp_path / f"step-{step}.corrupt-0000000{step}")
    for step in (5, 6, 7):
        damage(tmp_path, step)
    assert saved_by.load() is None
    for step in range(8, 12):
        saved_by.save(step, STATE)
        damage(tmp_path, step)
        assert saved_by.load() is None
    unproven = [f"step-{step}.corrupt-0000000{step}" for step in (1, 2, 3, 4)]
    assert set(unproven) <= set(names(tmp_path))
    assert len(list(tmp_path.glob("*/CORRUPT"))) == QUARANTINED_MAX
    # Nothing was lost: what an older version set aside is given its name again by hand.
    (tmp_path / unproven[3]).rename(tmp_path / "step-4")
    loaded = saved_by.load()
    assert loaded is not None
    assert loaded.step == 4


def test_a_pipe_or_folder_in_place_of_a_file_is_damage(tmp_path: Path) -> None:
    """A pipe would be waited for without end."""
    saved_by = with_steps(tmp_path, 10, 20, 30, 40)
    for step, file in ((40, FILES[0]), (30, FILES[2])):
        path = tmp_path / f"step-{step}" / file
        path.unlink()
        os.mkfifo(path)
    shutil.rmtree(tmp_path / "step-20" / "rank-0")
    (tmp_path / "step-20" / "rank-0").write_text("no folder")
    loaded = saved_by.load()
    assert loaded is not None
    assert loaded.step == 10
    assert saved_by.steps() == [10]


def test_a_fence_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_steps(tmp_path, 10)
    FailingReads(monkeypatch, "FENCE", errno.EIO, 2)
    assert Store(tmp_path, attempt=2).steps() == [10]
    FailingReads(monkeypatch, "FENCE", errno.EIO, ALWAYS)
    with pytest.raises(UnreadableError, match=r"FENCE cannot be read after 3 tries .*EIO"):
        Store(tmp_path, attempt=3)


def test_one_process_that_cannot_read_fails_all_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)
    saved(stores, 5)
    stores = opened(tmp_path, 2)
    with monkeypatch.context() as patch:
        FailingReads(patch, "step-5/rank-1/state.json", errno.EIO, ALWAYS)
        for error in together(*(each.load for each in stores)):
            assert isinstance(error, UnreadableError)
            assert "rank-1/state.json cannot be read" in str(error)
            assert str(error).endswith("(process 1)")
    assert names(tmp_path) == ["step-3", "step-5"]
    found = together(*(each.load for each in opened(tmp_path, 3)))
    assert [each.step for each in found] == [5, 5]


def test_a_directory_that_cannot_be_listed_fails_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)

    def listed(path: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "listdir", listed)
    for error in together(*(each.load for each in stores)):
        assert isinstance(error, UnreadableError)
        assert f"{tmp_path} cannot be read" in str(error)


def test_one_that_fails_in_another_way_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)

    def fails(path: Path) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(store, "load_file", fails)
    for error in together(*(each.load for each in stores)):
        assert isinstance(error, CheckpointError)
        assert "a defect" in str(error)


def test_whose_a_folder_is_must_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for nobody's, it would get another owner, and the checkpoints with it."""
    claim = FolderClaim(tmp_path, ["train.py"], run="1", attempt=1)
    assert claim.take() is None
    claim._lock.release()
    FailingReads(monkeypatch, "CLAIM", errno.EACCES, ALWAYS)
    following = FolderClaim(tmp_path, ["train.py"], run="2", attempt=2)
    for ask in (following.is_known, following.meet, following.take):
        with pytest.raises(UnreadableError, match=r"CLAIM cannot be read .*EACCES"):
            ask()
    following._lock.release()


def test_a_small_file_that_is_missing_is_no_error_of_the_system(tmp_path: Path) -> None:
    for missing in (tmp_path / "none", tmp_path / ("n" * 300), tmp_path / "nul\0", tmp_path):
        with pytest.raises(CorruptError):
            read_small(missing)
