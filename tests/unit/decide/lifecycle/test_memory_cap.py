"""A job that uses more GPU memory than its cap: what is its context, and what is its own failure
(I15)."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import (
    Counters,
    GPUJob,
    GPUJobStatus,
    JobPhase,
    ReservationSource,
    SharingMode,
)
from gpujob_api.gpunode import GPU
from gpujob_api.quantities import GIB, MIB
from gpujob_api.report import CheckpointReport, FailureClass
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import CONTEXT_BYTES, CONTEXTS_MAX
from gpujob_operator.decide.placement.requirements import requirements_of
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    capped,
    make_gpu,
    make_gpu_node,
    make_job,
    make_pod,
    make_report,
    make_snapshot,
    measured,
    reserve,
    running,
    statuses,
    used,
    with_status,
)

CAP_BYTES = MIB
NEW = make_job(
    "capped", memory_bytes=CAP_BYTES, sharing=SharingMode.SHARED, max_slowdown_percent=100
)
CAPPED = running(NEW, held=capped(CAP_BYTES))
OTHER = running(
    make_job("other", max_slowdown_percent=100),
    held=reserve(int(23.5 * GIB)),
    measurement=measured(21 * GIB),
)
SMALL = running(make_job("small"), held=reserve(5 * GIB), measurement=measured(5 * GIB))
BEYOND_BYTES = CAP_BYTES + CONTEXT_BYTES + 1


def step(
    jobs: Iterable[GPUJob],
    used_bytes: dict[str, int],
    *,
    at: float = 5.0,
    read_at: float | None = None,
    exit_code: int | None = None,
    unmanaged: int = 0,
    access: DeviceAccess = DeviceAccess.ENVIRONMENT,
    estimated: Iterable[str] = (),
) -> dict[str, GPUJobStatus]:
    """The statuses that one plan writes, where the newest reading shows this use of GPU-0, which is
    also each job's peak. `exit_code` is of the job `capped`; of the `estimated` jobs the driver
    does not say what they use."""
    jobs = tuple(jobs)
    placed = [job for job in jobs if job.status.placement is not None]
    ours = [(make_pod(job).uid, used_bytes[job.metadata.name]) for job in placed]
    gpu: GPU = make_gpu(ours=[one for one in ours if one[1]], unmanaged=unmanaged)
    unsaid = {make_pod(job).uid for job in placed if job.metadata.name in estimated}
    processes = [replace(one, memory_estimated=one.pod_uid in unsaid) for one in gpu.processes]
    gpu = replace(gpu, processes=tuple(processes))
    snapshot = make_snapshot(
        *jobs,
        pods=[
            make_pod(job, exit_code=exit_code if job.metadata.name == "capped" else None)
            for job in placed
        ],
        gpu_nodes=[make_gpu_node("n0", gpu, at=at if read_at is None else read_at)],
        usage={
            (job.metadata.uid, job.status.attempt): used(used_bytes[job.metadata.name])
            for job in placed
        },
        configuration=Configuration(device_access=access),
    )
    return statuses(plan(snapshot, after(at)).items)


def stop_of(*jobs: GPUJob, **options: Any) -> str | None:
    """Why the job `capped` is stopped."""
    status = step(jobs, **options).get("capped")
    return status.stop.reason if status is not None and status.stop is not None else None


# -- its context


def test_what_a_job_used_of_its_context_is_reserved_the_next_time() -> None:
    """One interruption, and then it waits until there is as much: it was put back on the same GPU
    for ever, with the same reservation."""
    seen = {"capped": 700 * MIB, "other": 23 * GIB}
    stopped = step((CAPPED, OTHER), seen)["capped"]
    assert stopped.stop is not None
    assert stopped.stop.reason == "GPUOvercommitted"
    stopping = replace(CAPPED, status=replace(stopped, checkpoint=CheckpointReport(9)))
    ended = step((stopping, OTHER), seen, at=9, exit_code=143)["capped"]
    assert (ended.phase, ended.counters.interruptions) == (JobPhase.PENDING, 1)
    assert ended.measurement is not None
    assert ended.measurement.memory_bytes == 700 * MIB
    back = replace(CAPPED, status=ended)
    waits = step((back, OTHER), {"other": 21 * GIB}, at=99).get("capped", ended)
    assert waits.placement is None
    beside_small = step((back, SMALL), {"small": 5 * GIB}, at=99)["capped"]
    assert beside_small.placement is not None
    assert beside_small.reservation is not None
    assert beside_small.reservation.memory_bytes == CAP_BYTES + CONTEXT_BYTES
    assert beside_small.reservation.source is ReservationSource.HINT


def test_a_small_context_is_reserved_with_the_margin_of_any_measurement() -> None:
    known = with_status(NEW, attempt=1, measurement=measured(100 * MIB))
    held = step([known], {})["capped"].reservation
    assert held is not None
    assert held.memory_bytes == 100 * MIB + Configuration().memory_margin_bytes


def test_a_context_keeps_a_job_from_no_gpu_that_its_cap_fits_on() -> None:
    """I11: its worker counts its context to its cap, and another program ran there before."""
    cap_bytes = 24 * GIB - 100 * MIB
    large = make_job("capped", memory_bytes=cap_bytes, sharing=SharingMode.SHARED)
    ran = with_status(large, attempt=1, measurement=measured(cap_bytes + 50 * MIB))
    held = step([ran], {})["capped"].reservation
    assert held is not None
    assert held.memory_bytes == 24 * GIB


# -- beyond it


@pytest.mark.parametrize(
    ("used_bytes", "reason"),
    [(BEYOND_BYTES, "MemoryCapExceeded"), (BEYOND_BYTES - 1, None), (CAP_BYTES, None)],
)
@pytest.mark.parametrize("beside", [(), (SMALL,)])
def test_beyond_its_cap_a_job_fails_also_where_there_is_enough(
    used_bytes: int, reason: str | None, beside: tuple[GPUJob, ...]
) -> None:
    """It ran on, its queue was charged for its cap alone, and others waited for what it took."""
    seen = {"capped": used_bytes, "small": 5 * GIB}
    assert stop_of(CAPPED, *beside, used_bytes=seen) == reason
    wide = with_status(CAPPED, reservation=capped(CAP_BYTES, BEYOND_BYTES - 1))
    assert stop_of(wide, *beside, used_bytes=seen) == reason


def test_it_is_said_what_is_used_and_what_is_the_cap() -> None:
    stop = step([CAPPED], {"capped": 17 * GIB})["capped"].stop
    assert stop is not None
    assert stop.message == "uses 17 GiB; with sharing.mode Shared gpu.memory (1 MiB) is a cap"


@pytest.mark.parametrize("before", [0, 2, 3])
def test_each_time_is_a_failure_of_its_own_and_their_number_is_bounded(before: int) -> None:
    """However far it gets: the durable step grows, which ends no row of failures."""
    failed = with_status(CAPPED, counters=Counters(out_of_memory=before))
    stopped = step([failed], {"capped": 17 * GIB})["capped"]
    stopping = replace(failed, status=replace(stopped, checkpoint=CheckpointReport(9)))
    ended = step([stopping], {"capped": 17 * GIB}, at=9, exit_code=143)["capped"]
    assert ended.counters.out_of_memory == before + 1
    assert ended.counters.interruptions == 0
    assert ended.failure is not None
    assert ended.failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert ended.phase is (JobPhase.FAILED if before == NEW.spec.retry.limit else JobPhase.PENDING)


def test_what_was_beyond_the_cap_is_not_reserved() -> None:
    """It would be rid of its cap."""
    failed = with_status(NEW, attempt=1, measurement=measured(17 * GIB))
    held = step([failed], {})["capped"].reservation
    assert held is not None
    assert held.memory_bytes == CAP_BYTES + CONTEXT_BYTES


@pytest.mark.parametrize(("used_bytes", "is_excused"), [(BEYOND_BYTES - 1, 1), (BEYOND_BYTES, 0)])
def test_what_others_took_excuses_a_job_that_kept_to_its_cap_and_context(
    used_bytes: int, is_excused: int
) -> None:
    """However much is reserved for its context."""
    held = capped(CAP_BYTES, CAP_BYTES + CONTEXT_BYTES)
    honest = running(NEW, held=held, measurement=measured(used_bytes))
    leak = running(make_job("leak"), held=reserve(4 * GIB))
    pod = make_pod(honest, exit_code=1, termination=make_report(failure=FailureClass.OUT_OF_MEMORY))
    gpu = make_gpu(ours=[(make_pod(leak).uid, 24 * GIB)])
    snapshot = make_snapshot(honest, leak, pods=[pod, make_pod(leak)], gpus=[gpu])
    counters = statuses(plan(snapshot, after(20)).items)["capped"].counters
    assert (counters.interruptions, counters.out_of_memory) == (is_excused, 1 - is_excused)


# -- several processes


def stop_of_processes(*used_bytes: int) -> bool:
    """Whether the job is stopped of which one process uses so much each."""
    uid = make_pod(CAPPED).uid
    gpu = make_gpu(ours=[(uid, each) for each in used_bytes])
    snapshot = make_snapshot(CAPPED, pods=[make_pod(CAPPED)], gpus=[gpu])
    status = statuses(plan(snapshot, after(5)).items).get("capped")
    return status is not None and status.stop is not None


@pytest.mark.parametrize("others", [1, 3, CONTEXTS_MAX - 1])
def test_each_process_has_a_context(others: int) -> None:
    """Loaders that use the GPU, and the ranks of a launcher."""
    contexts = [CONTEXT_BYTES] * others
    assert not stop_of_processes(CAP_BYTES + CONTEXT_BYTES, *contexts)
    assert stop_of_processes(BEYOND_BYTES, *contexts)


def test_a_process_that_uses_less_than_a_context_excuses_no_more() -> None:
    assert not stop_of_processes(CAP_BYTES + CONTEXT_BYTES, 10 * MIB)
    assert stop_of_processes(CAP_BYTES + CONTEXT_BYTES + 1, 10 * MIB)


def test_the_number_of_contexts_is_bounded() -> None:
    """Or else a job would be rid of its cap by many processes."""
    contexts = [CONTEXT_BYTES] * (CONTEXTS_MAX - 1)
    assert stop_of_processes(CAP_BYTES + CONTEXT_BYTES, *contexts, 2 * MIB)


def test_the_contexts_of_several_processes_are_reserved_the_next_time() -> None:
    seen_bytes = CAP_BYTES + 2 * CONTEXT_BYTES
    several = replace(measured(seen_bytes), context_bytes=3 * CONTEXT_BYTES)
    held = step([with_status(NEW, attempt=1, measurement=several)], {})["capped"].reservation
    assert held == capped(CAP_BYTES, seen_bytes + Configuration().memory_margin_bytes)
    breach = replace(several, memory_bytes=17 * GIB)
    held = step([with_status(NEW, attempt=1, measurement=breach)], {})["capped"].reservation
    assert held == capped(CAP_BYTES, CAP_BYTES + 3 * CONTEXT_BYTES)


def test_jobs_that_reserve_more_contexts_are_another_kind() -> None:
    """Who is refused together and placed together reserves the same."""
    known = measured(17 * GIB), replace(measured(17 * GIB), context_bytes=3 * CONTEXT_BYTES)
    jobs = [with_status(NEW, measurement=measurement) for measurement in known]
    assert len({requirements_of(job, None).scheduling_signature for job in jobs}) == 2


# -- its attempt


@pytest.mark.parametrize("asked_bytes", [None, MIB, 4 * GIB, 20 * GIB])
@pytest.mark.parametrize("has_cap", [True, False])
def test_the_cap_is_that_of_the_attempt_and_not_of_an_edit(
    asked_bytes: int | None, has_cap: bool
) -> None:
    """Its worker keeps the limit that it was started with. An operator of before wrote no cap."""
    held = capped(4 * GIB) if has_cap else reserve(4 * GIB, ReservationSource.HINT)
    edited = running(
        make_job("capped", memory_bytes=asked_bytes, sharing=SharingMode.SHARED), held=held
    )
    most_bytes = 4 * GIB + CONTEXT_BYTES
    assert stop_of(edited, used_bytes={"capped": most_bytes}) is None
    assert stop_of(edited, used_bytes={"capped": most_bytes + 1}) == "MemoryCapExceeded"


def test_a_placement_stores_its_cap() -> None:
    held = step([NEW], {})["capped"].reservation
    assert held is not None
    assert held.cap_bytes == CAP_BYTES


# -- whose memory it is


def test_what_others_use_is_not_its_own() -> None:
    """Processes of nobody, and co-tenants beyond their reservations."""
    assert stop_of(CAPPED, used_bytes={"capped": 500 * MIB}, unmanaged=20 * GIB) is None
    seen = {"capped": 500 * MIB, "small": 20 * GIB}
    assert stop_of(CAPPED, SMALL, used_bytes=seen) is None


def test_an_old_reading_blames_nobody() -> None:
    """I14."""
    late = Configuration().telemetry_stale_seconds + 5
    assert stop_of(CAPPED, used_bytes={"capped": 17 * GIB}, at=late, read_at=0) is None
    assert stop_of(CAPPED, used_bytes={"capped": 17 * GIB}, at=late) == "MemoryCapExceeded"


@pytest.mark.parametrize("beside", [(), (SMALL,)])
@pytest.mark.parametrize(
    ("estimated", "reason"),
    [((), "MemoryCapExceeded"), (("small",), "MemoryCapExceeded"), (("capped",), None)],
)
def test_what_the_agent_estimates_is_no_proof(
    beside: tuple[GPUJob, ...], estimated: tuple[str, ...], reason: str | None
) -> None:
    """Of a process of which the driver does not say what it uses; also where it is alone, and
    whatever the driver says of others. Equal amounts of two jobs are no estimates."""
    for used_bytes in (3 * GIB, 3 * GIB + 1):
        seen = {"capped": used_bytes, "small": 3 * GIB}
        assert stop_of(CAPPED, *beside, used_bytes=seen, estimated=estimated) == reason


def test_where_there_is_not_enough_for_all_an_estimate_decides() -> None:
    full = {"capped": 12 * GIB, "other": 12 * GIB}
    both = ("capped", "other")
    assert stop_of(CAPPED, OTHER, used_bytes=full, estimated=both) == "MemoryCapExceeded"


def test_two_equal_jobs_beyond_their_caps_are_both_stopped() -> None:
    twin = running(make_job("twin", sharing=SharingMode.SHARED), held=capped(CAP_BYTES))
    found = step((CAPPED, twin), {"capped": 8 * GIB, "twin": 8 * GIB})
    stops = [found[name].stop for name in ("capped", "twin")]
    assert [stop.reason for stop in stops if stop is not None] == ["MemoryCapExceeded"] * 2


@pytest.mark.parametrize(
    ("said_bytes", "is_stopped"),
    [(BEYOND_BYTES + CONTEXT_BYTES, True), (BEYOND_BYTES + CONTEXT_BYTES - 1, False)],
)
def test_what_the_driver_says_of_one_process_is_proof_beside_an_estimate(
    said_bytes: int, is_stopped: bool
) -> None:
    uid = make_pod(CAPPED).uid
    said, unsaid = make_gpu(ours=[(uid, said_bytes), (uid, 9 * GIB)]).processes
    gpu = make_gpu(ours=[(uid, said_bytes + 9 * GIB)])
    gpu = replace(gpu, processes=(said, replace(unsaid, memory_estimated=True)))
    snapshot = make_snapshot(CAPPED, pods=[make_pod(CAPPED)], gpus=[gpu])
    status = statuses(plan(snapshot, after(5)).items).get("capped")
    assert (status is not None and status.stop is not None) is is_stopped


def test_without_a_cap_nobody_exceeds_it() -> None:
    """The same job on a whole GPU, as after two that broke under it; and any other job."""
    whole = with_status(CAPPED, reservation=reserve(24 * GIB, ReservationSource.WHOLE_GPU))
    assert stop_of(whole, used_bytes={"capped": 17 * GIB}) is None
    free = running(make_job("capped", memory_bytes=CAP_BYTES), held=reserve(2 * GIB))
    assert stop_of(free, used_bytes={"capped": 17 * GIB}) is None


def test_where_the_kubelet_picks_the_gpus_a_reading_may_be_of_another_job() -> None:
    options: dict[str, Any] = {"access": DeviceAccess.DEVICE_PLUGIN}
    assert stop_of(CAPPED, used_bytes={"capped": 17 * GIB}, **options) is None
