"""What a job that does not fit keeps free for itself, and when it could start there."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, StopReason
from gpujob_api.quantities import GIB
from gpujob_operator.decide.backfill.earliest_start import candidates
from gpujob_operator.decide.backfill.nomination import Nomination, describe_start, earliest_start
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.cache.release_arrays import ReleaseArrays
from gpujob_operator.decide.cache.tenancy import TenancyArrays
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.snapshot import NodeView
from gpujob_operator.decide.placement.memo import Forgetful
from gpujob_operator.decide.placement.requirements import requirements_of
from tests.harness.builders import (
    T0,
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    make_template,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.capacity import build_capacity

CONFIGURATION = Configuration()


def claim_of(job: GPUJob, *jobs: GPUJob, **snapshot: Any) -> Nomination | None:
    requests: dict[str, PodRequests] = snapshot.pop("requests", {})
    capacity = build_capacity(make_snapshot(*jobs, **snapshot), T0, requests)
    requirements, releases = requirements_of(job, None), ReleaseTimes.of(jobs, T0)
    tenancy = TenancyArrays().renew(capacity, ReleaseArrays(releases))
    found = candidates(requirements, tenancy, capacity, Forgetful(), CONFIGURATION)
    return earliest_start(requirements, found, releases)


def claimed(job: GPUJob, *jobs: GPUJob, **snapshot: Any) -> frozenset[str]:
    found = claim_of(job, *jobs, **snapshot)
    return frozenset(uuid for _, uuid in found.gpus) if found is not None else frozenset()


def on_n0(*uuids: str) -> frozenset[Place]:
    return frozenset(("n0", uuid) for uuid in uuids)


def nodes_of_two(count: int) -> list[Any]:
    return [
        make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}a"), make_gpu(f"GPU-{n}b", index=1))
        for n in range(count)
    ]


def left(job: GPUJob, steps: int) -> GPUJob:
    """The job with so many steps of 0.1 s before it."""
    known = replace(measured(4 * GIB, step=100), steps_total=100 + steps)
    return with_status(job, measurement=known, observed_at=T0)


def test_a_claim_is_on_the_gpus_that_are_free_soonest() -> None:
    gpus = [make_gpu(f"GPU-{n}", index=n) for n in range(3)]
    busy = [
        running(make_job("a"), ("n0", ("GPU-0",)), held=reserve(8 * GIB)),
        running(make_job("b"), ("n0", ("GPU-0",)), held=reserve(8 * GIB)),
        running(make_job("c"), ("n0", ("GPU-1",)), held=reserve(12 * GIB)),
        running(make_job("d"), ("n0", ("GPU-2",)), held=reserve(4 * GIB)),
    ]
    assert claimed(make_job(), *busy, gpus=gpus) == {"GPU-2"}
    assert claimed(make_job(gpus_per_worker=2), *busy, gpus=gpus) == {"GPU-2", "GPU-1"}


def test_a_claim_of_a_worker_with_several_gpus_is_on_one_node() -> None:
    """I11: GPUs on two nodes would be kept free and never be enough."""
    one_busy_on_each = [
        running(make_job(f"j{n}"), (f"n{n}", (f"GPU-{n}b",)), held=reserve(8 * GIB))
        for n in range(2)
    ]
    found = claimed(make_job(gpus_per_worker=2), *one_busy_on_each, gpu_nodes=nodes_of_two(2))
    assert found == {"GPU-0a", "GPU-0b"}


def test_a_claim_is_on_gpus_of_one_model() -> None:
    gpus = [make_gpu("GPU-0"), make_gpu("GPU-1", model="NVIDIA L4", index=1)]
    assert claimed(make_job(workers=2), gpus=gpus) == frozenset()
    gpus.append(make_gpu("GPU-2", model="NVIDIA L4", index=2))
    assert claimed(make_job(workers=2), gpus=gpus) == {"GPU-1", "GPU-2"}


def test_what_can_never_fit_claims_nothing() -> None:
    """I11: an impossible job does not block the possible ones."""
    assert claimed(make_job(gpus_per_worker=4), gpu_nodes=nodes_of_two(2)) == frozenset()
    assert claimed(make_job(workers=5), gpu_nodes=nodes_of_two(2)) == frozenset()
    assert claimed(make_job(memory_bytes=40 * GIB)) == frozenset()
    assert claimed(make_job(models=("other",))) == frozenset()
    assert claimed(make_job(), nodes=[make_node(ready=False)]) == frozenset()
    assert claimed(make_job(), gpus=[make_gpu(healthy=False)]) == frozenset()


def test_a_gpu_full_of_unmanaged_processes_is_not_claimed() -> None:
    """I11: they go when they like; until then others may use what is left."""
    gpus = [make_gpu(unmanaged=10 * GIB)]
    assert claimed(make_job(memory_bytes=20 * GIB), gpus=gpus) == frozenset()
    assert claimed(make_job(memory_bytes=14 * GIB), gpus=gpus) == {"GPU-0"}


@pytest.mark.parametrize(
    "node",
    [
        make_node(cpu=64, cpu_milli_free=2000),
        make_node(memory_bytes_free=GIB),
        make_node(pods_allocatable=29, pods_free=0),
    ],
)
def test_a_node_that_other_pods_fill_is_not_claimed(node: NodeView) -> None:
    """I11: they go when they like; until then others may use the GPUs with what is left."""
    large = make_job(template=make_template(cpu="8", memory="2Gi"))
    assert claimed(large, nodes=[node]) == frozenset()
    assert claimed(large) == {"GPU-0"}


def test_a_gang_claims_no_more_places_of_a_node_than_its_host_has() -> None:
    """I11: else the GPUs beside other pods stay idle, and the gang never starts."""
    gang = make_job(workers=2, template=make_template(cpu="8"))
    rooms = [make_node("n0", cpu=64, cpu_milli_free=9000), make_node("n1")]
    one_each = claimed(gang, gpu_nodes=nodes_of_two(2), nodes=rooms)
    assert one_each == {"GPU-0a", "GPU-1a"}
    tight = [rooms[0], make_node("n1", cpu=64, cpu_milli_free=7000)]
    assert claimed(gang, gpu_nodes=nodes_of_two(2), nodes=tight) == frozenset()


def test_a_node_that_jobs_fill_is_free_once_they_have_left() -> None:
    """A GPU beside them is idle, and its worker finds no CPU before."""
    tenant = running(left(make_job("tenant"), steps=600), ("n0", ("GPU-0",)))
    two = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]
    full = make_node(cpu=8, cpu_milli_free=0)
    asked = {tenant.metadata.uid: PodRequests(8000, GIB)}
    large = make_job(template=make_template(cpu="8"))
    snapshot: dict[str, Any] = {"gpus": two, "nodes": [full], "pods": [make_pod(tenant)]}
    found = claim_of(large, tenant, requests=asked, **snapshot)
    assert found is not None
    assert 50 < found.start_seconds < 200
    assert found.gpus == on_n0("GPU-0", "GPU-1"), "another tenant would take the CPU"
    at_once = claim_of(make_job(), tenant, gpus=two)
    assert at_once is not None
    assert at_once.start_seconds == 0


def test_a_claim_is_where_jobs_end_first() -> None:
    """EASY backfill: the reservation of the head of the queue is at the earliest estimated time."""
    gpus = [make_gpu(f"GPU-{n}", index=n) for n in range(3)]
    busy = [
        left(running(make_job("a"), ("n0", ("GPU-0",)), held=reserve(4 * GIB)), 3000),
        left(running(make_job("b"), ("n0", ("GPU-1",)), held=reserve(20 * GIB)), 1000),
        running(make_job("c"), ("n0", ("GPU-2",)), held=reserve(GIB)),
    ]
    assert claim_of(make_job(), *busy, gpus=gpus) == Nomination(
        on_n0("GPU-1"), 100.0, is_estimated=True
    )
    both = claim_of(make_job(gpus_per_worker=2), *busy, gpus=gpus)
    assert both == Nomination(on_n0("GPU-0", "GPU-1"), 300.0, is_estimated=True)
    everything = claim_of(make_job(gpus_per_worker=3), *busy, gpus=gpus)
    assert everything is not None
    assert everything.start_seconds == inf
    assert describe_start(everything) == ""
    assert describe_start(Nomination(frozenset(), 300.0)) == "could start in about 300 s"


def test_a_gpu_that_is_free_already_is_ready_now() -> None:
    gpus = [make_gpu("GPU-0"), make_gpu("GPU-1", index=1)]
    busy = running(make_job("a"), ("n0", ("GPU-0",)))
    assert claim_of(make_job(), busy, gpus=gpus) == Nomination(on_n0("GPU-1"), 0.0)


def test_only_as_many_must_go_as_are_in_the_way() -> None:
    small = with_status(make_job("small"), measurement=measured(10 * GIB, utilization_percent=5))
    tenants = [
        left(running(make_job("a"), held=reserve(10 * GIB, utilization_percent=5)), 5000),
        left(running(make_job("b"), held=reserve(12 * GIB, utilization_percent=5)), 2000),
    ]
    assert claim_of(small, *tenants) == Nomination(on_n0("GPU-0"), 200.0, is_estimated=True)


def test_who_is_being_stopped_is_named_and_gone_at_its_deadline() -> None:
    stop = StopReason("Preempted", "makes room", after(20))
    leaving = running(make_job("a"), phase=JobPhase.STOPPING, stop=stop)
    assert claim_of(make_job(), leaving) == Nomination(on_n0("GPU-0"), 20.0, ("uid-a",))


def test_lengths_of_earlier_runs_count_for_their_like() -> None:
    done = [
        with_status(
            make_job("same", uid=f"uid-{n}"),
            phase=JobPhase.SUCCEEDED,
            started_at=T0,
            finished_at=after(seconds),
        )
        for n, seconds in enumerate((100, 900, 300))
    ]
    young = running(make_job("same", uid="young"), at=-50)
    old = running(make_job("same", uid="old"), at=-400)
    releases = ReleaseTimes.of([*done, young, old], T0)
    assert releases.expected_run_seconds(make_job("same")) == 300
    assert releases.expected_run_seconds(make_job("another")) == inf
    assert releases.seconds("young") == 250
    assert releases.seconds("old") == inf
    assert releases.seconds("nobody") == inf
