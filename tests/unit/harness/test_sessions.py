"""Transcripts keep what a person reads, and leave out what differs from run to run."""

from pathlib import Path

import pytest

from tests.harness.sessions import read_session, steady, words_of


@pytest.mark.parametrize(
    ("output", "kept"),
    [
        ("done in 12 s, 3m 20s, 2h05m, 850 ms", "done in <time>, <time>, <time>, <time>"),
        ("step 12 of 400, 0.2 s/step", "step 12 of 400, 0.2 s/step"),
        ("at 2026-11-29 10:00:07 UTC", "at <date>"),
        ("day/hello, times of 2026-11-29 UTC", "day/hello, times of <date>"),
        ("position 2 of jobs, Unsatisfiable #2", "position <n> of jobs, Unsatisfiable #<n>"),
        ("on CPU-node-1-0-1984Mi-d8726f1e, 1.94 GiB", "on CPU-node-1-0, 1.94 GiB"),
        ("NAME     STATUS   \n", "NAME  STATUS\n"),
        ("uid 0f8fad5b-d9cb-469f-a165-70867728950e", "uid <id>"),
    ],
)
def test_what_varies_is_named(output: str, kept: str) -> None:
    assert steady(output) == kept


def test_a_transcript_is_played_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    text = "About jobs.\n\n$ kubectl gpujob list -o name\nnone\n$ kubectl gpujob lst\nerror\n[2]\n"
    path.write_text(text)
    session = read_session(path)
    ends: dict[tuple[str, ...], tuple[str, int]] = {
        ("list", "-o", "name"): ("none\n", 0),
        ("lst",): ("error\n", 2),
    }
    assert session.commands == ("kubectl gpujob list -o name", "kubectl gpujob lst")
    assert session.played(lambda words: ends[tuple(words)]) == text
    assert session.played(lambda _: ("other", 0)) != text


def test_another_program_is_no_session() -> None:
    with pytest.raises(ValueError, match="kubectl get"):
        words_of("kubectl get pods")
