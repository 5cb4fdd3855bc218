"""The capacity that is kept from cycle to cycle, where two nodes claim the same GPU."""

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    placed,
    statuses,
)

TRUTH = make_gpu_node("n0", make_gpu("GPU-0"))
CLAIM = make_gpu_node("n1", make_gpu("GPU-0"), make_gpu("GPU-1", index=1, healthy=False))
# What did not change is not looked at again.
NODES = (make_node("n0"), make_node("n1"))
WITHDRAWN = make_gpu_node("n1", make_gpu("GPU-1", index=1, healthy=False))


def picture(claim: GPUNode, *jobs: GPUJob) -> Snapshot:
    return make_snapshot(*jobs, gpu_nodes=(TRUTH, claim), nodes=NODES)


def is_held(cache: SchedulerCache, node: str) -> bool:
    gpu = cache.capacity.gpu(node, "GPU-0")
    assert gpu is not None
    return gpu.held_whole


def test_a_job_holds_the_gpu_of_its_own_node_whoever_else_claims_the_gpu() -> None:
    """I2: an agent that calls another node's GPU its own opens that GPU to nobody."""
    cache = SchedulerCache()
    cache.update(picture(WITHDRAWN, make_job("first")), after(0))
    cache.update(picture(CLAIM, make_job("first")), after(1))
    cache.update(picture(CLAIM, placed(make_job("first"))), after(2))
    assert is_held(cache, "n0")
    assert not is_held(cache, "n1")


def test_a_job_on_a_node_that_claims_a_gpu_takes_nothing_from_the_node_that_has_the_gpu() -> None:
    """I15: jobs that an agent lured to its node by a lie keep no GPU of others from anybody, and
    do not crowd it."""
    lured = placed(make_job("lured"), ("n1", ("GPU-0",)))
    tenant = placed(make_job("tenant"))
    cache = SchedulerCache()
    cache.update(picture(CLAIM, make_job("lured"), tenant), after(0))
    cache.update(picture(CLAIM, lured, tenant), after(1))
    gpu = cache.capacity.gpu("n0", "GPU-0")
    assert gpu is not None
    assert [one.job_uid for one in gpu.tenants] == ["uid-tenant"]


def test_a_claim_that_is_withdrawn_opens_the_gpu_to_nobody() -> None:
    """I2: whichever node said last that the GPU is its own, one job at a time has the GPU."""
    first, second = make_job("first"), make_job("second")
    cache = SchedulerCache()
    cache.update(picture(WITHDRAWN, first, second), after(0))
    cache.update(picture(CLAIM, first, second), after(1))
    cache.update(picture(WITHDRAWN, first, second), after(2))
    snapshot = picture(WITHDRAWN, placed(first), second)
    items = plan(snapshot, after(3), cache).items
    assert is_held(cache, "n0")
    assert statuses(items)["second"].placement is None
    assert plan(snapshot, after(3)).items == items
