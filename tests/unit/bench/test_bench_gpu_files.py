"""Each run of `bench.gpu` keeps its files, and a merge of them keeps what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, overhead, worker
from bench.speed.merged import merged

NOT_RUN = {"note": "not run: out of time"}
OF_CPU = ["--device", "cpu", "--quick"]


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts find one row for each workload at once."""

    def rows(names: Sequence[str], *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"workload": name, "way": "auto", "speedup": 2.0} for name in names]

    def ratios(names: Sequence[str], *_: Any, **__: Any) -> list[dict[str, Any]]:
        return [{"workload": name, "way": "off", "ratio": 1.0} for name in names]

    monkeypatch.setattr(worker, "measure", rows)
    monkeypatch.setattr(worker, "measure_tight", rows)
    monkeypatch.setattr(overhead, "measure", ratios)


def written_by(folder: Path, *arguments: str) -> str:
    """The name of the one JSON file that a run writes."""
    before = set(folder.glob("*.json"))
    assert gpu.main([*OF_CPU, "--results", str(folder), *arguments]) == 0
    (path,) = set(folder.glob("*.json")) - before
    assert path.with_suffix(".txt").exists()
    return path.name


def test_runs_of_different_ways_workloads_and_parts_keep_their_files(tmp_path: Path) -> None:
    runs = {
        (): "cpu.json",
        ("--workloads", "gpt2"): "cpu-gpt2.json",
        ("--workloads", "gpt2", "--ways", "compiled"): "cpu-gpt2-compiled.json",
        ("--workloads", "gpt2", "--ways", "hand"): "cpu-gpt2-hand.json",
        ("--workloads", "gpt2", "--ways", "compiled,hand"): "cpu-gpt2-compiled-hand.json",
        ("--workloads", "gpt2", "--ways", ""): "cpu-gpt2-auto.json",
        ("--ways", "hand"): "cpu-hand.json",
        ("--parts", "overhead"): "cpu-overhead.json",
        ("--parts", "worker,tight"): "cpu-worker-tight.json",
    }
    for arguments, name in runs.items():
        assert written_by(tmp_path, *arguments) == name


def test_the_order_in_which_everything_is_named_does_not_matter(tmp_path: Path) -> None:
    arguments = ["--ways", "alone,hand,compiled", "--parts", "tight,overhead,worker"]
    assert written_by(tmp_path, *arguments) == "cpu.json"


def test_a_merge_writes_over_no_run_that_it_reads(tmp_path: Path) -> None:
    names = [
        written_by(tmp_path, "--workloads", "gpt2"),
        written_by(tmp_path, "--workloads", "gpt2", "--ways", "hand"),
    ]
    before = {name: (tmp_path / name).read_bytes() for name in names}
    arguments = ["--merge", *(str(tmp_path / name) for name in names)]
    assert written_by(tmp_path, *arguments) == "cpu-gpt2-merged.json"
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


