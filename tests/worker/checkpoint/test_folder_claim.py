"""A folder of checkpoints is of one process of a run, and of the same command in the next run."""

import multiprocessing
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from gpujob_worker.checkpoint import folder_claim
from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.folder_claim import FolderClaim

ANOTHER = "another process of this run is the one that is saved"
ALIKE = "several processes of one run have this command, so that it tells none of them"
TRAIN = ["/work", "python", "train.py"]


def claim(folder: Path, *more: str, run: str = "1") -> FolderClaim:
    """The run's number is also that of its attempt."""
    return FolderClaim(folder / "claimed", [*TRAIN, *more], run, int(run))


def saves(folder: Path) -> None:
    (folder / "claimed" / "step-5").mkdir(parents=True)


def ended(claimed: FolderClaim) -> None:
    """As at the end of its process."""
    claimed._lock.release()


def test_the_first_gets_it_and_a_second_does_not(tmp_path: Path) -> None:
    first = claim(tmp_path, "a")
    assert first.take() is None
    assert claim(tmp_path, "b").take() == ANOTHER
    ended(first)
    assert claim(tmp_path, "b").take() == ANOTHER


def test_the_next_run_knows_it(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert not first.is_known()
    assert first.take() is None
    assert not first.is_known()
    ended(first)
    for run in ("2", "3"):
        again = claim(tmp_path, run=run)
        assert again.is_known()
        assert again.take() is None
        ended(again)


@pytest.mark.parametrize("beside", [True, False])
def test_a_command_that_comes_twice_is_known_to_nobody(beside: bool, tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first.take() is None
    if not beside:
        ended(first)
    assert claim(tmp_path).take() == ANOTHER
    ended(first)
    saves(tmp_path)
    assert claim(tmp_path, run="2").take() == ALIKE
    # Not even the first one, which comes by itself this time.
    assert claim(tmp_path, run="3").take() == ALIKE


def test_of_another_command_nothing_is_used(tmp_path: Path) -> None:
    first = claim(tmp_path, "a")
    assert first.take() is None
    ended(first)
    saves(tmp_path)
    other = claim(tmp_path, "b", run="2")
    assert not other.is_known()
    assert other.take() == "the checkpoints that are there are of another command"
    # The lock is free for the one that they are of.
    assert claim(tmp_path, "a", run="2").take() is None


def test_the_same_command_in_another_folder_is_another_command(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first.take() is None
    ended(first)
    saves(tmp_path)
    elsewhere = FolderClaim(tmp_path / "claimed", ["/elsewhere", *TRAIN[1:]], "2", 2)
    assert not elsewhere.is_known()
    assert elsewhere.take() is not None


def test_checkpoints_without_a_claim_are_used_by_nobody(tmp_path: Path) -> None:
    saves(tmp_path)
    assert not claim(tmp_path).is_known()
    assert claim(tmp_path).take() == "the checkpoints that are there are of nobody who is known"


@pytest.mark.parametrize("twice", [True, False])
def test_without_a_checkpoint_the_next_run_gets_it(twice: bool, tmp_path: Path) -> None:
    """A run that was tried out, or ended before it saved, is in nobody's way."""
    first = claim(tmp_path, "a")
    assert first.take() is None
    if twice:
        assert claim(tmp_path, "a").take() == ANOTHER
    ended(first)
    other = claim(tmp_path, "b", run="2")
    assert other.take() is None
    ended(other)
    saves(tmp_path)
    assert claim(tmp_path, "b", run="3").take() is None


def test_in_the_same_run_it_stays_with_the_first_also_without_a_checkpoint(tmp_path: Path) -> None:
    first = claim(tmp_path, "a")
    assert first.take() is None
    ended(first)
    assert claim(tmp_path, "b").take() == ANOTHER
    assert claim(tmp_path, "a", run="2").is_known()


def test_it_can_be_taken_again(tmp_path: Path) -> None:
    """By several trainings of one process."""
    one = claim(tmp_path)
    assert (one.take(), one.take()) == (None, None)
    one.meet()
    ended(one)
    saves(tmp_path)
    assert claim(tmp_path, run="2").take() is None


def test_an_older_attempt_that_still_lives_does_not_keep_it(tmp_path: Path) -> None:
    """The checkpoint store's fence ends that one."""
    old = claim(tmp_path)
    assert old.take() is None
    saves(tmp_path)
    new = claim(tmp_path, run="2")
    assert new.take() is None
    ended(new)
    assert claim(tmp_path, run="3").take() is None


def test_an_older_attempt_that_comes_late_does_not_get_it(tmp_path: Path) -> None:
    new = claim(tmp_path, run="2")
    assert new.take() is None
    assert claim(tmp_path).take() == "a newer attempt has begun"
    assert claim(tmp_path, "b").take() == "a newer attempt has begun"
    ended(new)
    assert claim(tmp_path, run="3").is_known()


def test_one_that_ends_before_it_trains_is_noted(tmp_path: Path) -> None:
    """In the next run it may be the first, with the checkpoints of the other."""
    first = claim(tmp_path)
    first.meet()
    assert first.take() is None
    saves(tmp_path)
    ended(first)
    claim(tmp_path).meet()
    assert claim(tmp_path, run="2").take() == ALIKE


@pytest.mark.parametrize(("more", "run"), [(["b"], "1"), ([], "2")])
def test_one_of_another_command_or_run_is_not_noted(
    more: list[str], run: str, tmp_path: Path
) -> None:
    first = claim(tmp_path)
    assert first.take() is None
    saves(tmp_path)
    ended(first)
    claim(tmp_path, *more, run=run).meet()
    assert claim(tmp_path, run="3").take() is None


@contextmanager
def beside(holder: FolderClaim, other: FolderClaim) -> Generator[list[str | None]]:
    """`other` asks while `holder` has the lock and has written nothing. At the end of the block its
    answer is there.
    """
    answers: list[str | None] = []
    holder._folder.mkdir(exist_ok=True)
    assert holder._lock.take()
    thread = threading.Thread(target=lambda: answers.append(other.take()))
    thread.start()
    time.sleep(0.1)
    assert answers == []
    yield answers
    thread.join()


def test_of_two_that_begin_at_once_it_is_noted_that_they_are_alike(tmp_path: Path) -> None:
    first = claim(tmp_path)
    with beside(first, claim(tmp_path)) as answers:
        assert first._compare() is None
    assert answers == [ANOTHER]
    saves(tmp_path)
    ended(first)
    assert claim(tmp_path, run="2").take() == ALIKE


def test_one_that_waits_gets_what_the_other_leaves(tmp_path: Path) -> None:
    """The other one finds the checkpoints of another command, say."""
    before = claim(tmp_path, "b")
    assert before.take() is None
    ended(before)
    saves(tmp_path)
    first = claim(tmp_path, "a", run="2")
    with beside(first, claim(tmp_path, "b", run="2")) as answers:
        ended(first)
    assert answers == [None]


def test_nobody_waits_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_claim, "LOCK_SECONDS_MAX", 0.1)
    first = claim(tmp_path)
    (tmp_path / "claimed").mkdir()
    assert first._lock.take()
    assert claim(tmp_path).take() == ANOTHER


def test_a_command_line_is_not_written_down(tmp_path: Path) -> None:
    assert claim(tmp_path, "--token=secret").take() is None
    texts = [path.read_text() for path in (tmp_path / "claimed").iterdir()]
    assert not any("secret" in text for text in texts)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"command": "x", "run": "1"}'])
def test_a_claim_that_cannot_be_read_is_nobodys(text: str, tmp_path: Path) -> None:
    (tmp_path / "claimed").mkdir()
    (tmp_path / "claimed" / "CLAIM").write_text(text)
    assert not claim(tmp_path).is_known()
    with pytest.raises(CorruptError):
        claim(tmp_path).take()


def _lives(claimed: FolderClaim, ends: Event) -> None:
    ends.wait()


def test_a_forked_child_does_not_keep_it(tmp_path: Path) -> None:
    """A loader's process may live longer than the one that trains."""
    fork = multiprocessing.get_context("fork")
    first, ends = claim(tmp_path), fork.Event()
    assert first.take() is None
    child = fork.Process(target=_lives, args=(first, ends))
    child.start()
    ended(first)
    try:
        assert claim(tmp_path, run="2").take() is None
    finally:
        ends.set()
        child.join()
