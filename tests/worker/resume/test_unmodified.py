"""Scripts that know nothing of checkpoints end, stopped and begun again, with the same weights."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.harness.unmodified_scripts import ACCELERATE, HUGGING_FACE, LIGHTNING, PLAIN
from tests.harness.worker_process import WorkerRun, run_worker

pytestmark = pytest.mark.timeout(400)
EPOCH_STEPS = 12
STEPS = 3 * EPOCH_STEPS
OPTIONS = ("--explain", "--tuning-seconds", "1")


def run(folder: Path, attempt: int, source: str, *arguments: int, **more: Any) -> WorkerRun:
    folder.mkdir(exist_ok=True)
    script = folder / "train.py"
    script.write_text(source.replace("OUT", str(folder / "out")).replace("JIT", "False"))
    _, done = run_worker(
        folder / f"attempt-{attempt}",
        ["python", str(script), *map(str, arguments)],
        settings={"mode": "Recommend", **more},
        options=OPTIONS,
        environment={
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
        },
    )
    return done


def weights(done: WorkerRun) -> str:
    assert done.process.exitcode == 0, done.errors
    return done.output.splitlines()[-1]


def said(done: WorkerRun) -> str:
    return "\n".join(done.report["explain"])


def resumes_exactly(folder: Path, source: str, workers: int, accumulated: int) -> WorkerRun:
    """Stopped in the middle of an epoch and after the last step of another; returns the end."""
    whole = run(folder / "whole", 1, source, workers, accumulated, 0)
    rng = random.Random(f"{workers} {len(source)}")
    stops = (rng.randrange(2, EPOCH_STEPS), 2 * EPOCH_STEPS)
    for attempt, stop in enumerate(stops, start=1):
        stopped = run(folder / "stopped", attempt, source, workers, accumulated, stop)
        assert stopped.process.exitcode == 143, stopped.errors
        assert stopped.report["checkpoint"]["step"] == stop
        assert stopped.report["phase"] == "draining"
    end = run(folder / "stopped", 3, source, workers, accumulated, 0)
    assert weights(end) == weights(whole)
    assert end.report["resumedFromStep"] == stops[-1]
    assert end.report["step"] == STEPS
    return end


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 2)])
@pytest.mark.parametrize("source", [HUGGING_FACE, LIGHTNING], ids=["huggingface", "lightning"])
def test_trainers_resume_bit_for_bit(
    tmp_path: Path, source: str, workers: int, accumulated: int
) -> None:
    resumes_exactly(tmp_path, source, workers, accumulated)


@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_of_accelerate_resumes_bit_for_bit(tmp_path: Path, workers: int) -> None:
    stopped_after_own_counting(tmp_path, ACCELERATE, workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loop_resumes_bit_for_bit(tmp_path: Path, workers: int) -> None:
    end = stopped_after_own_counting(tmp_path, PLAIN, workers)
    text = said(end)
    assert "best effort: 3 objects, order and random numbers are put back" in text
    assert "what the script counts itself begins anew" in text
    assert "resume files out-0.pt stays as it is until the place is reached" in text


def stopped_after_own_counting(folder: Path, source: str, workers: int) -> WorkerRun:
    """The script counts its steps anew: the second stop comes so many steps after the resume."""
    whole = run(folder / "whole", 1, source, workers, 1, 0)
    first = random.Random(workers).randrange(2, EPOCH_STEPS)
    stopped = run(folder / "stopped", 1, source, workers, 1, first)
    assert stopped.process.exitcode == 143, stopped.errors
    assert stopped.report["checkpoint"]["step"] == first
    # To the last step of the second epoch.
    second = run(folder / "stopped", 2, source, workers, 1, 2 * EPOCH_STEPS - first)
    assert second.process.exitcode == 143, second.errors
    assert second.report["checkpoint"]["step"] == 2 * EPOCH_STEPS
    assert "resume check the first loss is" in said(second)
    assert "the same" in said(second)
    end = run(folder / "stopped", 3, source, workers, 1, 0)
    assert weights(end) == weights(whole)
    assert end.report["step"] == STEPS
    return end
