"""A folder of checkpoints is of one process of a run, and of the same command in the next run."""

import multiprocessing
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from gpujob_worker.checkpoint.errors import CorruptError
from gpujob_worker.checkpoint.folder_claim import FolderClaim

ANOTHER = "another process of this run is the one that is saved"
ALIKE = "several processes of one run have this command, so that it tells none of them"
TRAIN = ["/work", "python", "train.py"]


def claim(folder: Path, *more: str, run: str = "1") -> FolderClaim:
    return FolderClaim(folder / "claimed", [*TRAIN, *more], run)


def ended(claimed: FolderClaim) -> None:
    """As at the end of its process."""
    claimed._release()


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
    assert claim(tmp_path, run="2").take() == ALIKE
    # Not even the first one, which comes by itself this time.
    assert claim(tmp_path, run="3").take() == ALIKE


def test_of_another_command_nothing_is_used(tmp_path: Path) -> None:
    first = claim(tmp_path, "a")
    assert first.take() is None
    ended(first)
    other = claim(tmp_path, "b", run="2")
    assert not other.is_known()
    assert other.take() == "the checkpoints that are there are of another command"
    # The lock is free for the one that they are of.
    assert claim(tmp_path, "a", run="2").take() is None


def test_the_same_command_in_another_folder_is_another_command(tmp_path: Path) -> None:
    first = claim(tmp_path)
    assert first.take() is None
    ended(first)
    elsewhere = FolderClaim(tmp_path / "claimed", ["/elsewhere", *TRAIN[1:]], "2")
    assert not elsewhere.is_known()
    assert elsewhere.take() is not None


def test_checkpoints_without_a_claim_are_used_by_nobody(tmp_path: Path) -> None:
    (tmp_path / "claimed" / "step-5").mkdir(parents=True)
    assert not claim(tmp_path).is_known()
    assert claim(tmp_path).take() == "the checkpoints that are there are of nobody who is known"


def test_a_command_line_is_not_written_down(tmp_path: Path) -> None:
    assert claim(tmp_path, "--token=secret").take() is None
    texts = [path.read_text() for path in (tmp_path / "claimed").iterdir()]
    assert not any("secret" in text for text in texts)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"command": "x"}'])
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
