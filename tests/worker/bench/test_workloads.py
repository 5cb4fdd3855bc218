"""The benchmark's training scripts: they run by themselves, and mode Off changes not a digit."""

from pathlib import Path

import pytest

from bench.speed.results import losses
from bench.speed.ways import WORKLOADS
from tests.harness.worker_process import run_alone, run_worker

FOLDER = Path(__file__).resolve().parents[3] / "bench" / "workloads"
STEPS = 12


def command(name: str, steps: int = STEPS) -> list[str]:
    return [str(FOLDER / f"{name}.py"), "--size", "tiny", "--steps", str(steps)]


def test_there_are_five_and_each_is_one_of_the_benchmark() -> None:
    found = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert found == set(WORKLOADS)
    assert len(found) == 5


@pytest.mark.parametrize("name", WORKLOADS)
def test_mode_off_prints_what_the_script_alone_prints(name: str, tmp_path: Path) -> None:
    code, alone = run_alone(tmp_path / "alone", command(name))
    assert (code, alone.errors) == (0, "")
    assert len(losses(alone.output)) == STEPS
    code, under = run_worker(
        tmp_path / "under", command(name), settings={"mode": "Off"}, options=()
    )
    assert (code, under.errors) == (0, "")
    assert under.output == alone.output


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKLOADS)
def test_learning_stays_what_it_is_when_settings_are_injected(name: str, tmp_path: Path) -> None:
    # At its own rate the tiny ResNet goes up and down so much that a rounding shows in tenths.
    given = [*command(name, 24), *(["--lr", "0.01"] if name == "resnet50" else [])]
    _, alone = run_alone(tmp_path / "alone", given)
    code, under = run_worker(tmp_path / "under", given, options=("--tuning-seconds", "2"))
    assert code == 0, under.errors
    # A step in bfloat16 rounds differently, and another kernel adds in another order.
    expected = pytest.approx(losses(alone.output), rel=0.1, abs=0.1)
    assert losses(under.output) == expected
    assert under.report["tuned"] is not None
