"""Why a running attempt has to leave its GPUs, and why not."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource, StopReason
from gpujob_api.gpunode import UNREADABLE
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.availability import BlockedReason, GPUBlocked
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.capacity.sites import Sites, sites_of
from gpujob_operator.decide.lifecycle import faults
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, judge
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES
from gpujob_operator.decide.model.snapshot import ProgramFault, Snapshot, Taint
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    reserve,
    running,
    with_status,
)
from tests.harness.capacity import build_capacity

ACCESS = DeviceAccess.ENVIRONMENT
GRACE_SECONDS = Configuration().termination_grace_seconds
A = running(make_job("a"), held=reserve(10 * GIB))
B = running(make_job("b"), held=reserve(12 * GIB))


def capacity(snapshot: Snapshot, seconds: float = 0.0) -> Capacity:
    return build_capacity(snapshot, after(seconds), {})


def sites(job: GPUJob, snapshot: Snapshot, seconds: float = 0.0) -> Sites:
    return sites_of(job.status.placement, capacity(snapshot, seconds))


def found(job: GPUJob, *jobs: GPUJob, seconds: float = 0.0, **snapshot: Any) -> StopReason | None:
    seen = make_snapshot(*(jobs or (job,)), **snapshot)
    return faults.of(
        job, sites(job, seen, seconds), after(seconds), after(seconds + GRACE_SECONDS), ACCESS
    )


def reclaimed(value: str) -> dict[str, Any]:
    return {"nodes": [make_node(taints=(Taint(TAINT_RECLAIM, "NoSchedule", value),))]}


def test_no_trouble() -> None:
    assert found(A) is None
    assert found(make_job()) is None
    assert found(A, A, B) is None


@pytest.mark.promise("I13")
def test_a_reclaimed_node_is_left_before_its_deadline() -> None:
    """I13: the grace ends when the node does, and not before a second from now."""
    noticed = found(A, **reclaimed(str(int(after(12).timestamp()))))
    assert noticed == StopReason(
        "NodeReclaimed",
        "node n0 is being reclaimed in 12 s; the workers have 12 s to end",
        after(12),
    )
    early = found(A, **reclaimed(str(int(after(60).timestamp()))))
    assert early is not None
    assert early.message == "node n0 is being reclaimed in 60 s; the workers have 30 s to end"
    late = found(A, **reclaimed(str(int(T0.timestamp()) - 99)))
    assert late is not None
    assert late.deadline == after(1)


def test_a_reclaim_without_a_readable_deadline_gets_the_whole_grace() -> None:
    """I10: an odd taint value is no error."""
    for value in ("", "soon", "-1", "9" * 30):
        stop = found(A, **reclaimed(value))
        assert stop is not None, value
        assert stop.deadline == after(GRACE_SECONDS)


def test_an_unhealthy_gpu_is_left() -> None:
    stop = found(A, gpus=[make_gpu(healthy=False)])
    assert stop is not None
    assert (stop.reason, stop.message) == (
        "GPUUnhealthy",
        "GPU GPU-0 on n0 is unhealthy: XID 79",
    )


def test_a_gpu_that_programs_failed_on_is_kept_by_the_job_that_runs_there() -> None:
    told = tuple(ProgramFault("n0", "GPU-0", 31, uid, "team") for uid in ("uid-x", "uid-y"))
    assert found(A, program_faults=told) is None
    seen = capacity(make_snapshot(A, program_faults=told)).gpu("n0", "GPU-0")
    assert seen is not None
    assert seen.blocked is not None
    assert seen.blocked.reason is BlockedReason.SUSPECT


@pytest.mark.promise("I14")
def test_stale_or_missing_readings_never_stop_a_job() -> None:
    """I14."""
    overfull = make_gpu(healthy=False, unmanaged=20 * GIB)
    assert found(A, A, B, gpus=[overfull], seconds=3600) is None
    assert found(A, gpus=[make_gpu("GPU-7")]) is None
    assert (
        faults.of(A, sites_of(A.status.placement, Capacity()), T0, after(GRACE_SECONDS), ACCESS)
        is None
    )


@pytest.mark.parametrize("why", ["NVML: Unknown Error", "memoryUsedBytes: must be from 0 to 1"])
def test_a_gpu_that_cannot_be_read_is_kept_but_takes_nothing_new(why: str) -> None:
    """I14: what is known of it is old, which says nothing against the job on it."""
    gpu = replace(make_gpu(healthy=False), health_message=f"{UNREADABLE}: {why}")
    assert found(A, gpus=[gpu]) is None
    (seen,) = capacity(make_snapshot(A, gpus=[gpu])).nodes["n0"].gpus
    assert seen.blocked == GPUBlocked(BlockedReason.UNREADABLE, why)
    assert seen.blocked is not None
    assert seen.blocked.text == f"not readable: {why}"


def test_an_unmanaged_process_alone_never_moves_a_job() -> None:
    """I1: the condition says so; the job keeps what it holds."""
    gpus = [make_gpu(unmanaged=20 * GIB)]
    assert found(A, gpus=gpus) is None
    assert found(A, A, B, gpus=gpus) is None
    assert found(B, A, B, gpus=gpus) is None
    gpu = faults.pressure(A.status, sites(A, make_snapshot(A, B, gpus=gpus)))
    assert gpu is not None
    message = faults.pressure_message(gpu)
    assert "22 GiB reserved by 2 jobs" in message
    assert "20 GiB used by unmanaged processes" in message
    assert "> 24 GiB" in message


@pytest.mark.promise("I1")
def test_of_an_overfull_gpu_the_largest_job_moves() -> None:
    """I1: the stated policy, and exactly one of them."""
    leak = running(make_job("leak"), held=reserve(15 * GIB))
    assert found(A, A, leak) is None
    stop = found(leak, A, leak)
    assert stop is not None
    assert stop.reason == "GPUOvercommitted"
    assert "25 GiB reserved by 2 jobs" in stop.message


def test_the_job_that_uses_more_than_it_holds_moves_first() -> None:
    """I1: not the neighbour that keeps to its reservation, though it is larger."""
    leak = running(make_job("leak"), held=reserve(2 * GIB))
    pod = make_pod(leak)
    seen: dict[str, Any] = {"pods": [pod], "gpus": [make_gpu(ours=[(pod.uid, 13 * GIB)])]}
    assert found(B, B, leak, **seen) is None
    stop = found(leak, B, leak, **seen)
    assert stop is not None
    assert "11 GiB used above that" in stop.message


@pytest.mark.promise("I15")
@pytest.mark.parametrize(
    ("used_bytes", "reason"),
    [(2 * GIB + CONTEXT_BYTES, "GPUOvercommitted"), (13 * GIB, "MemoryCapExceeded")],
)
def test_a_job_beyond_its_own_cap_is_to_blame_itself(used_bytes: int, reason: str) -> None:
    """I15: it is counted against the job, and so it ends, instead of driving out one neighbour
    after the other. A context above the cap is no breach."""
    job = make_job("capped", memory_bytes=2 * GIB)
    capped = running(job, held=reserve(2 * GIB, ReservationSource.HINT))
    pod = make_pod(capped)
    full: dict[str, Any] = {
        "pods": [pod],
        "gpus": [make_gpu(ours=[(pod.uid, used_bytes)], driver=12 * GIB)],
    }
    stop = found(capped, B, capped, **full)
    assert stop is not None
    assert stop.reason == reason
    stopping = with_status(capped, phase=JobPhase.STOPPING, stop=stop)
    outcome = judge(stopping, (make_pod(stopping, exit_code=143),))
    is_failure = reason == "MemoryCapExceeded"
    assert (outcome.end is AttemptEnd.FAILED) is is_failure
    if is_failure:
        assert outcome.failure is not None
        assert outcome.failure.failure_class is FailureClass.OUT_OF_MEMORY
        assert "sharing.mode Shared gpu.memory (2 GiB) is a cap" in outcome.failure.message


def test_alone_on_an_overfull_gpu_nobody_moves() -> None:
    big = running(make_job(), held=reserve(30 * GIB))
    assert found(big) is None
    assert faults.pressure(big.status, sites(big, make_snapshot(big))) is not None


def test_pressure_is_only_of_running_jobs() -> None:
    seen = sites(A, make_snapshot(A, B, gpus=[make_gpu(unmanaged=20 * GIB)]))
    assert faults.pressure(A.status, seen) is not None
    assert faults.pressure(make_job().status, seen) is None
    assert faults.pressure(with_status(A, phase=JobPhase.SUCCEEDED).status, seen) is None
    assert faults.pressure(A.status, sites(A, make_snapshot(A))) is None
