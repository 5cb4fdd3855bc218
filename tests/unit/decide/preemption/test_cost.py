"""What an interruption loses, in GPU-seconds."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.quantities import GIB
from gpujob_api.report import CheckpointReport, Protection
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds
from tests.harness.builders import after, make_job, measured, running

# 0.1 s a step: 1,462 steps in 146 s, of which a checkpoint holds 1,400.
AGE_SECONDS = 146.2
CONFIGURATION = Configuration(restart_seconds=30.0)
SAVED = CheckpointReport(1400, 1000, 0.5)


def attempt(claim: str | None = "ckpt", **status: Any) -> GPUJob:
    found = measured(GIB, step=1462)
    fields: dict[str, Any] = {"checkpoint": SAVED, "measurement": found, **status}
    return running(make_job(claim=claim), **fields)


def cost(job: GPUJob, *, asked: bool = True) -> float:
    return interruption_gpu_seconds(job, CONFIGURATION, after(AGE_SECONDS), asked=asked)


def test_a_protected_job_loses_what_it_has_not_saved() -> None:
    assert cost(attempt()) == pytest.approx(30 + 0.5)
    assert cost(attempt(), asked=False) == pytest.approx(30 + 6.2)
    assert cost(attempt(protection=Protection.BEST_EFFORT)) == cost(attempt())


def test_a_job_without_a_claim_loses_its_whole_attempt() -> None:
    """Whatever it saved in its pod, and however fast it saves."""
    for asked in (True, False):
        assert cost(attempt(None), asked=asked) == pytest.approx(30 + AGE_SECONDS)


def test_a_run_that_is_not_resumable_loses_its_whole_attempt() -> None:
    lost = attempt(protection=Protection.FROM_BEGINNING)
    assert cost(lost) == pytest.approx(30 + AGE_SECONDS)


def test_every_gpu_counts() -> None:
    job = attempt(None)
    assert cost(replace(job, spec=replace(job.spec, gpus_per_worker=4))) == pytest.approx(
        4 * (30 + AGE_SECONDS)
    )
