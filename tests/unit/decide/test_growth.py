"""One cycle in which a job is seen to use more than it reserves, beside others that wait or run."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import Counters, GPUJob, GPUJobStatus, JobPhase, SharingMode
from gpujob_api.gpunode import GPU
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.quantities import GIB, FleetMemory
from gpujob_api.report import FailureClass, Report, Timing
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    CARD_BYTES,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_queue,
    make_report,
    make_snapshot,
    measured,
    received,
    reserve,
    running,
    statuses,
    used,
)

pytestmark = pytest.mark.promise("I1")

QUIET = make_report(current=Timing(0.1, 0))


def tenant(name: str, held_gib: int, **status: object) -> GPUJob:
    job = make_job(name, max_slowdown_percent=100)
    return running(job, held=reserve(held_gib * GIB), measurement=measured(GIB), **status)


def waiting(gib: int) -> GPUJob:
    hint = gib * GIB
    return make_job(
        "waiting", memory_bytes=hint, sharing=SharingMode.SHARED, max_slowdown_percent=100
    )


def decided(
    jobs: tuple[GPUJob, ...],
    peaks_gib: dict[str, float],
    report: Report = QUIET,
    queue: GPUQueue | None = None,
) -> dict[str, GPUJobStatus]:
    """The statuses that one plan writes. The peaks are also what the newest reading shows."""
    tenants = [job for job in jobs if job.status.placement is not None]
    peaks = {name: int(gib * GIB) for name, gib in peaks_gib.items()}
    snapshot = make_snapshot(
        *jobs,
        pods=[make_pod(job) for job in tenants],
        gpus=[gpu_of(tenants, peaks)],
        usage={(job.metadata.uid, 1): used(peaks[job.metadata.name]) for job in tenants},
        reports=tuple(received(job, report) for job in tenants),
        queues=() if queue is None else (queue,),
    )
    return statuses(plan(snapshot, after(1)).items)


def gpu_of(tenants: list[GPUJob], peaks: dict[str, int]) -> GPU:
    ours = [(f"{job.metadata.uid}-1-0", peaks[job.metadata.name]) for job in tenants]
    return make_gpu(ours=ours)


def held_gib(status: GPUJobStatus) -> float:
    assert status.reservation is not None
    return round(status.reservation.memory_bytes / GIB, 2)


def test_what_a_job_grows_by_is_given_to_nobody_else_in_the_same_cycle() -> None:
    """I1."""
    found = decided((tenant("a", 8), waiting(15)), {"a": 9})
    assert held_gib(found["a"]) == 9.9
    assert found["waiting"].placement is None
    found = decided((tenant("a", 8), waiting(14)), {"a": 9})
    assert held_gib(found["a"]) == 9.9
    assert held_gib(found["waiting"]) == 14


@pytest.mark.promise("I11")
@pytest.mark.parametrize(("quota_gib", "fits"), [(23, False), (24, True)])
def test_what_a_job_grows_by_counts_in_its_queue_in_the_same_cycle(
    quota_gib: int, fits: bool
) -> None:
    """I11: 8 GiB and 14 fit in either quota, 9.9 and 14 only in the second."""
    queue = make_queue(gpu_memory=FleetMemory(quota_gib * GIB))
    found = decided((tenant("a", 8), waiting(14)), {"a": 9}, queue=queue)
    assert held_gib(found["a"]) == 9.9
    assert (found["waiting"].placement is not None) is fits


def test_two_jobs_that_grow_at_once_share_what_is_free() -> None:
    """I1: 24 GiB, of which 22 are used: the margins get two together."""
    found = decided((tenant("a", 10), tenant("b", 10)), {"a": 11, "b": 11})
    together = sum(held_gib(found[name]) for name in found)
    assert together <= CARD_BYTES / GIB
    assert min(held_gib(found[name]) for name in found) >= 11


def test_a_gang_grows_by_nothing_while_a_gpu_of_it_is_not_shown() -> None:
    """I1: what fits on the one GPU may not fit on the other."""
    places = ("n0", ("GPU-0",)), ("n1", ("GPU-1",))
    gang = running(
        make_job("gang", workers=2), *places, held=reserve(8 * GIB), measurement=measured(GIB)
    )

    def grown(*uuids: str) -> GPUJobStatus | None:
        nodes = (make_gpu_node("n0", make_gpu()), make_gpu_node("n1", *map(make_gpu, uuids)))
        pods = [make_pod(gang, rank) for rank in (0, 1)]
        usage, reports = {("uid-gang", 1): used(9 * GIB)}, (received(gang, QUIET),)
        snapshot = make_snapshot(gang, pods=pods, gpu_nodes=nodes, usage=usage, reports=reports)
        return statuses(plan(snapshot, after(1)).items).get("gang")

    seen, hidden = grown("GPU-1"), grown("GPU-2")
    assert seen is not None
    assert held_gib(seen) == 9.9
    assert hidden is None or held_gib(hidden) == 8


def test_the_job_that_outgrew_its_gpu_leaves_and_not_its_neighbour() -> None:
    """I1, I15: whoever reserved more is not the one to go."""
    found = decided((tenant("grows", 8), tenant("large", 15)), {"grows": 10, "large": 14})
    stop = found["grows"].stop
    assert stop is not None
    assert stop.reason == "GPUOvercommitted"
    assert "large" not in found or found["large"].stop is None


def test_a_peak_of_the_past_that_no_longer_fits_makes_the_job_leave_in_time() -> None:
    grows, large = tenant("grows", 8), tenant("large", 15)
    snapshot = make_snapshot(
        grows,
        large,
        pods=[make_pod(grows), make_pod(large)],
        gpus=[gpu_of([grows, large], {"grows": 2 * GIB, "large": 2 * GIB})],
        usage={("uid-grows", 1): used(10 * GIB), ("uid-large", 1): used(2 * GIB)},
    )
    stop = statuses(plan(snapshot, after(1)).items)["grows"].stop
    assert stop is not None
    assert stop.message == (
        "was seen to use 10 GiB of GPU GPU-0, reserves 8 GiB, and can have 9 GiB beside 1 job"
    )


def test_a_worker_that_lies_takes_nothing_from_its_neighbour() -> None:
    """I1, I15."""
    jobs = (tenant("liar", 2), tenant("honest", 4))
    for said_gib in (20, 16 * 1024):
        lie = make_report(step=10, current=Timing(0.1, said_gib * GIB))
        found = decided(jobs, {"liar": 1, "honest": 4.01}, lie)
        assert held_gib(found["liar"]) <= 3
        assert all(status.stop is None for status in found.values())


def test_a_job_that_ran_out_of_memory_keeps_its_gpu_until_it_is_past_that_step() -> None:
    """I9: its peak comes late, at the end of an epoch; beside others it would fail again."""
    job = running(
        make_job("late", max_slowdown_percent=100),
        attempt=2,
        measurement=measured(20 * GIB, step=500),
        counters=Counters(out_of_memory=1),
        out_of_memory_step=500,
    )
    snapshot = make_snapshot(
        job,
        waiting(3),
        pods=[make_pod(job)],
        gpus=[make_gpu(ours=[("uid-late-2-0", 5 * GIB)])],
        usage={("uid-late", 2): used(5 * GIB, samples=30)},
    )
    early = replace(snapshot, reports=(received(job, make_report(2, step=20)),))
    found = statuses(plan(early, after(7)).items)
    assert held_gib(found["late"]) == 24
    assert found["waiting"].phase is JobPhase.PENDING
    passed = replace(snapshot, reports=(received(job, make_report(2, step=501)),))
    found = statuses(plan(passed, after(7)).items)
    assert held_gib(found["late"]) == 22, "the peak of all attempts stays its floor"
    assert found["waiting"].phase is JobPhase.PENDING


def test_the_furthest_step_at_which_a_job_ran_out_of_memory_is_kept() -> None:
    def ended(job: GPUJob, step: int, failure: FailureClass | None) -> GPUJobStatus:
        words = make_report(job.status.attempt, step=step, failure=failure)
        code = 1 if failure is not None else 143
        pod = make_pod(job, exit_code=code, termination=words)
        return statuses(plan(make_snapshot(job, pods=[pod]), after(60)).items)["job"]

    job = running(make_job(), held=reserve(8 * GIB))
    first = ended(job, 500, FailureClass.OUT_OF_MEMORY)
    assert first.out_of_memory_step == 500
    again = running(make_job(), attempt=2, out_of_memory_step=500)
    assert ended(again, 700, None).out_of_memory_step == 500
    assert ended(again, 20, FailureClass.OUT_OF_MEMORY).out_of_memory_step == 500
    assert ended(again, 700, FailureClass.OUT_OF_MEMORY).out_of_memory_step == 700
    assert ended(running(make_job()), 9, FailureClass.DATA).out_of_memory_step is None
