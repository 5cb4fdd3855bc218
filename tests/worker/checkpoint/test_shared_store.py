"""A checkpoint of several processes is whole or is not there, wherever one of them ends."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import FileStore, HashStore

from gpujob_worker.checkpoint import shared_store
from gpujob_worker.checkpoint.ballot import Ballot, named
from gpujob_worker.checkpoint.errors import CheckpointError, FencedError, MismatchError
from gpujob_worker.checkpoint.shared_store import SharedStore
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.checkpoint.tree import encode_tree
from tests.harness.worker_process import forkserver

STAGES = ["started", "tensors", "rank manifest", "said", "manifest", "committed"]


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """What each returned or raised."""

    def outcome(task: Callable[[], Any]) -> Any:
        try:
            return task()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [found.result(100) for found in [pool.submit(outcome, task) for task in tasks]]


def opened(directory: Path, attempt: int = 1, size: int = 2, **keywords: Any) -> list[Any]:
    values: Any = HashStore()
    ballots = [Ballot(values, rank, size) for rank in range(size)]
    return together(
        *(
            lambda ballot=ballot: SharedStore(directory, attempt, ballot, **keywords)
            for ballot in ballots
        )
    )


def state_of(step: int, rank: int) -> dict[str, Any]:
    return {"step": step, "rank": rank, "weights": torch.arange(50.0) * step + rank}


def save(store: SharedStore, step: int, rank: int) -> Any:
    return store.write(step, *encode_tree(state_of(step, rank)), {"name": "job"})


def saved(stores: list[SharedStore], *steps: int) -> list[Any]:
    """Each of the stores saves at its own one of the steps, or all at the same."""
    at = list(steps) * len(stores) if len(steps) == 1 else list(steps)
    return together(
        *(
            lambda rank=rank, store=store, step=step: save(store, step, rank)
            for rank, (store, step) in enumerate(zip(stores, at, strict=True))
        )
    )


def loaded(directory: Path, attempt: int = 9, size: int = 2) -> list[Any]:
    return together(*(store.load for store in opened(directory, attempt, size)))


def test_each_gets_its_own_part_back(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    assert [store.refusal for store in stores] == [None, None]
    assert [found for found in together(*(store.load for store in stores))] == [None, None]
    for step in (3, 5, 7, 9):
        commits = saved(stores, step)
        assert [commit.step for commit in commits] == [step] * 2
        assert commits[0].bytes == commits[1].bytes > 2 * 50 * 4
    assert Store(tmp_path, 2).steps() == [9, 7, 5]
    for rank, found in enumerate(loaded(tmp_path)):
        assert found.step == 9
        assert found.state["rank"] == rank
        assert torch.equal(found.state["weights"], state_of(9, rank)["weights"])


@pytest.mark.promise("I6")
@pytest.mark.parametrize("damage", ["missing file", "missing rank", "flipped", "exchanged"])
def test_what_is_not_whole_in_every_process_is_loaded_in_none(tmp_path: Path, damage: str) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)
    saved(stores, 5)
    part = tmp_path / "step-5" / "rank-1" / "state.safetensors"
    listed = part.parent.parent / "rank-1.manifest.json"
    if damage == "missing file":
        part.unlink()
    elif damage == "missing rank":
        listed.unlink()
    elif damage == "flipped":
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)
    else:
        part.write_bytes((tmp_path / "step-3" / "rank-1" / "state.safetensors").read_bytes())
    reopened = opened(tmp_path, 2)
    found = together(*(store.load for store in reopened))
    assert [each.step for each in found] == [3, 3]
    for store in reopened:
        assert len(store.notes) == 1
        assert "(process 1); set aside, falling back" in store.notes[0]


class FullDiskError(OSError):
    pass


def test_one_that_fails_commits_in_none(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    saved(stores, 3)

    def full(size: int) -> None:
        raise FullDiskError("no space left on device")

    text, tensors = encode_tree(state_of(5, 1))
    first, second = together(
        lambda: save(stores[0], 5, 0), lambda: stores[1].write(5, text, tensors, {}, full)
    )
    assert isinstance(second, FullDiskError)
    assert isinstance(first, CheckpointError)
    assert str(first) == "process 1: no space left on device"
    assert Store(tmp_path, 1).steps() == [3]
    # What fails once is tried again.
    assert [commit.step for commit in saved(stores, 7)] == [7, 7]


def test_one_that_has_nothing_to_write_is_not_waited_for(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    first, _ = together(lambda: save(stores[0], 5, 0), lambda: stores[1].abstain("no time is left"))
    assert str(first) == "process 1: no time is left"
    _, second = together(
        lambda: stores[0].abstain("it cannot be saved"), lambda: save(stores[1], 7, 1)
    )
    assert str(second) == "process 0: it cannot be saved"
    assert not list(tmp_path.glob("step-*"))


def test_parts_of_different_steps_are_no_checkpoint(tmp_path: Path) -> None:
    stores = opened(tmp_path)
    for error in saved(stores, 5, 6):
        assert str(error) == "process 1 is at step 6 and process 0 at step 5"
    assert not list(tmp_path.glob("*step-*"))


def test_one_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: Any) -> None:
    stores = opened(tmp_path)
    monkeypatch.setattr(shared_store, "WRITE_SECONDS", 0.2)
    (error,) = together(lambda: save(stores[0], 5, 0))
    assert str(error) == "processes 1 of 2 did not write within 0 s"
    # It comes late: what was decided stays.
    (late,) = together(lambda: save(stores[1], 5, 1))
    assert str(late) == str(error)
    assert not list(tmp_path.glob("step-*"))


def test_an_older_attempt_is_fenced_out_in_all(tmp_path: Path) -> None:
    stores = opened(tmp_path, attempt=1)
    saved(stores, 3)
    opened(tmp_path, attempt=2)
    for error in saved(stores, 5):
        assert isinstance(error, FencedError)
    for error in opened(tmp_path, attempt=1):
        assert isinstance(error, FencedError)
    assert Store(tmp_path, 3).steps() == [3]


def test_another_number_of_processes_is_refused(tmp_path: Path) -> None:
    saved(opened(tmp_path), 3)
    for error in loaded(tmp_path, size=3):
        assert isinstance(error, MismatchError)
        assert "step-3 was written by 2 processes and 3 train now" in str(error)
    with pytest.raises(MismatchError, match="was written by 2 processes and 1 train now"):
        Store(tmp_path, 9).load()
    # Nothing was set aside: as many as before go on.
    assert [found.step for found in loaded(tmp_path)] == [3, 3]
    alone = tmp_path / "alone"
    Store(alone, 1).save(4, {})
    for error in loaded(alone):
        assert "step-4 was written by 1 processes and 2 train now" in str(error)


def test_a_directory_that_is_not_shared_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(shared_store, "VISIBLE_SECONDS", 0.2)
    values: Any = HashStore()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    stores = together(
        lambda: SharedStore(tmp_path / "one", 1, Ballot(values, 0, 2)),
        lambda: SharedStore(tmp_path / "two", 1, Ballot(values, 1, 2)),
    )
    for store in stores:
        assert store.refusal == (
            "processes 1 of 2 do not see the first one's directory: a volume that all workers"
            " share is needed (ReadWriteMany)"
        )


def test_who_cannot_save_keeps_all_from_it(tmp_path: Path, monkeypatch: Any) -> None:
    for store in opened(tmp_path, own_refusal="why not"):
        assert store.refusal == "process 0 of 2: why not"
    monkeypatch.setattr(shared_store, "HERE_SECONDS", 0.2)
    (alone,) = together(lambda: SharedStore(tmp_path, 1, Ballot(HashStore(), 0, 3)))
    assert alone.refusal == "processes 1, 2 of 3 do not save with the others"
    assert named(list(range(12)), 12).endswith("0, 1, 2, 3, 4, 5, 6, 7 and 4 more of 12")


def dies_at(directory: Path, rank: int, stage: str, file: Path) -> None:
    """Two processes save step 1, and one of them is killed at a stage of saving step 2."""
    die = threading.Event()

    def reached(name: str) -> None:
        if name == stage and die.is_set():
            os.kill(os.getpid(), signal.SIGKILL)

    values: Any = FileStore(str(file), 2)
    store = SharedStore(directory, 1, Ballot(values, rank, 2), on_point=reached)
    save(store, 1, rank)
    die.set()
    if stage not in ("manifest", "committed") and rank == 0:
        shared_store.WRITE_SECONDS = 0.3
    try:
        save(store, 2, rank)
    except CheckpointError as error:
        (directory / f"said-{rank}").write_text(str(error))


@pytest.mark.promise("I6")
@pytest.mark.parametrize("stage", STAGES)
def test_sigkill_at_any_point_leaves_a_whole_checkpoint(tmp_path: Path, stage: str) -> None:
    """Of the second process where it has a part in the stage, else of the first."""
    victim = 0 if stage in ("manifest", "committed") else 1
    file, directory = tmp_path / "values", tmp_path / "checkpoints"
    directory.mkdir()
    never = "never"
    children = [
        forkserver.Process(
            target=dies_at, args=(directory, rank, stage if rank == victim else never, file)
        )
        for rank in range(2)
    ]
    for child in children:
        child.start()
    children[victim].join(100)
    assert children[victim].exitcode == -signal.SIGKILL
    if victim == 0:
        # It would wait for a decision that never comes; in a run its next exchange fails.
        children[1].kill()
    children[1 - victim].join(100)
    # What all have said they wrote is committed by the first, whoever ends then.
    expected = 2 if stage in ("said", "committed") else 1
    found = loaded(directory)
    assert [each.step for each in found] == [expected] * 2
    assert [each.state["rank"] for each in found] == [0, 1]
    assert not list(directory.glob(".step-*"))
    assert json.loads((directory / "FENCE").read_text())["attempt"] == 9


def test_the_first_one_waits_until_the_others_know_what_was_decided(tmp_path: Path) -> None:
    """With it the store of the process group may go, and another one would take it for failed."""
    stores = opened(tmp_path)
    for outcome in (saved(stores, 3), saved(stores, 5, 6)):
        assert len(outcome) == 2
        start = time.monotonic()
        stores[0].wait_until_known(100.0)
        stores[1].wait_until_known(100.0)
        assert time.monotonic() - start < 50