def run_with(part: str, *rows: dict[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"results": [], "overhead": [], "tight": []}
    named = [{"workload": "gpt2", "way": "auto", **row} for row in rows]
    about = {"device": "cpu", "date": "2026-11-26", "seconds": 1.0, "left_out": []}
    return {**about, **empty, part: named}


def kept(part: str, *rows: dict[str, Any]) -> dict[str, Any]:
    """What is left of rows of one workload and way, each of a run of its own."""
    (row,) = merged([run_with(part, row) for row in rows])[part]
    return {name: value for name, value in row.items() if name not in ("workload", "way")}


@pytest.mark.parametrize(
    ("part", "figures"),
    [("results", {"speedup": 3.0}), ("tight", {"speedup": 0.7}), ("overhead", {"ratio": 1.01})],
)
def test_a_row_that_was_not_measured_replaces_no_measured_one(
    part: str, figures: dict[str, Any]
) -> None:
    assert kept(part, figures, NOT_RUN) == figures
    assert kept(part, NOT_RUN, figures) == figures
    assert kept(part, NOT_RUN, {"note": "no block was run"}) == {"note": "no block was run"}


@pytest.mark.parametrize("name", ["speedup", "ratio"])
def test_figures_of_a_program_that_ended_early_replace_no_complete_ones(name: str) -> None:
    complete, early = {name: 3.0, "note": None}, {name: 2.0, "note": "exit code 1: why"}
    assert kept("results", complete, early) == complete
    assert kept("results", early, complete) == complete
    assert kept("results", early, NOT_RUN) == early
    assert kept("results", {name: 1.0}, complete) == complete, "the later one counts"


COMPILED, EAGER = {"speedup": 4.9, "compiles": True}, {"speedup": 3.2, "compiles": False}


def test_a_search_that_compiled_is_kept_whatever_came_later() -> None:
    assert kept("results", COMPILED, EAGER) == COMPILED
    assert kept("results", EAGER, COMPILED) == COMPILED
    again = {**COMPILED, "speedup": 4.5}
    assert kept("results", COMPILED, again) == again, "the later one counts"
    assert kept("results", EAGER, {**EAGER, "speedup": 3.0})["speedup"] == 3.0


def test_a_search_from_before_it_said_so_is_taken_for_one_that_compiled() -> None:
    old = {"speedup": 4.9}
    assert kept("results", old, EAGER) == old
    assert kept("results", EAGER, old) == old


def test_a_whole_search_without_the_compiler_is_better_than_a_part_of_one_with_it() -> None:
    assert kept("results", {**COMPILED, "note": "exit code 1"}, EAGER) == EAGER
    assert kept("results", EAGER, {**COMPILED, "note": "exit code 1"}) == EAGER


def test_a_later_search_without_the_compiler_leaves_the_summary_as_it_was() -> None:
    full = run_with("results", *BOTH)
    later = run_with("results", *rows_of("gpt2", auto=speed(2.0), hand=EAGER))
    assert merged([full, later])["summary"] == merged([full])["summary"]
    assert shares(*merged([full, later])["results"]) == {worker.SHARE: pytest.approx(0.75)}


def rows_of(workload: str, **ways: Any) -> list[dict[str, Any]]:
    names = {"auto": "auto", "compiled": "auto, compiled", "hand": "by hand"}
    return [
        {"workload": workload, "way": names[way], **(row if isinstance(row, dict) else NOT_RUN)}
        for way, row in ways.items()
    ]


def speed(speedup: float, **more: Any) -> dict[str, Any]:
    return {"speedup": speedup, **more}


BOTH = rows_of("gpt2", auto=speed(2.0), compiled=speed(3.0), hand=speed(4.0, compiles=True))


def shares(*rows: dict[str, Any]) -> dict[str, float]:
    return {name: value for name, value in worker.summary(rows).items() if worker.SHARE in name}


def test_a_search_that_compiled_is_compared_with_the_better_of_both() -> None:
    assert shares(*BOTH) == {worker.SHARE: pytest.approx(0.75)}


@pytest.mark.parametrize(
    "rows",
    [
        rows_of("vit", auto=speed(3.6), compiled=None, hand=speed(4.9, compiles=True)),
        rows_of("vit", auto=speed(3.6), hand=speed(4.9, compiles=True)),
        rows_of("vit", auto=speed(3.6), hand=speed(4.9)),
        rows_of("vit", auto=speed(3.6), compiled=speed(4.0), hand=None),
        rows_of("vit", auto=None, compiled=speed(4.0), hand=speed(4.9, compiles=True)),
        rows_of("vit", auto=speed(3.6, note="exit code 1"), hand=speed(4.9, compiles=False)),
        rows_of("vit", auto=speed(3.6), hand=speed(4.9, compiles=False, note="exit code 1")),
    ],
)
def test_what_is_incomplete_or_of_another_kind_is_not_compared(rows: list[dict[str, Any]]) -> None:
    assert shares(*rows) == {}
    assert shares(*BOTH, *rows) == {f"{worker.SHARE} (gpt2)": pytest.approx(0.75)}


def test_a_search_without_compilation_is_compared_with_eager_code() -> None:
    rows = rows_of("vit", auto=speed(3.0), compiled=speed(9.0), hand=speed(4.0, compiles=False))
    assert shares(*rows) == {worker.SHARE: pytest.approx(0.75)}
    assert shares(*BOTH, *rows) == {worker.SHARE: pytest.approx(0.75)}
