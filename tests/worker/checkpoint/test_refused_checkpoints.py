"""Checkpoints to which a training could not come back make way for those of a fresh run, once."""

from pathlib import Path
from typing import Any

import pytest

from gpujob_worker.checkpoint.refusals import FILE, Refusals
from gpujob_worker.checkpoint.store import Store


def saved(directory: Path, attempt: int, *steps: int) -> Store:
    store = Store(directory, attempt)
    for step in steps:
        store.save(step, {"step": step})
    return store


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if "step" in path.name}


def test_nothing_is_refused_at_first(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 3)
    refusals = Refusals(tmp_path)
    assert not refusals.awaits
    assert refusals.reason() is None
    assert saved(tmp_path, 2).steps() == store.steps() == [3]


def test_refused_checkpoints_make_way_and_the_newest_stays_to_look_at(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3, 6)
    refusals = Refusals(tmp_path)
    refusals.add("the loss is another", 2)
    assert refusals.awaits
    assert refusals.reason() is None
    store = Store(tmp_path, 3)
    assert store.load() is None
    assert names(tmp_path) == {"refused-step-6"}
    assert ["the loss is another" in note for note in store.notes] == [True]
    store.save(2, {})
    assert Store(tmp_path, 4).steps() == [2], "put aside once"


def test_processes_of_one_attempt_count_once(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path)
    for _ in range(4):
        refusals.add("another loss", 2)
    assert refusals.reason() is None
    refusals.add("again another loss", 3)
    assert refusals.reason() == "again another loss"


def test_after_the_second_refusal_everything_stays(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path)
    for attempt in (2, 4):
        saved(tmp_path, attempt - 1, attempt)
        refusals.add("another loss", attempt)
    assert saved(tmp_path, 5).steps() == [4]
    assert names(tmp_path) == {"refused-step-2", "step-4"}


def test_a_crash_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3, 6)
    Refusals(tmp_path).add("another loss", 2)
    (tmp_path / "step-6").rename(tmp_path / "refused-step-6")
    Store(tmp_path, 3)
    assert "step-3" not in names(tmp_path)
    assert not Refusals(tmp_path).awaits


@pytest.mark.parametrize("text", ["", "another loss", "[]", '{"times": 1}', '{"times": null}'])
def test_what_cannot_be_read_is_a_refusal_for_good(text: str, tmp_path: Path) -> None:
    saved(tmp_path, 1, 3)
    (tmp_path / FILE).write_text(text)
    reason: Any = Refusals(tmp_path).reason()
    assert FILE in reason
    assert saved(tmp_path, 2).steps() == [3]
