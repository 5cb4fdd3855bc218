"""Processes that train together stop at the same step and end with the weights of a whole run."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.gangs import committed, digests_in, manifest, start_gang
from tests.harness.unmodified_scripts import (
    ACCELERATE_GROUP,
    HUGGING_FACE_GROUP,
    LIGHTNING_GROUP,
    REPLICAS,
    SHARDS,
)
from tests.harness.worker_process import WorkerRun

pytestmark = pytest.mark.timeout(900)


@pytest.mark.promise("I6")
def test_a_stop_of_one_stops_all_at_the_same_step(tmp_path: Path) -> None:
    whole = start_gang(tmp_path / "whole", 1, REPLICAS, 0, 1, 0, 0).results()
    asked = random.Random(3).randrange(2, 6)
    stopped = start_gang(tmp_path / "stopped", 1, REPLICAS, 0, 1, asked, 1)
    assert stopped.wait() == [143, 143], stopped.errors
    steps = [report["checkpoint"]["step"] for report in stopped.reports]
    assert steps == [asked + 1] * 2
    assert committed(tmp_path / "stopped") == [asked + 1]
    assert list(manifest(tmp_path / "stopped", asked + 1)["ranks"]) == ["rank-0", "rank-1"]
    end = start_gang(tmp_path / "stopped", 2, REPLICAS, 0, 1, 0, 0)
    assert end.results() == whole
    assert [report["resumedFromStep"] for report in end.reports] == steps
    assert all("2 steps compared" in end.said(rank) for rank in range(2))


def test_all_begin_anew_if_one_is_another_run(tmp_path: Path) -> None:
    whole = start_gang(tmp_path / "whole", 1, REPLICAS, 0, 1, 0, 0).results()
    folder = tmp_path / "stopped"
    assert start_gang(folder, 1, REPLICAS, 0, 1, 3, 1).wait() == [143, 143]
    known = folder / "checkpoints" / "continuation-1.json"
    facts = json.loads(known.read_text())
    facts["next"][1]["loss"] += 1.0
    known.write_text(json.dumps(facts))
    other = start_gang(folder, 2, REPLICAS, 0, 1, 0, 0)
    assert other.wait() == [144, 144], other.errors
    reasons = [report["resumeRefused"]["reason"] for report in other.reports]
    assert "the loss of step 2 after the stop" in reasons[0]
    assert reasons[0] == reasons[1]
    assert start_gang(folder, 3, REPLICAS, 0, 1, 0, 0).results() == whole


def lightning(folder: Path, attempt: int, stop: int) -> tuple[int, list[str], str]:
    """Its first process starts the other one itself: exit code, digests of both, what they said."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(LIGHTNING_GROUP)
    own = [sys.executable, "-m", "gpujob_worker", "--explain", "--tuning-seconds", "1", "--"]
    done = subprocess.run(
        [*own, "python", "train.py", "0", "1", str(stop)],
        cwd=folder,
        env={
            **os.environ,
            "GPUJOB_SETTINGS": '{"mode": "Recommend"}',
            "GPUJOB_CHECKPOINT_DIR": str(folder / "checkpoints"),
            "GPUJOB_ATTEMPT": str(attempt),
            "GPUJOB_GRACE_SECONDS": "200",
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=800,
    )
    return done.returncode, digests_in(done.stdout), done.stderr


@pytest.mark.slow
@pytest.mark.trainers
def test_replicas_that_lightning_starts_resume_bit_for_bit(tmp_path: Path) -> None:
    code, whole, errors = lightning(tmp_path / "whole", 1, 0)
    assert (code, len(whole)) == (0, 2), errors
    code, _, errors = lightning(tmp_path / "stopped", 1, 8)
    assert code == 143, errors
    assert committed(tmp_path / "stopped") == [9]
    code, end, errors = lightning(tmp_path / "stopped", 2, 0)
    assert (code, end) == (0, whole), errors
    assert errors.count("resume lightning trainer: from step 9") == 2


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.trainers
def test_replicas_of_a_trainer_resume_bit_for_bit(tmp_path: Path) -> None:
    source, workers = HUGGING_FACE_GROUP, 0
    whole = start_gang(tmp_path / "whole", 1, source, workers, 1, 0, 0).results()
    stopped = start_gang(tmp_path / "stopped", 1, source, workers, 1, 8, 1)
    assert stopped.wait() == [143, 143], stopped.errors
    assert committed(tmp_path / "stopped")[-1] == 9
    end = start_gang(tmp_path / "stopped", 2, source, workers, 1, 0, 0)
    assert end.results() == whole
    assert [report["resumedFromStep"] for report in end.reports] == [9, 9]


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.trainers
@pytest.mark.parametrize("workers", [0, 2])
def test_replicas_of_accelerate_resume_bit_for_bit(tmp_path: Path, workers: int) -> None:
    """In the second epoch: the generator of its order is in a sampler inside another one."""
    source = ACCELERATE_GROUP
    whole = start_gang(tmp_path / "whole", 1, source, workers, 1, 0, 0).results()
    stopped = start_gang(tmp_path / "stopped", 1, source, workers, 1, 8, 1)
    assert stopped.wait() == [143, 143], stopped.errors
    assert committed(tmp_path / "stopped") == [9]
    end = start_gang(tmp_path / "stopped", 2, source, workers, 1, 0, 0)
    assert end.results() == whole
    assert [report["resumedFromStep"] for report in end.reports] == [9, 9]


@pytest.mark.promise("I6")
def test_shards_stop_at_the_same_step_and_resume_bit_for_bit(tmp_path: Path) -> None:
    """FSDP2: each process saves its own part of weights and optimizer, of one manifest."""
    whole = start_gang(tmp_path / "whole", 1, SHARDS, 0, 1, 0, 0, mode="Off").results()
    assert whole[0] != whole[1], "each process has a part of its own"
    stopped = start_gang(tmp_path / "stopped", 1, SHARDS, 0, 1, 8, 1)
    assert stopped.wait() == [143, 143], stopped.errors
    assert committed(tmp_path / "stopped") == [9]
    assert list(manifest(tmp_path / "stopped", 9)["ranks"]) == ["rank-0", "rank-1"]
    end = start_gang(tmp_path / "stopped", 2, SHARDS, 0, 1, 0, 0)
    assert end.results() == whole
    assert [report["resumedFromStep"] for report in end.reports] == [9, 9]


def step_of(run: WorkerRun) -> int:
    lines = run.output.splitlines() if (run.folder / "stdout").exists() else []
    steps = [line.split()[1] for line in lines if line.startswith("step ")]
    return int(steps[-1]) if steps and steps[-1].isdigit() else 0


@pytest.mark.promise("I6")
@pytest.mark.slow
@pytest.mark.parametrize("source", [REPLICAS, SHARDS], ids=["replicas", "shards"])
def test_sigkill_of_all_at_random_moments(tmp_path: Path, source: str) -> None:
    """First one of them and then the rest, as by a node that is lost, in the middle of writes."""
    whole = start_gang(tmp_path / "whole", 1, source, 0, 1, 0, 0).results()
    folder, rng = tmp_path / "killed", random.Random(7)
    durable = 0
    for attempt in (1, 2):
        gang = start_gang(folder, attempt, source, 0, 1, 0, 0, checkpointIntervalSeconds=0)
        first, second = rng.sample(gang.runs, 2)
        until = durable + rng.randint(4, 6)
        first.wait_until(lambda run=first, until=until: step_of(run) >= until)
        first.send(signal.SIGKILL)
        second.send(signal.SIGKILL)
        assert gang.wait() == [-signal.SIGKILL] * 2, gang.errors
        steps = committed(folder)
        assert steps[-1] > durable, "nothing was committed although every step is due"
        durable = steps[-1]
        assert list(manifest(folder, durable)["ranks"]) == ["rank-0", "rank-1"]
    end = start_gang(folder, 3, source, 0, 1, 0, 0)
    assert end.results() == whole
    assert [report["resumedFromStep"] for report in end.reports] == [durable] * 2


@pytest.mark.slow
def test_four_replicas_stop_at_the_same_step(tmp_path: Path) -> None:
    """Of one job that comes back as four again, and is refused as two."""
    stopped = start_gang(tmp_path, 1, REPLICAS, 0, 1, 2, 3, size=4)
    assert stopped.wait() == [143] * 4, stopped.errors
    assert committed(tmp_path) == [3]
    fewer = start_gang(tmp_path, 2, REPLICAS, 0, 1, 0, 0, size=2)
    assert fewer.wait() == [1, 1], fewer.errors
    text = "step-3 was written by 4 processes and 2 train now: order and random numbers are"
    for rank in range(2):
        assert text in fewer.reports[rank]["failure"]["message"]
    end = start_gang(tmp_path, 3, REPLICAS, 0, 1, 0, 0, size=4)
    assert len(set(end.results())) == 1
    assert [report["resumedFromStep"] for report in end.reports] == [3] * 4
