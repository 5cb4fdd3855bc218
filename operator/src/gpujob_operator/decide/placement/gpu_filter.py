"""Decides whether a worker fits on a GPU and, if not, gives the reason.

The arrays of `packing` and the columns of `backfill.earliest_start` implement the same rule.
"""

from collections.abc import Set
from dataclasses import replace

from gpujob_operator.decide.capacity.cluster import Capacity, GPUCapacity, has_external_use
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.packing.party import may_join
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.finding import NO_GPUS, UnfitReason
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest, resolve

_NOMINATED = UnfitReason("nominated for an earlier job")
_TAKEN = UnfitReason("allocated exclusively to another job")
_TOO_SMALL = UnfitReason("too small")
_TOO_FULL = UnfitReason("too full")
_TOO_FULL_BY_EXTERNAL_USE = UnfitReason("too full, unmanaged processes included")
_UNMEASURED = UnfitReason("already shared, and an unmeasured job needs an idle GPU")
_OTHERS = UnfitReason("shared by jobs of another namespace and sharing group")
# The figure is in bytes.
EXTERNAL_USE = "used by unmanaged processes ({})"
# The reason, and the missing bytes if memory is the reason.
Misfit = tuple[UnfitReason, int]


def why_not(
    request: WorkerRequest, gpu: GPUCapacity, nominated: Set[str] = NO_GPUS
) -> Misfit | None:
    """Returns why the worker does not fit on this GPU of its model, or None if it fits.

    `nominated` are GPUs of the same node that are nominated for other jobs.
    """
    if gpu.blocked is not None:
        return render_reason(f"blocked ({gpu.blocked.reason.value})"), 0
    usable_bytes = gpu.total_bytes - gpu.driver_bytes
    if request.least_bytes > usable_bytes:
        return _TOO_SMALL, request.least_bytes - usable_bytes
    if gpu.uuid in nominated:
        return _NOMINATED, 0
    if gpu.held_whole:
        return _TAKEN, 0
    if request.wanted is None and gpu.tenants:
        return _UNMEASURED, 0
    if gpu.tenants and not may_join(request.requirements.party, gpu.party):
        return _OTHERS, 0
    if request.exclusive and has_external_use(gpu):
        return UnfitReason(EXTERNAL_USE, gpu.external_bytes), 0
    missing_bytes = request.least_bytes - gpu.free_bytes
    if missing_bytes > 0:
        return _TOO_FULL_BY_EXTERNAL_USE if has_external_use(gpu) else _TOO_FULL, missing_bytes
    return _slowed(request, gpu)


def _slowed(request: WorkerRequest, gpu: GPUCapacity) -> Misfit | None:
    if request.wanted is None or not gpu.tenants:
        return None
    total = gpu.utilization_percent + request.wanted.utilization_percent
    limits = [tenant.max_slowdown_percent for tenant in gpu.tenants]
    limit = min(*limits, request.max_slowdown_percent)
    if total <= summed_utilization_limit_percent(limit, gpu.law):
        return None
    return UnfitReason(
        f"busy: {{}} % in total would slow a job by more than {limit} %", round(total)
    ), 0


def render_reason(text: str) -> UnfitReason:
    """Escapes braces in text from outside the project."""
    return UnfitReason(text.replace("{", "{{").replace("}", "}}"))


def after_departures(gpu: GPUCapacity, gone: Set[str]) -> GPUCapacity:
    """Returns the GPU after these jobs have left it and another reading has arrived."""
    if not gone and not gpu.terminating_bytes:
        return gpu
    return replace(
        gpu,
        tenants=tuple(tenant for tenant in gpu.tenants if tenant.job_uid not in gone),
        external_bytes=gpu.external_bytes - gpu.terminating_bytes,
        terminating_bytes=0,
    )


def least_reservation_bytes(
    requirements: JobRequirements, assumed: AssumedCapacity, configuration: Configuration
) -> int:
    """Returns the job's smallest reservation on a GPU, over the models that it accepts."""
    held = reservations_bytes(requirements, assumed.capacity, configuration)
    return min(held.values(), default=0)


def reservations_bytes(
    requirements: JobRequirements, capacity: Capacity, configuration: Configuration
) -> dict[str, int]:
    """Returns the job's reservation on a GPU of each model that it accepts."""
    held: dict[str, int] = {}
    for model in requirements.models(capacity):
        wanted = resolve(requirements, model, capacity, configuration).wanted
        held[model] = capacity.largest[model] if wanted is None else wanted.memory_bytes
    return held
