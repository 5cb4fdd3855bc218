"""The plan for minutes with a GPU: what counts as measured, what is run next, and its page."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_day
from bench.gpu_day import PAGE, PLAN, Part
from tests.harness.repository import ROOT, tracked
from tests.harness.waiting import wait_until

KEEPS = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path("kept").write_text("some")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path("ready").touch()
time.sleep(60)
"""
GPU = {"device": "NVIDIA X", "driver": "580", "size": "full", "versions": {}}
LAW = next(part for part in PLAN if part.name == "law")
RESNET = next(part for part in PLAN if part.name == "resnet50")


def shared(date: str = "2026-12-01", **fields: Any) -> dict[str, Any]:
    part = {"date": date, "rows": [], **fields}
    return {"bench": "shared_gpu", **GPU, "parts": {"pairs": part}}


def table(*ways: str, date: str = "2026-12-01") -> dict[str, Any]:
    rows = [{"workload": "resnet50", "way": way, "speedup": 2.0} for way in ways]
    about = {**GPU, "device": "cuda", "device_name": "NVIDIA X", "date": date}
    return {"bench": "gpu", **about, "results": rows, "tight": []}


def test_a_part_is_measured_once_all_that_it_covers_has_figures() -> None:
    assert gpu_day.measured(LAW, [shared()]) == ("2026-12-01", "NVIDIA X")
    assert gpu_day.measured(RESNET, [table("auto")]) is None
    runs = [table("auto"), table("by hand", date="2026-12-02")]
    assert gpu_day.measured(RESNET, runs) == ("2026-12-01", "NVIDIA X")


@pytest.mark.parametrize(
    "result",
    [
        shared("2026-11-27"),
        shared(failure="ended early"),
        {**shared(), "size": "quick"},
        {**shared(), "device": "CPU cards", "driver": "-"},
        {**shared(), "bench": "gpu"},
        {},
    ],
    ids=["before the code changed", "failed", "quick", "CPU cards", "another program", "empty"],
)
def test_such_figures_do_not_count(result: dict[str, Any]) -> None:
    assert gpu_day.measured(LAW, [result]) is None


def test_figures_from_before_the_code_changed_are_named_and_measured_again() -> None:
    (row,) = gpu_day.plan_rows([LAW], [shared("2026-11-27")])
    assert row["measured"] == "2026-11-27, NVIDIA X, before the code changed"
    (row,) = gpu_day.plan_rows([LAW], [shared("2026-12-01")])
    assert row["measured"] == "2026-12-01, NVIDIA X"
    (row,) = gpu_day.plan_rows([LAW], [])
    assert row["measured"] == gpu_day.PREPARED


def test_the_page_is_what_the_plan_and_the_results_say() -> None:
    results = [json.loads(path.read_text()) for path in tracked("bench/results/*.json")]
    assert PAGE.read_text() == gpu_day.page(PLAN, results), "python -m bench.gpu_day --write"


def test_every_part_has_a_name_of_its_own_and_something_to_be_known_by() -> None:
    assert len({part.name for part in PLAN}) == len(PLAN)
    assert all(part.covers and part.seconds > 0 for part in PLAN)


Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs parts whose programs are small scripts."""
    monkeypatch.setattr(gpu_day, "ROOT", tmp_path)
    monkeypatch.setattr(gpu_day, "GRACE_SECONDS", 5.0)

    def start(minutes: float, *planned: tuple[int, str]) -> list[dict[str, Any]]:
        parts: list[Part] = []
        for number, (seconds, script) in enumerate(planned):
            (tmp_path / f"program{number}.py").write_text(script)
            name = f"part{number}"
            parts.append(Part(name, "", seconds, f"program{number}", (), (name,)))
        options = argparse.Namespace(
            minutes=minutes, quick=False, device="cpu", results=tmp_path / "results"
        )
        return gpu_day.run_parts(parts, options, None, gpu_day.time.monotonic())

    return start


def outcomes(ran: list[dict[str, Any]]) -> list[str]:
    return [one["outcome"] for one in ran]


def test_parts_run_in_order_and_those_without_time_are_named(run: Run) -> None:
    ran = run(1.0, (10, "pass"), (100, "pass"), (20, "raise SystemExit(3)"))
    assert outcomes(ran) == [gpu_day.MEASURED, gpu_day.LEFT_OUT, "ended with 3: see its last line"]


def test_a_part_that_takes_too_long_is_asked_to_end_and_keeps_what_it_has(
    run: Run, tmp_path: Path
) -> None:
    (outcome, later) = outcomes(run(1.0, (2, KEEPS), (1, "pass")))
    assert outcome.startswith("stopped after 3 s: what it kept stays")
    assert later == "measured"
    assert (tmp_path / "kept").read_text() == "some"


DAY = """
import sys
from pathlib import Path
from bench import gpu_day
gpu_day.ROOT = Path(sys.argv[1])
part = gpu_day.Part("only", "", 30, "program0", (), ("only",))
gpu_day.PLAN = (part,)
gpu_day.main(["--parts", "only", "--minutes", "1", "--results", sys.argv[1]])
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_whatever_ends_the_day_its_program_keeps_what_it_has(
    number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "program0.py").write_text(KEEPS)
    day = subprocess.Popen([sys.executable, "-c", DAY, str(tmp_path)], cwd=ROOT)
    wait_until((tmp_path / "ready").exists)
    day.send_signal(number)
    day.wait(30)
    wait_until((tmp_path / "kept").exists)


def test_runs_on_one_device_are_merged_and_others_are_not(tmp_path: Path) -> None:
    newer, older = table("auto", date="2026-12-02"), table("by hand", date="2026-12-01")
    other = {**table("auto"), "driver": "other"}
    for name, one in {"a": newer, "b": older, "c": other, "d-merged": newer}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    assert gpu_day.alike_runs(tmp_path) == [[tmp_path / "b.json", tmp_path / "a.json"]]


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu_day.main(["--parts", "none"])
    assert "argument --parts: 'none' is none of sharing, law" in capsys.readouterr().err
