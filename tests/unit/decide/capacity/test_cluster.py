"""The ledger of GPUs: nothing that is in use, reserved or unknown counts as free."""

from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.quantities import GIB
from gpujob_operator.decide.capacity.availability import (
    BlockedReason,
    ClosedReason,
    GPUBlocked,
    NodeClosed,
)
from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity
from gpujob_operator.decide.capacity.prices import price_of_model
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import PodPhase, Snapshot, Taint
from tests.harness.builders import (
    CARD_BYTES,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    placed,
    reserve,
    running,
)
from tests.harness.capacity import build_capacity


def score_cache(snapshot: Snapshot, seconds: float = 0.0) -> Capacity:
    requests = {job.metadata.uid: host_requests(job) for job in snapshot.jobs}
    return build_capacity(snapshot, after(seconds), requests)


def only_gpu(*jobs: GPUJob, seconds: float = 0.0, **fields: Any) -> GPUCapacity:
    gpu = score_cache(make_snapshot(*jobs, **fields), seconds).gpu("n0", "GPU-0")
    assert gpu is not None
    return gpu


def free(*jobs: GPUJob, **fields: Any) -> int:
    return only_gpu(*jobs, **fields).free_bytes


def test_an_empty_gpu_is_free_less_what_the_driver_keeps() -> None:
    """I1: the driver's own reserve is not ours to give."""
    assert free() == CARD_BYTES
    assert free(gpus=[make_gpu(driver=450 << 20)]) == CARD_BYTES - (450 << 20)


@pytest.mark.promise("I1")
def test_unmanaged_processes_are_respected() -> None:
    """I1: memory of nobody's job is not free, whoever uses it."""
    assert free(gpus=[make_gpu(unmanaged=5 * GIB)]) == CARD_BYTES - 5 * GIB
    assert free(gpus=[make_gpu(ours=[("some-pod", 5 * GIB)])]) == CARD_BYTES - 5 * GIB


def test_reservations_count_instead_of_measured_use() -> None:
    """I1: the job's own memory is not counted twice."""
    job = running(make_job(), held=reserve(10 * GIB))
    pod = make_pod(job)
    gpu = make_gpu(unmanaged=2 * GIB, ours=[(pod.uid, 6 * GIB)])
    assert free(job, pods=[pod], gpus=[gpu]) == CARD_BYTES - 12 * GIB


@pytest.mark.promise("I1")
def test_use_above_the_reservation_is_not_free() -> None:
    """I1: a leak fills the GPU although the reservation stays."""
    job = running(make_job(), held=reserve(10 * GIB, ReservationSource.HINT))
    pod = make_pod(job)
    gpu = make_gpu(ours=[(pod.uid, 13 * GIB)])
    found = only_gpu(job, pods=[pod], gpus=[gpu])
    assert (found.external_bytes, found.excess_bytes) == (0, 3 * GIB)
    assert found.free_bytes == CARD_BYTES - 13 * GIB


@pytest.mark.promise("I1")
@pytest.mark.parametrize("phase", [JobPhase.STARTING, JobPhase.RUNNING, JobPhase.STOPPING])
def test_an_attempt_holds_its_gpus_until_it_is_proven_finished(phase: JobPhase) -> None:
    """I1: also before its pods exist and while they are being stopped."""
    job = placed(make_job(), phase=phase, held=reserve(10 * GIB))
    assert holds_gpus(job)
    assert free(job) == CARD_BYTES - 10 * GIB


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_finished_job_holds_nothing(phase: JobPhase) -> None:
    job = placed(make_job(), phase=phase, held=reserve(10 * GIB))
    assert not holds_gpus(job)
    assert free(job) == CARD_BYTES


def test_memory_of_a_job_that_finished_counts_until_it_is_seen_to_be_gone() -> None:
    """I1: the last reading still shows the process."""
    job = placed(make_job(), phase=JobPhase.SUCCEEDED)
    pod = make_pod(job, exit_code=0)
    gpu = make_gpu(ours=[(pod.uid, 6 * GIB)])
    assert free(job, pods=[pod], gpus=[gpu]) == CARD_BYTES - 6 * GIB


