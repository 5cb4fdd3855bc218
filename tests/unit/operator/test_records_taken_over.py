"""Which pods' records a new leader relies on, where their GPUs were given to other jobs."""

import pytest

from gpujob_api.gpujob import GPUJobStatus
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from tests.harness.builders import GIB, make_gpu, make_job, placed, reserve
from tests.harness.manifests import gpu_node_manifest
from tests.harness.recorded_pods import (
    CONFIGURATION,
    PENDING,
    cache_of_pending,
    recorded_pod,
    see,
)


@pytest.fixture
def cache() -> Cache:
    return cache_of_pending(Dirty())


def shown(cache: Cache) -> GPUJobStatus:
    found = cache.listers.job(PENDING.metadata.uid)
    assert found is not None
    return found.status


def snapshot(cache: Cache) -> Snapshot:
    return cache.snapshot((), CONFIGURATION)


@pytest.mark.parametrize("in_doubt", [True, False])
def test_a_pod_whose_gpu_another_job_holds_is_not_taken_over(cache: Cache, in_doubt: bool) -> None:
    """It came when a later leader had given the GPU away, and no leader has asked it to go yet."""
    see(cache, placed(make_job("other"), ("n7", ("GPU-7",)), at=9.0), 2)
    cache.apply(Kind.POD, "ADDED", recorded_pod())
    cache.begin_to_lead(in_doubt=in_doubt)
    assert shown(cache) == PENDING.status
    found = snapshot(cache)
    assert (found.recorded, found.perhaps_placed) == ((), ("uid-job",))


def test_a_pod_that_has_ended_is_taken_over_whoever_holds_its_gpu(cache: Cache) -> None:
    """Its leader may have seen the end and given the GPU away, and not have written of it."""
    see(cache, placed(make_job("other"), ("n7", ("GPU-7",)), at=9.0), 2)
    cache.apply(Kind.POD, "ADDED", recorded_pod() | {"status": {"phase": "Succeeded"}})
    cache.begin_to_lead(in_doubt=True)
    assert snapshot(cache).recorded == ("uid-job",)


@pytest.mark.parametrize(("total_gib", "taken_over"), [(40, 2), (24, 1)])
def test_as_many_pods_of_a_gpu_are_taken_over_as_it_has_room_for(
    cache: Cache, total_gib: int, taken_over: int
) -> None:
    """The leader that placed them knew how large it is: of more, some came late."""
    gpu = make_gpu("GPU-7", total=total_gib * GIB)
    cache.apply(Kind.GPU_NODE, "ADDED", gpu_node_manifest("n7", gpu))
    for name in ("one", "two"):
        job, held = make_job(name), reserve(16 * GIB)
        see(cache, job, 1)
        at = 0.0 if name == "one" else 1.0
        pod = recorded_pod(placed(job, ("n7", ("GPU-7",)), held=held, at=at), f"uid-pod-{name}")
        cache.apply(Kind.POD, "ADDED", pod)
    cache.begin_to_lead(in_doubt=False)
    assert len(snapshot(cache).recorded) == taken_over
