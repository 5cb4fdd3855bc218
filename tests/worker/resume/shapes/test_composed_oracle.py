"""What counts as the same end of two runs, and what does not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worker.resume.shapes.oracle import (
    differing_files,
    differing_results,
    other_lines,
)

PLAIN = "epoch 0\nepoch 1\n== end\nstep 9\nbest 0.1 2\n"


def folders(path: Path) -> tuple[Path, Path]:
    made = path / "plain", path / "other"
    for each in made:
        each.mkdir()
    return made


def test_only_what_follows_the_mark_is_compared() -> None:
    assert differing_results(PLAIN, "epoch 1\n== end\nstep 9\nbest 0.1 2\n") == []


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace("0.1", "0.10000000000000002"),
        PLAIN.replace("step 9\n", ""),
        PLAIN + "one more\n",
        PLAIN.replace("== end\n", ""),
        "",
    ],
)
def test_another_end_is_seen(other: str) -> None:
    assert differing_results(PLAIN, other) != []


def test_lines_that_the_plain_run_did_not_print_are_counted() -> None:
    assert other_lines(PLAIN, PLAIN.replace("epoch 1", "epoch 7")) == ["epoch 7"]
    assert other_lines(PLAIN, "epoch 1\n== end\n") == []


def test_files_are_the_same_by_what_they_hold(tmp_path: Path) -> None:
    one, other = folders(tmp_path)
    # Pickled once, and twice: other bytes.
    name = "".join(["a", "b"])
    torch.save({"w": torch.ones(2), "names": [name, name]}, one / "w.pt")
    torch.save({"w": torch.ones(2), "names": [name, "".join(["a", "b"])]}, other / "w.pt")
    for folder in (one, other):
        np.save(folder / "a.npy", np.array([1.0, np.nan]))
        (folder / "log.csv").write_text("1,2\n")
    assert (one / "w.pt").read_bytes() != (other / "w.pt").read_bytes()
    assert differing_files(one, other) == []


def test_files_with_other_content_are_named(tmp_path: Path) -> None:
    one, other = folders(tmp_path)
    torch.save({"w": torch.ones(2)}, one / "w.pt")
    torch.save({"w": torch.tensor([1.0, 1.0 + 2**-20])}, other / "w.pt")
    np.save(one / "a.npy", np.zeros(2))
    np.save(other / "a.npy", np.zeros(3))
    (one / "log.csv").write_text("1\n2\n")
    (other / "log.csv").write_text("1\n2\n2\n")
    (one / "gone.txt").touch()
    (other / "more.txt").touch()
    found = differing_files(one, other)
    assert [text.split()[0].partition("[")[0] for text in found] == [
        "gone.txt", "more.txt", "a.npy", "log.csv", "w.pt",
    ]  # fmt: skip
    left = differing_files(one, other, frozenset({"log.csv", "w.pt"}))
    assert [text.split()[0] for text in left] == ["gone.txt", "more.txt", "a.npy"]


def test_a_file_that_cannot_be_read_is_another_file(tmp_path: Path) -> None:
    one, other = folders(tmp_path)
    torch.save({"w": torch.ones(2)}, one / "w.pt")
    (other / "w.pt").write_bytes((one / "w.pt").read_bytes()[:100])
    assert len(differing_files(one, other)) == 1
