"""Whose error it is that a job ran out of GPU memory (I15)."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import Counters, GPUJob, GPUJobStatus, JobPhase, StopReason
from gpujob_api.quantities import GIB
from gpujob_api.report import Failure, FailureClass, Report
from gpujob_operator.decide.lifecycle.retry import FRUITLESS_INTERRUPTIONS_MAX
from gpujob_operator.decide.measurement.reservation import wanted_reservation
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES, EXTERNAL_NOISE_BYTES
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    measured,
    reserve,
    running,
    statuses,
    with_status,
)

HONEST = running(make_job("honest"), held=reserve(8 * GIB), measurement=measured(7 * GIB))
LEAK = running(make_job("leak"), held=reserve(4 * GIB))
ENDED: dict[str, Any] = {
    "exit_code": 1,
    "termination": make_report(step=30, failure=FailureClass.OUT_OF_MEMORY),
}


def status_of(
    job: GPUJob,
    leaked_bytes: int,
    own_bytes: int = 0,
    *,
    at_seconds: float = 20,
    termination: Report = ENDED["termination"],
    configuration: Configuration | None = None,
    **gpu: Any,
) -> GPUJobStatus:
    """After the job ran out of memory beside one that uses so much."""
    leak = make_pod(LEAK)
    pod = make_pod(job, exit_code=1, termination=termination)
    ours = [(leak.uid, leaked_bytes), (pod.uid, own_bytes)]
    snapshot = make_snapshot(
        job,
        LEAK,
        pods=[pod, leak],
        gpus=[make_gpu(ours=[one for one in ours if one[1]], **gpu)],
        configuration=configuration or Configuration(),
    )
    return statuses(plan(snapshot, after(at_seconds)).items)["honest"]


def test_a_job_whose_memory_another_one_took_is_not_to_blame() -> None:
    found = status_of(HONEST, 17 * GIB)
    assert found.phase is JobPhase.PENDING
    assert (found.counters.out_of_memory, found.counters.interruptions) == (0, 1)
    assert found.failure is not None
    assert "13 GiB used above that" in found.failure.message
    assert "not counted, because others took its memory" in found.summary.reason
    again = replace(HONEST, status=found)
    assert wanted_reservation(again, None, Configuration()) is None, "it begins on a whole GPU"


def test_nor_is_one_whose_memory_a_process_of_nobody_took() -> None:
    found = status_of(HONEST, 0, unmanaged=20 * GIB)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (0, 1)


@pytest.mark.parametrize("leaked_bytes", [0, 4 * GIB, 12 * GIB, 12 * GIB + EXTERNAL_NOISE_BYTES])
def test_a_job_that_had_what_it_was_given_is_to_blame_itself(leaked_bytes: int) -> None:
    """8 and 12 of 24 GiB: there were four left."""
    found = status_of(HONEST, leaked_bytes)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


@pytest.mark.parametrize("own_bytes", [0, 12 * GIB])
def test_what_the_last_reading_still_shows_of_its_own_pod_is_no_excuse(own_bytes: int) -> None:
    found = status_of(HONEST, 12 * GIB, own_bytes)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


def test_a_job_that_took_more_than_its_own_is_to_blame_itself() -> None:
    greedy = with_status(HONEST, measurement=measured(8 * GIB + CONTEXT_BYTES + 1))
    found = status_of(greedy, 17 * GIB)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


@pytest.mark.parametrize(("above_bytes", "is_excused"), [(0, 1), (1, 0)])
def test_the_contexts_of_all_its_processes_are_its_own(above_bytes: int, is_excused: int) -> None:
    seen = measured(8 * GIB + 3 * CONTEXT_BYTES + above_bytes)
    several = replace(seen, context_bytes=3 * CONTEXT_BYTES)
    found = status_of(with_status(HONEST, measurement=several), 17 * GIB)
    assert (found.counters.interruptions, found.counters.out_of_memory) == (
        is_excused,
        1 - is_excused,
    )


def test_what_a_worker_says_that_it_needs_counts() -> None:
    failure = Failure(FailureClass.OUT_OF_MEMORY, "CUDA out of memory", needed_bytes=90 * GIB)
    words = replace(make_report(step=30), failure=failure)
    found = status_of(HONEST, 17 * GIB, termination=words)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


def test_a_reading_that_is_old_excuses_nobody() -> None:
    found = status_of(HONEST, 17 * GIB, at_seconds=Configuration().telemetry_stale_seconds + 1)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


def test_where_a_device_plugin_picks_the_gpu_nobody_is_excused() -> None:
    picked = Configuration(device_access=DeviceAccess.DEVICE_PLUGIN)
    found = status_of(HONEST, 17 * GIB, configuration=picked)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


def test_of_a_gang_the_gpu_of_the_worker_counts_that_ran_out() -> None:
    places = ("n0", ("GPU-0",)), ("n0", ("GPU-1",))
    gang = running(make_job("honest", workers=2), *places, held=reserve(8 * GIB))
    leak, alone = make_pod(LEAK), {"exit_code": 143}
    gpus = [make_gpu(ours=[(leak.uid, 17 * GIB)]), make_gpu("GPU-1")]

    def charged(first: dict[str, Any], second: dict[str, Any]) -> int:
        pods = [make_pod(gang, 0, **first), make_pod(gang, 1, **second), leak]
        snapshot = make_snapshot(gang, LEAK, pods=pods, gpus=gpus)
        return statuses(plan(snapshot, after(20)).items)["honest"].counters.out_of_memory

    assert charged(ENDED, alone) == 0
    assert charged(alone, ENDED) == 1


def test_a_stop_for_its_own_memory_stays_its_own_error() -> None:
    stop = StopReason("MemoryCapExceeded", "uses 9 GiB", after(90))
    stopping = with_status(HONEST, phase=JobPhase.STOPPING, stop=stop)
    found = status_of(stopping, 17 * GIB)
    assert (found.counters.out_of_memory, found.counters.interruptions) == (1, 0)


def test_another_failure_beside_a_leak_is_the_jobs() -> None:
    pod = make_pod(HONEST, exit_code=1, termination_text="ValueError")
    leak = make_pod(LEAK)
    gpu = make_gpu(ours=[(leak.uid, 17 * GIB)])
    snapshot = make_snapshot(HONEST, LEAK, pods=[pod, leak], gpus=[gpu])
    found = statuses(plan(snapshot, after(20)).items)["honest"]
    assert (found.counters.errors, found.counters.interruptions) == (1, 0)


def test_that_others_take_its_memory_again_and_again_has_an_end() -> None:
    tired = with_status(HONEST, counters=Counters(fruitless=FRUITLESS_INTERRUPTIONS_MAX))
    found = status_of(tired, 17 * GIB)
    assert found.phase is JobPhase.FAILED
    assert any("in a row without progress" in one.message for one in found.conditions)
