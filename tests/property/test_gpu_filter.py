"""The arrays on which placement chooses say of each GPU what the rule says of it alone."""

import numpy as np
from hypothesis import given

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.packing.request import Request
from gpujob_operator.decide.packing.select import free_gpus
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.finding import NO_GPUS
from gpujob_operator.decide.placement.gpu_filter import why_not
from gpujob_operator.decide.placement.requirements import WorkerRequest, requirements_of, resolve
from tests.harness.builders import T0, make_job, measured, with_status
from tests.property.test_starts import CONFIGURATION, WAITING, pictures


def known(name: str, gib: int, percent: float, most: int) -> GPUJob:
    job = make_job(name, max_slowdown_percent=most)
    return with_status(job, measurement=measured(gib * GIB, utilization_percent=percent))


JOBS = (
    *WAITING,
    make_job("unknown"),
    make_job("alone", sharing=SharingMode.EXCLUSIVE),
    *(
        known(f"k{most}", gib, percent, most)
        for gib, percent, most in ((3, 20.0, 0), (9, 60.0, 60))
    ),
)


def by_the_arrays(request: WorkerRequest, assumed: AssumedCapacity) -> set[str]:
    """GPUs that are free for the worker in the packed nodes."""
    packed = assumed._packed(no_external_use=request.exclusive, backfill=False)
    arrays, law = packed.arrays, assumed.capacity.law(request.model)
    limit = summed_utilization_limit_percent(request.max_slowdown_percent, law)
    asked = Request(
        request.demand, utilization_limit_percent=limit, party=request.requirements.party
    )
    free = free_gpus(arrays, np.arange(len(arrays.names)), asked)
    return {arrays.uuids[row][column] for row, column in np.argwhere(free).tolist()}


def by_the_rule(request: WorkerRequest, assumed: AssumedCapacity) -> set[str]:
    kept = assumed.nominated_on
    nodes = assumed.capacity.nodes.items()
    gpus = [(gpu, kept.get(name, NO_GPUS)) for name, node in nodes for gpu in node.gpus]
    ours = [(gpu, nominated) for gpu, nominated in gpus if gpu.model == request.model]
    return {gpu.uuid for gpu, nominated in ours if why_not(request, gpu, nominated) is None}


@given(pictures())
def test_arrays_and_rule_agree_on_every_gpu(picture: Snapshot) -> None:
    memory = SchedulerCache.of(picture)
    memory.update(picture, T0)
    assumed = memory.assumed()
    for claimed in ((), (("n0", "GPU-00"), ("n1", "GPU-11"))):
        assumed.nominate(claimed)
        for job in JOBS:
            for model in assumed.capacity.models(()):
                requirements = requirements_of(job, None, party=memory.groups.party(job))
                request = resolve(requirements, model, assumed.capacity, CONFIGURATION)
                assert by_the_arrays(request, assumed) == by_the_rule(request, assumed)
