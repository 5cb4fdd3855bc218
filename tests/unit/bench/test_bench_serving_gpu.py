"""The programs of services on one device: their commands, and what is kept of each."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_day, serving_gpu
from bench.batching.__main__ import main as batching
from bench.serving_gpu import BACKENDS, BATCHING, command, main, run

FIGURES = {"results": [{"rate": 5}], "goals": ["met"], "machine": {}}
PART = next(part for part in gpu_day.PLAN if part.name == "serving")


def printing(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-c", f"print({text!r}); raise SystemExit({code})"]


def test_each_part_is_run_on_the_device() -> None:
    assert command(BATCHING, "cuda", quick=False)[1:] == [
        *("-m", "bench.batching", "--device", "cuda", "--parts", "eager"),
    ]
    assert command(BATCHING, "cpu", quick=True)[-1] == "--quick"
    assert command(BACKENDS, "cpu", quick=True)[1:] == [
        *(
            "-m",
            "bench.backends",
            "--device",
            "cpu",
            "--models",
            "encoder",
            "--seconds",
            "60",
            "--choice-only",
        ),
    ]


def test_the_figures_are_those_of_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    found = run(printing(f"a table\n{json.dumps(FIGURES)}"), 60.0)
    assert found == {"results": [{"rate": 5}], "goals": ["met"]}
    assert capsys.readouterr().out == "a table\n"


@pytest.mark.parametrize(
    ("text", "code", "failure"),
    [
        ("", 3, "ended with 3 and without figures"),
        ("no JSON", 0, "ended with 0 and without figures"),
        ("[]", 0, "ended with 0 and without figures"),
        ('{"results": []}', 0, "ended with 0 and without figures"),
        ('{"results": [], "goals": []}', 0, "measured nothing"),
        (json.dumps(FIGURES), 4, "ended with 4"),
    ],
)
def test_a_program_without_figures_is_a_failure(text: str, code: int, failure: str) -> None:
    assert run(printing(text, code), 60.0)["failure"] == failure


def test_a_program_that_takes_too_long_is_asked_to_end(tmp_path: Path) -> None:
    script = (
        "import pathlib, signal, sys, time\n"
        "def stop(*_):\n"
        f"    pathlib.Path({str(tmp_path / 'asked')!r}).touch()\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "time.sleep(100)\n"
    )
    found = run([sys.executable, "-c", script], 3.0)
    assert found == {"failure": "took longer than 3 s"}
    assert (tmp_path / "asked").exists() or not (tmp_path / "ready").exists()


def test_each_part_is_kept_and_known_to_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    def fake(words: Sequence[str], seconds_max: float) -> dict[str, Any]:
        ran.append(words[2])
        return {"results": [{}], "goals": []}

    def ignore(*_: object) -> None:
        pass

    monkeypatch.setattr(serving_gpu, "run", fake)
    monkeypatch.setattr("signal.signal", ignore)
    words = ["--device", "cpu", "--quick", "--results", str(tmp_path)]
    assert main([*words, "--parts", BATCHING]) == 0
    assert main([*words, "--parts", BACKENDS]) == 0
    assert ran == ["bench.batching", "bench.backends"]
    (path,) = tmp_path.glob("*-serving-quick.json")
    result = json.loads(path.read_text())
    assert set(result["parts"]) == set(PART.covers)
    # Figures of a CPU or of a quick run do not count.
    assert gpu_day.measured(PART, [result]) is None
    on_gpu = {**result, "device": "NVIDIA X", "device_name": "NVIDIA X"}
    on_gpu |= {"driver": "580", "size": "full"}
    date = result["parts"][BATCHING]["date"]
    assert gpu_day.measured(PART, [on_gpu]) == (date, "NVIDIA X")


def test_unknown_parts_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--parts", "none"])
    assert "argument --parts: 'none' is none of batching, backends" in capsys.readouterr().err


def test_the_programs_know_the_device(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        batching(["--device", "tpu"])
    assert "argument --device: invalid choice: 'tpu'" in capsys.readouterr().err
