"""A lock on a file is of one process, for as long as it lives and no longer."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.process_lock import ProcessLock

pytestmark = pytest.mark.any_torch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lock"


def in_a_child(does: Any) -> int:
    """What it returns in a forked child, as a number."""
    child = os.fork()
    if not child:
        code = 99
        try:
            code = int(does())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_one_has_it_until_it_lets_go(path: Path) -> None:
    first, second = ProcessLock(path), ProcessLock(path)
    assert not first.held
    assert (first.take(), first.take(), second.take()) == (True, True, False)
    assert (first.held, second.held) == (True, False)
    first.release()
    first.release()
    assert (first.held, second.take()) == (False, True)
    second.release()


def test_a_file_that_is_there_keeps_its_text(path: Path) -> None:
    path.write_text("a report")
    lock = ProcessLock(path)
    assert lock.take()
    assert path.read_text() == "a report"
    lock.release()


def test_a_child_holds_nothing_and_takes_nothing_from_its_parent(path: Path) -> None:
    lock = ProcessLock(path)
    assert lock.take()
    assert in_a_child(lambda: lock.held) == 0
    assert in_a_child(lock.take) == 0
    assert in_a_child(lambda: lock.release() or lock.take()) == 0
    assert lock.held
    lock.release()


@pytest.mark.parametrize("times", [1, 2])
def test_a_child_that_outlives_its_parents_lock_leaves_it(path: Path, times: int) -> None:
    """However often its parent took the lock before."""
    lock = ProcessLock(path)
    for _ in range(times):
        lock.release()
        assert lock.take()
    ready, go_on = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.close(go_on[1])
        os.write(ready[1], b"-")
        os.read(go_on[0], 1)  # until the parent closes its end
        os._exit(0)
    os.read(ready[0], 1)
    lock.release()
    other = ProcessLock(path)
    try:
        assert other.take()
    finally:
        for end in (*ready, *go_on):
            os.close(end)
        os.waitpid(child, 0)
        other.release()


def test_a_child_may_take_what_its_parent_left(path: Path) -> None:
    lock = ProcessLock(path)
    assert lock.take()
    lock.release()
    assert in_a_child(lock.take) == 1


def test_what_cannot_be_opened_raises(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "no" / "such" / "folder")
    with pytest.raises(FileNotFoundError):
        lock.take()
    assert not lock.held


@pytest.mark.parametrize("fault", [BlockingIOError(errno.EAGAIN, ""), OSError(errno.ENOLCK, "no")])
def test_no_file_stays_open_where_it_is_not_held(
    fault: OSError, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise fault

    monkeypatch.setattr(fcntl, "flock", fails)
    lock, before = ProcessLock(path), open_files()
    if isinstance(fault, BlockingIOError):
        assert not lock.take()
    else:
        with pytest.raises(OSError, match="no"):
            lock.take()
    assert open_files() == before
    assert not lock.held


def test_a_script_that_closes_every_file_is_not_hurt(path: Path) -> None:
    lock = ProcessLock(path)
    assert lock.take()
    descriptor = lock._descriptor
    assert descriptor is not None
    os.close(descriptor)
    assert in_a_child(lambda: lock.held) == 0
    lock.release()
    assert not lock.held
