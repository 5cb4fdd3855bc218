"""Who else is on a running job's GPUs: what of that shows, and what is nothing to it."""

from dataclasses import replace

import pytest

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPU
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry, SharedPace
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_operator.decide.cache.quiescence import cotenants_irrelevant
from gpujob_operator.decide.capacity.sites import sites_of
from gpujob_operator.decide.lifecycle.cost import cost_text
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.profile import with_entries
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.conditions import ConditionWriter
from tests.harness.builders import (
    MODEL,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_snapshot,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.capacity import build_capacity

ALONE_SECONDS = 0.1
# Two jobs of 20 % each on the GPU: nothing new to say of that.
SAID = SharedPace(up_to_percent=50, slowdown_percent=5.0)


def tenant(name: str, step_seconds: float = 0.105, percent: float = 20.0) -> GPUJob:
    known = replace(measured(4 * GIB, step=100), current=Timing(step_seconds, 4 * GIB))
    held = reserve(5 * GIB, utilization_percent=percent)
    return with_status(running(make_job(name), held=held), measurement=known)


def profile_of(job: GPUJob, *said: SharedPace) -> GPUProfile:
    entry = ProfileEntry(
        gpu_model=MODEL,
        torch_version="",
        memory_bytes=4 * GIB,
        utilization_percent=20.0,
        samples=10,
        updated_at=T0,
        current=Timing(ALONE_SECONDS, 4 * GIB),
        alone_step_seconds=ALONE_SECONDS,
        shared=said,
    )
    return with_entries(job, None, (entry,))


def nothing(
    job: GPUJob,
    *others: GPUJob,
    said: tuple[SharedPace, ...] = (SAID,),
    gpu: GPU | None = None,
    price: float | None = None,
    cost: str | None = None,
) -> bool:
    """Whether these neighbours change nothing; `cost` is the one that was told, else the true
    one."""
    node = make_gpu_node("n0", gpu or make_gpu("GPU-0"), price=price)
    capacity = build_capacity(make_snapshot(job, *others, gpu_nodes=[node]), T0, {})
    sites = sites_of(job.status.placement, capacity)
    told = cost_text(job, job.status, sites) if cost is None else cost
    job = with_status(job, summary=replace(job.status.summary, cost=told))
    inputs = JobInputs(sites=sites, profile=profile_of(job, *said))
    return cotenants_irrelevant(job, job.status, inputs)


def slowed(job: GPUJob, *, now: bool) -> GPUJob:
    writer = ConditionWriter(job, job.status, T0)
    writer.set(conditions.SLOWED, now, "CoTenants", "")
    return replace(job, status=writer.status())


def test_one_more_of_whom_all_is_said_already() -> None:
    assert nothing(tenant("a"), tenant("b"))
    assert nothing(tenant("a"), tenant("b", percent=10.0), tenant("c", percent=10.0))
    assert nothing(slowed(tenant("a"), now=False), tenant("b"))


def test_a_job_that_nobody_can_compare() -> None:
    unknown = with_status(tenant("a"), measurement=None)
    assert nothing(unknown, tenant("b"), said=())


def test_alone_again_its_profile_may_learn() -> None:
    assert not nothing(tenant("a"))


def test_a_gpu_that_is_sick_or_over_full() -> None:
    assert not nothing(tenant("a"), tenant("b"), gpu=make_gpu(healthy=False))
    assert not nothing(tenant("a"), tenant("b"), gpu=make_gpu(unmanaged=20 * GIB))


@pytest.mark.parametrize("seconds", [0.105, 0.13])
@pytest.mark.parametrize("was", [False, True])
def test_slowed_too_much_is_said_and_taken_back(seconds: float, *, was: bool) -> None:
    """10 % are allowed, and 5 points are noise."""
    said = SharedPace(50, 100.0 * (seconds / ALONE_SECONDS - 1.0))
    job = slowed(tenant("a", seconds), now=was)
    assert nothing(job, tenant("b"), said=(said,)) is (was is (seconds > 0.115))


def test_another_share_of_the_price() -> None:
    """Half of a GPU at $2 an hour."""
    assert nothing(tenant("a"), tenant("b"), price=2.0, cost="$1.00/h")
    assert not nothing(tenant("a"), tenant("b"), price=2.0, cost="$2.00/h")
    assert not nothing(
        tenant("a"), tenant("b"), tenant("c", percent=5.0), price=2.0, cost="$1.00/h"
    )
    assert not nothing(tenant("a"), tenant("b"), cost="$1.00/h")


@pytest.mark.parametrize(
    ("said", "percent"),
    [((), 20.0), ((SAID,), 40.0), ((replace(SAID, slowdown_percent=0.0),), 20.0)],
    ids=["nothing", "fewer", "less"],
)
def test_a_pace_that_the_profile_does_not_know(
    said: tuple[SharedPace, ...], percent: float
) -> None:
    assert not nothing(tenant("a", 0.1051), tenant("b", percent=percent), said=said)
