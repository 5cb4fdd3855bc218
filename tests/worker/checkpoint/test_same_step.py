"""A step that is committed stays as it is, and a damaged one is replaced."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from gpujob_worker.checkpoint import store as store_module
from gpujob_worker.checkpoint.ballot import Ballot
from gpujob_worker.checkpoint.errors import FencedError
from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.store import Store, exchange
from tests.harness.worker_process import forkserver
from tests.worker.checkpoint.test_shared_store import loaded, opened, saved, together

pytestmark = pytest.mark.timeout(240)
TENSORS = Path("rank-0/state.safetensors")
# Where a commit is killed, and the step that is loaded then.
WITH_EXCHANGE = {
    "started": 1,
    "tensors": 1,
    "rank manifest": 1,
    "manifest": 1,
    "exchanged": 2,
    "committed": 2,
}
WITHOUT = {**WITH_EXCHANGE, "set aside": 1}
del WITHOUT["exchanged"]


def state_of(step: int, value: float = 1.0) -> dict[str, Any]:
    return {"step": step, "weights": torch.full((50,), value)}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def cannot(one: Path, other: Path) -> bool:
    """A file system without such a call."""
    return False


def value_of(directory: Path, step: int) -> float:
    found = Store(directory, attempt=9).load()
    assert found is not None
    assert found.step == step
    return float(found.state["weights"][0])


def test_a_step_that_is_whole_is_not_written_again(tmp_path: Path) -> None:
    points: list[str] = []
    store = Store(tmp_path, attempt=1, on_point=points.append)
    first = store.save(1, state_of(1))
    identity, reached = (tmp_path / "step-1").stat().st_ino, list(points)
    again = store.save(1, state_of(1, 2.0))
    assert points == reached
    assert again.bytes == first.bytes
    assert (tmp_path / "step-1").stat().st_ino == identity
    assert not list(tmp_path.glob("*corrupt*"))
    assert value_of(tmp_path, 1) == 1.0


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_damaged_one_is_replaced(
    tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(store_module, "exchange", cannot)
    store = Store(tmp_path, attempt=1)
    for step in (1, 2):
        store.save(step, state_of(step))
    flip(tmp_path / "step-2" / TENSORS)
    store.save(2, state_of(2, 3.0))
    assert value_of(tmp_path, 2) == 3.0
    (aside,) = tmp_path.glob("step-2.corrupt-*")
    assert (aside / "CORRUPT").read_text() == "it did not verify, and the step was written again"
    assert not list(tmp_path.glob(".step-*"))


def dies_at(directory: Path, point: str, can_exchange: bool) -> None:
    """Step 2 is damaged, is written again, and the process is killed at a point of that."""

    def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    store = Store(directory, attempt=1)
    for step in (1, 2):
        store.save(step, state_of(step))
    flip(directory / "step-2" / TENSORS)
    if not can_exchange:
        setattr(store_module, "exchange", cannot)  # noqa: B010 - not exported there
    Store(directory, attempt=1, on_point=reached).save(2, state_of(2, 3.0))


@pytest.mark.parametrize(
    ("can_exchange", "point", "step"),
    [(True, *case) for case in WITH_EXCHANGE.items()]
    + [(False, *case) for case in WITHOUT.items()],
)
def test_sigkill_while_a_damaged_one_is_replaced(
    tmp_path: Path, can_exchange: bool, point: str, step: int
) -> None:
    child = forkserver.Process(target=dies_at, args=(tmp_path, point, can_exchange))
    child.start()
    child.join(100)
    assert child.exitcode == -signal.SIGKILL
    assert value_of(tmp_path, step) == (3.0 if step == 2 else 1.0)
    assert not list(tmp_path.glob(".step-*"))
    # The step can be written then, whatever was left of it.
    after = Store(tmp_path, attempt=9)
    after.load()
    after.save(2, state_of(2, 4.0))
    assert value_of(tmp_path, 2) == (3.0 if step == 2 else 4.0)


def test_a_full_disk_leaves_what_was_loadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename of the new one fails, after the damaged one went aside."""
    monkeypatch.setattr(store_module, "exchange", cannot)
    store = Store(tmp_path, attempt=1)
    for step in (1, 2):
        store.save(step, state_of(step))
    flip(tmp_path / "step-2" / TENSORS)
    plain = Path.rename

    def rename(path: Path, target: Path) -> Path:
        if path.name.startswith(".step-"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return plain(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(OSError, match="No space left"):
            store.save(2, state_of(2, 3.0))
        # One that is whole needs no rename.
        assert store.save(1, state_of(1, 3.0)).step == 1
    assert value_of(tmp_path, 1) == 1.0


def test_an_older_attempt_does_not_take_a_newer_ones_step_for_its_own(tmp_path: Path) -> None:
    old = Store(tmp_path, attempt=1)
    Store(tmp_path, attempt=2).save(1, state_of(1))
    with pytest.raises(FencedError):
        old.save(1, state_of(1))


def test_names_are_exchanged_or_stay(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "first").touch()
    assert exchange(one, other), "the file system of the tests has the call"
    assert (other / "first").exists()
    assert not exchange(one, tmp_path / "missing")
    assert one.exists()


def test_several_processes_leave_a_whole_one_and_replace_a_damaged_one(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)
    first = saved(stores, 5)
    identity = (tmp_path / "step-5").stat().st_ino
    again = saved(stores, 5)
    assert [commit.bytes for commit in again] == [commit.bytes for commit in first]
    assert (tmp_path / "step-5").stat().st_ino == identity
    flip(tmp_path / "step-5" / "rank-1" / "state.safetensors")
    assert [commit.step for commit in saved(stores, 5)] == [5, 5]
    assert len(list(tmp_path.glob("step-5.corrupt-*"))) == 1
    assert not list(tmp_path.glob(".step-*"))
    assert [found.step for found in loaded(tmp_path)] == [5, 5]


class CountingStore:
    """The group's store, which counts what is kept in it."""

    def __init__(self) -> None:
        self._values: Any = HashStore()
        self.keys: set[str] = set()

    def set(self, key: str, value: str) -> None:
        assert len(self.keys) < 100, "the load does not end"
        self.keys.add(key)
        self._values.set(key, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._values, name)


def test_a_damaged_one_that_cannot_be_renamed_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sticky folder of another owner, or a volume that is read-only by now."""
    saved(opened(tmp_path), 3)
    saved(opened(tmp_path), 5)
    flip(tmp_path / "step-5" / "rank-1" / "state.safetensors")
    values: Any = CountingStore()
    stores = together(
        *(lambda rank=rank: SharedStore(tmp_path, 2, Ballot(values, rank, 2)) for rank in (0, 1))
    )

    def rename(path: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "rename", rename)
    assert [found.step for found in together(*(store.load for store in stores))] == [3, 3]
    assert (tmp_path / "step-5").exists()


@pytest.mark.parametrize("name", ["step-5\n", "step-05", "step-5 ", "\nstep-5", "step-5.corrupt-1"])
def test_a_folder_with_nearly_such_a_name_is_no_step(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path, attempt=1)
    store.save(1, state_of(1))
    (tmp_path / name).mkdir()
    assert store.steps() == [1]
    stores = opened(tmp_path / "shared")
    (tmp_path / "shared" / name).mkdir()
    assert together(*(each.load for each in stores)) == [None, None]
