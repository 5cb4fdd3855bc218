"""Each run of `bench.gpu` keeps its files, and a merge of them keeps what was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import gpu, overhead, worker
from bench.speed.merged import merged
from bench.speed.ways import WORKLOADS

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
        (): "cpu-quick.json",
        ("--workloads", "gpt2"): "cpu-quick-gpt2.json",
        ("--workloads", "gpt2", "--ways", "compiled"): "cpu-quick-gpt2-compiled.json",
        ("--workloads", "gpt2", "--ways", "hand"): "cpu-quick-gpt2-hand.json",
        ("--workloads", "gpt2", "--ways", "compiled,hand"): "cpu-quick-gpt2-compiled-hand.json",
        ("--workloads", "gpt2", "--ways", ""): "cpu-quick-gpt2-auto.json",
        ("--ways", "hand"): "cpu-quick-hand.json",
        ("--parts", "overhead"): "cpu-quick-overhead.json",
        ("--parts", "worker,tight"): "cpu-quick-worker-tight.json",
    }
    for arguments, name in runs.items():
        assert written_by(tmp_path, *arguments) == name


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--ways", "alone,hand,compiled", "--parts", "tight,overhead,worker"], "cpu-quick.json"),
        (["--workloads", "vit,gpt2"], "cpu-quick-gpt2-vit.json"),
        (["--workloads", "gpt2,vit"], "cpu-quick-gpt2-vit.json"),
        (["--workloads", "gpt2,vit,gpt2"], "cpu-quick-gpt2-vit.json"),
        (["--parts", "tight,worker"], "cpu-quick-worker-tight.json"),
        (["--workloads", "gpt2", "--ways", "hand,compiled"], "cpu-quick-gpt2-compiled-hand.json"),
    ],
)
def test_the_order_in_which_it_is_named_does_not_matter(
    arguments: list[str], name: str, tmp_path: Path
) -> None:
    assert written_by(tmp_path, *arguments) == name


def test_a_workload_that_is_named_twice_is_measured_once(tmp_path: Path) -> None:
    written_by(tmp_path, "--workloads", "vit,gpt2,vit")
    (path,) = tmp_path.glob("*.json")
    rows = json.loads(path.read_text())["results"]
    assert [row["workload"] for row in rows] == ["vit", "gpt2"], "in the order that was asked for"


@pytest.mark.parametrize(
    ("option", "text"),
    [("--workloads", "gpt2,none"), ("--workloads", ""), ("--parts", "none"), ("--parts", ",")],
)
def test_an_unknown_name_or_none_at_all_is_refused(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gpu.main([*OF_CPU, "--results", str(tmp_path), option, text])
    unknown = "none" if "none" in text else text
    assert f"argument {option}: {unknown!r} is none of " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_quick_run_writes_over_no_full_one(tmp_path: Path) -> None:
    """Both have the device's name alone otherwise."""
    arguments = ["--results", str(tmp_path), "--parts", "worker,overhead,tight"]
    assert gpu.main(["--device", "cpu", "--ways", "", *arguments]) == 0
    full = (tmp_path / "cpu-auto.json").read_bytes()
    assert written_by(tmp_path, "--ways", "") == "cpu-quick-auto.json"
    assert (tmp_path / "cpu-auto.json").read_bytes() == full


def test_a_merge_writes_over_no_run_that_it_reads(tmp_path: Path) -> None:
    names = [
        written_by(tmp_path, "--workloads", "gpt2"),
        written_by(tmp_path, "--workloads", "gpt2", "--ways", "hand"),
    ]
    before = {name: (tmp_path / name).read_bytes() for name in names}
    arguments = ["--merge", *(str(tmp_path / name) for name in names)]
    assert written_by(tmp_path, *arguments) == "cpu-quick-gpt2-auto-merged.json"
    assert {name: (tmp_path / name).read_bytes() for name in names} == before


EVERY_WAY = ("auto", "auto, compiled", "by hand", "only precision")


def merged_name(folder: Path, **parts: list[dict[str, Any]]) -> str:
    """The name of the merge of one run with these rows."""
    run = {**run_with("results"), "size": "small", "versions": {}, "machine": {"processor": "one"}}
    path = folder / "run.json"
    path.write_text(json.dumps({**run, **parts}))
    results = folder / "results"
    assert gpu.main(["--merge", str(path), "--results", str(results)]) == 0
    (written,) = results.glob("*.json")
    return written.name


def rows_in(
    workloads: Sequence[str] = WORKLOADS, ways: Sequence[str] = EVERY_WAY
) -> list[dict[str, Any]]:
    return [{"workload": name, "way": way, "speedup": 2.0} for name in workloads for way in ways]


RATIOS = [{"workload": "gpt2", "way": "off", "ratio": 1.0}]


def test_the_merge_of_everything_needs_no_further_name(tmp_path: Path) -> None:
    found = merged_name(tmp_path, results=rows_in(), overhead=RATIOS, tight=rows_in())
    assert found == "cpu-merged.json"


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ({"overhead": RATIOS}, "cpu-overhead-merged.json"),
        ({"tight": rows_in()}, "cpu-tight-merged.json"),
        ({"tight": rows_in(["vit", "gpt2"])}, "cpu-gpt2-vit-tight-merged.json"),
        ({"results": rows_in(), "tight": rows_in()}, "cpu-worker-tight-merged.json"),
        ({"results": rows_in(["vit", "gpt2"])}, "cpu-gpt2-vit-worker-merged.json"),
        (
            {"results": rows_in(ways=["auto", "by hand"]), "overhead": RATIOS, "tight": rows_in()},
            "cpu-hand-merged.json",
        ),
    ],
)
def test_a_merge_without_some_of_it_writes_over_no_other(
    parts: dict[str, list[dict[str, Any]]], name: str, tmp_path: Path
) -> None:
    assert merged_name(tmp_path, **parts) == name


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


def test_a_run_of_limited_memory_alone_prints_its_table(tmp_path: Path) -> None:
    written_by(tmp_path, "--parts", "tight", "--workloads", "vit")
    text = (tmp_path / "cpu-quick-vit-tight.txt").read_text()
    assert "Memory limited to 60 %" in text
    assert "vit" in text