def live_pods_without_a_claim() -> list[Any]:
    job = running(make_job(), held=reserve(4 * GIB))
    pod = make_pod(job)
    elsewhere = running(make_job(), ("n0", ("GPU-1",)), attempt=2)
    return [
        pytest.param((), pod, id="the job is gone"),
        pytest.param((replace(job, status=make_job().status),), pod, id="the job is waiting"),
        pytest.param((elsewhere,), pod, id="the job is elsewhere by now"),
    ]


@pytest.mark.promise("I7")
@pytest.mark.parametrize(("jobs", "pod"), live_pods_without_a_claim())
def test_a_live_pod_that_no_attempt_owns_blocks_its_gpu(jobs: Any, pod: Any) -> None:
    """I1, I7: how much it will use is unknown until it is gone."""
    gpus = [make_gpu(), make_gpu("GPU-1", index=1)]
    blocked = only_gpu(*jobs, pods=[pod], gpus=gpus).blocked
    assert blocked == GPUBlocked(BlockedReason.STRAY_POD)
    done = replace(pod, phase=PodPhase.FAILED, exit_code=143)
    assert not only_gpu(*jobs, pods=[done], gpus=gpus).blocked


def test_memory_of_an_earlier_attempt_is_unmanaged() -> None:
    """I1: the new attempt holds other GPUs, so nothing else accounts for it."""
    job = running(make_job(), ("n0", ("GPU-1",)), attempt=2)
    old = make_pod(job, attempt=1, gpus=("GPU-0",))
    gpus = [make_gpu(ours=[(old.uid, 6 * GIB)]), make_gpu("GPU-1", index=1)]
    assert only_gpu(job, pods=[old], gpus=gpus).external_bytes == 6 * GIB


def test_unhealthy_gpus_are_blocked_with_their_reason() -> None:
    blocked = only_gpu(gpus=[make_gpu(healthy=False)]).blocked
    assert blocked == GPUBlocked(BlockedReason.UNHEALTHY, "XID 79")
    assert blocked is not None
    assert blocked.text == "unhealthy: XID 79"


def test_lost_gpus_and_nodes_are_not_there() -> None:
    """I14: a GPU that is not reported any more offers nothing; zero GPUs are no error."""
    job = running(make_job())
    gone = score_cache(make_snapshot(job, gpus=[make_gpu("GPU-9")]))
    assert gone.gpu("n0", "GPU-0") is None
    assert gone.gpu("n7", "GPU-0") is None
    empty = replace(make_snapshot(job), gpu_nodes=(make_gpu_node(),), nodes=())
    assert not score_cache(empty).nodes
    bare = replace(make_gpu_node(), status=replace(make_gpu_node().status, gpus=()))
    assert score_cache(make_snapshot(job, gpu_nodes=[bare])).nodes["n0"].gpus == ()


@pytest.mark.promise("I14")
@pytest.mark.parametrize(
    ("node", "spec", "seconds", "reason"),
    [
        ({}, {}, 0, None),
        ({}, {}, 30, None),
        ({}, {}, 31, ClosedReason.STALE),
        ({"ready": False}, {}, 0, ClosedReason.NOT_READY),
        ({"unschedulable": True}, {}, 0, ClosedReason.CORDONED),
        ({}, {"unschedulable": True}, 0, ClosedReason.CORDONED),
        ({"managed": False}, {}, 0, ClosedReason.UNMANAGED),
        ({"managed": False}, {}, 31, ClosedReason.UNMANAGED),
        ({"taints": (Taint(TAINT_RECLAIM, "NoSchedule"),)}, {}, 0, ClosedReason.RECLAIMED),
    ],
)
def test_why_a_node_takes_nothing_new(
    node: dict[str, Any], spec: dict[str, Any], seconds: float, reason: ClosedReason | None
) -> None:
    """I14: stale readings close a node, with the age in seconds."""
    snapshot = make_snapshot(gpu_nodes=[make_gpu_node(**spec)], nodes=[make_node(**node)])
    closed = score_cache(snapshot, seconds).nodes["n0"].closed
    assert (closed.reason if closed is not None else None) is reason
    assert closed is None or closed.stale is (seconds > 30)
    if closed is not None and reason is ClosedReason.STALE:
        assert closed.text == "readings are 31 s old (limit 30 s)"


