"""What the GPUs of a job cost, by the hour and so far.

Jobs that share a GPU split its price by reserved memory.
"""

from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.prices import price_of_model
from gpujob_operator.decide.capacity.sites import Sites
from gpujob_operator.decide.model.configuration import Configuration

_SECONDS_PER_HOUR = 3600


def hourly_rate(
    job: GPUJob, status: GPUJobStatus, sites: Sites, configuration: Configuration | None = None
) -> float | None:
    """Returns the price of the job's GPUs per hour, or None if the price of a node is unknown.

    With a configuration, a node that is gone costs the price of its GPU model.
    """
    placement = status.placement
    if placement is None:
        return None
    total = 0.0
    for worker, site in zip(placement.workers, sites, strict=False):
        if site.facts is not None:
            price = site.facts.price_per_gpu_hour
        elif configuration is not None:
            price = price_of_model(placement.gpu_model, configuration, spot=placement.spot)
        else:
            price = None
        if price is None:
            return None
        total += sum(price * _share(job, site.gpu(uuid)) for uuid in worker.gpus)
    return total


def cost_so_far(
    job: GPUJob, sites: Sites, configuration: Configuration, held_seconds: float
) -> float | None:
    """Returns the cost of all attempts up to the end of this one, at the rate of its end."""
    rate, before = hourly_rate(job, job.status, sites, configuration), job.status.cost
    if rate is None:
        return before
    return round((before or 0.0) + rate * held_seconds / _SECONDS_PER_HOUR, 4)


def cost_text(job: GPUJob, status: GPUJobStatus, sites: Sites) -> str:
    """Returns the price of the job's GPUs per hour, and what earlier attempts cost."""
    spent = f"${status.cost:.2f}" if status.cost is not None else ""
    rate = hourly_rate(job, status, sites) if not status.finished else None
    if rate is None:
        return spent
    spot = " spot" if status.placement is not None and status.placement.spot else ""
    return f"${rate:.2f}/h{spot}" + (f" after {spent}" if spent else "")


def _share(job: GPUJob, gpu: GPUCapacity | None) -> float:
    if gpu is None or gpu.reserved_bytes == 0:
        return 1.0
    mine = sum(t.memory_bytes for t in gpu.tenants if t.job_uid == job.metadata.uid)
    return mine / gpu.reserved_bytes if mine else 1.0
