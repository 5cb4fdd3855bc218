"""A run of seeds can be interrupted and continued, by the same code only."""

import subprocess
from pathlib import Path

import pytest

from tests.simulation import run
from tests.simulation.played_seeds import PlayedSeeds, played_code
from tests.simulation.result import Result

SEEDS = {
    seed: Result(seed, revisions=10 * seed, writes=1, cycles=2, seconds=60.4) for seed in (1, 2)
}


def test_a_file_goes_on_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "played"
    first = PlayedSeeds(path, "code")
    first.note(1, SEEDS[1], 1.5)
    first.note(2, SEEDS[2], 2.0)
    again = PlayedSeeds(path, "code")
    assert again.seeds == first.seeds
    assert again.seeds[2].counts == {"revisions": 20, "writes": 1, "cycles": 2, "seconds": 60}
    assert [one.took_seconds for one in again.seeds.values()] == [1.5, 2.0]


def test_other_code_begins_a_file_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "played"
    PlayedSeeds(path, "code").note(1, SEEDS[1], 1.0)
    with pytest.raises(ValueError, match="of other code: code, and this is changed"):
        PlayedSeeds(path, "changed")
    with pytest.raises(ValueError, match="commit it first"):
        PlayedSeeds(tmp_path / "new", "unknown")


def test_code_without_git_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert played_code() == "unknown"


def test_code_is_named_by_what_is_committed_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    git = ("git", "-c", "user.name=one", "-c", "user.email=one@example.com")
    named: list[str] = []
    subprocess.run(["git", "init", "--quiet"], check=True)
    for file, text in (("a/x", "1"), ("b/x", "1"), ("c/x", "1"), ("a/x", "2")):
        Path(file).parent.mkdir(exist_ok=True)
        Path(file).write_text(text)
        named.append(played_code(("a", "b")))
        subprocess.run(["git", "add", "."], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", file], check=True)
        named.append(played_code(("a", "b")))
    assert named[:3] == ["unknown", "unknown", "unknown"], "b is not there, then not committed"
    assert named[3] == named[4] == named[5], "c is none of it"
    assert named[6] == "unknown"
    assert named[7] not in ("unknown", named[3])


def test_only_the_other_seeds_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def results(seeds: list[int], processes: int) -> list[tuple[int, Result | str]]:
        assert processes == 1
        asked.extend(seeds)
        return [(seed, SEEDS.get(seed, "it raised")) for seed in seeds]

    monkeypatch.setattr(run, "_results", results)
    monkeypatch.setattr(run, "played_code", lambda: "code")
    command = ["--played", str(tmp_path / "played"), "--every", "0", "--seeds"]
    assert run.main([*command, "1"]) == 0
    assert run.main([*command, "1-3"]) == 1, "one of them raised"
    assert asked == [1, 2, 3]
    assert run.main([*command, "1-3"]) == 1
    assert asked[3:] == [3], "what failed is played again"
    assert run.main([*command, "1-2"]) == 0
    assert asked[4:] == []
    assert run.main([*command, "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[-4] == "2 seeds were played before, by the same code"
    assert said[-3].startswith("2 seeds, 0 failed; 30 revisions, 2 operator writes, 4 cycles")
    assert said[-1].startswith("1 seeds, 0 failed; 20 revisions"), "the file has others, too"