@pytest.mark.promise("I14")
def test_a_node_that_was_never_measured_is_closed() -> None:
    """I14."""
    blank = make_gpu_node()
    blank = replace(blank, status=replace(blank.status, observed_at=None))
    closed = score_cache(make_snapshot(gpu_nodes=[blank])).nodes["n0"].closed
    assert closed == NodeClosed(
        ClosedReason.UNMEASURED, "no reading from the agent yet", stale=True
    )


def test_host_room_of_workers_that_are_not_bound_yet_is_taken() -> None:
    """Two placements of one cycle after the other do not share the same cores."""
    job = placed(make_job(workers=2), ("n0", ("GPU-0",)), ("n0", ("GPU-1",)))
    node = make_node(cpu=8)
    unbound = make_pod(job, 0, phase=PodPhase.PENDING, node=None)
    bound = make_pod(job, 1)
    room = score_cache(make_snapshot(job, pods=[unbound, bound], nodes=[node])).nodes["n0"]
    assert room.cpu_milli_free == 7000
    assert room.memory_bytes_free == 255 * GIB


def test_prices_come_from_the_node_then_from_the_table() -> None:
    table = Configuration(
        price_per_gpu_hour={"NVIDIA A10": 1.0}, spot_price_per_gpu_hour={"NVIDIA A10": 0.4}
    )

    def price(node: dict[str, Any], own: float | None) -> float | None:
        gpu_nodes, nodes = [make_gpu_node(price=own)], [make_node(**node)]
        snapshot = make_snapshot(gpu_nodes=gpu_nodes, nodes=nodes, configuration=table)
        return score_cache(snapshot).nodes["n0"].price_per_gpu_hour

    assert price({}, 2.5) == 2.5
    assert price({}, None) == 1.0
    assert price({"spot": True}, None) == 0.4


@pytest.mark.parametrize(
    ("model", "price"),
    [
        ("NVIDIA H100 80GB HBM3", 3.0),
        ("NVIDIA H100 NVL", 2.5),
        ("NVIDIA A100-SXM4-80GB", 2.0),
        ("NVIDIA A100-SXM4-40GB", 1.5),
        ("NVIDIA L4", 0.7),
        # A word of its own, not a part of one.
        ("NVIDIA L40S", None),
        ("CPU card", None),
    ],
)
def test_the_price_of_a_model_is_found_by_its_words(model: str, price: float | None) -> None:
    """Nobody writes what NVML says, and a price that never counts is not noticed."""
    table = {"H100": 3.0, "h100 nvl": 2.5, "A100 80GB": 2.0, "a100": 1.5, "NVIDIA L4": 0.7, "-": 9}
    configuration = Configuration(price_per_gpu_hour=table)
    assert price_of_model(model, configuration, spot=False) == price
    assert price_of_model(model, configuration, spot=True) is None
    whole = Configuration(price_per_gpu_hour={**table, model: 5.0})
    assert price_of_model(model, whole, spot=False) == 5.0


@pytest.mark.promise("I9")
def test_the_order_of_the_snapshot_does_not_matter() -> None:
    """I9."""
    jobs = [
        running(make_job(f"j{n}"), held=reserve(GIB, utilization_percent=0.1 * n)) for n in range(5)
    ]
    gpus = [make_gpu(f"GPU-{n}") for n in range(3)]
    one = score_cache(make_snapshot(*jobs, gpus=gpus))
    other = score_cache(make_snapshot(*reversed(jobs), gpus=gpus[::-1]))
    assert one == other
