"""Decides which job is migrated because co-tenants on a GPU slow each other too much."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, StopReason
from gpujob_api.settings import Task
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import is_awaited, stop_seconds
from gpujob_operator.decide.model.others import name_for
from gpujob_operator.decide.model.protection import why_unprotected
from gpujob_operator.decide.model.stop_reasons import SLOWED
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.requirements import CycleView
from gpujob_operator.decide.preemption.cost import interruption_gpu_seconds
from gpujob_operator.decide.preemption.victims import is_preemptible


@dataclass(frozen=True, slots=True)
class Move:
    """A job that is migrated for a co-tenant's sake or its own, with its utilization floor from
    then on.
    """

    job: GPUJob
    stop: StopReason
    utilization_floor_percent: float


def find_move(
    slowed: Iterable[GPUJob],
    view: CycleView,
    assumed: AssumedCapacity,
    configuration: Configuration,
    now: datetime,
) -> Move | None:
    """Returns the move off the first GPU on which a job has been slowed for long enough.

    The tenant that loses the least and fits on another GPU now is moved. Returns None if no GPU has
    such a tenant.
    """
    for job in slowed:
        found = conditions.find(job.status, conditions.SLOWED)
        if found is None:
            continue
        since_seconds = (now - found.last_transition_time).total_seconds()
        if since_seconds < configuration.slowed_seconds:
            continue
        for gpu in assumed.capacity.gpus_of(job.status):
            move = _off_gpu(job, gpu, view, assumed, configuration, now)
            if move is not None:
                return move
    return None


def _off_gpu(
    slowed: GPUJob,
    gpu: GPUCapacity,
    view: CycleView,
    assumed: AssumedCapacity,
    configuration: Configuration,
    now: datetime,
) -> Move | None:
    tenants = [view.running[t.job_uid] for t in gpu.tenants if t.job_uid in view.running]
    # A slower step costs less than a run that starts again from the beginning.
    candidates = [
        job
        for job in tenants
        if is_preemptible(job, configuration)
        and why_unprotected(job, configuration) is None
        # Its slowdown is not compared, and trainings beside it yield.
        and job.spec.optimize.task is not Task.SERVING
    ]
    leaving = any(is_awaited(job, now) for job in tenants)
    if leaving or len(tenants) < 2:
        return None
    for job in sorted(candidates, key=lambda job: _cost_key(job, configuration, now)):
        floor = _floor(job, slowed, gpu)
        raised = replace(job, status=replace(job.status, utilization_floor_percent=floor))
        requirements = replace(view.requirements_of(job.metadata.uid), job=raised)
        if isinstance(assign(requirements, assumed, configuration), Assignment):
            grace = timedelta(seconds=stop_seconds(job, configuration))
            message = f"migrated to another GPU because {_slowed(slowed, job)}"
            return Move(job, StopReason(SLOWED, message, now + grace), floor)
    return None


def _slowed(slowed: GPUJob, reader: GPUJob) -> str:
    """Returns why the reader is migrated.

    The step times of another namespace are as private as the job's name.
    """
    text = f"{name_for(reader, slowed)} is slowed"
    found = conditions.find(slowed.status, conditions.SLOWED)
    if found is None or slowed.metadata.namespace != reader.metadata.namespace:
        return text
    return f"{text}: {found.message}"


def _cost_key(job: GPUJob, configuration: Configuration, now: datetime) -> tuple[float, str]:
    return interruption_gpu_seconds(job, configuration, now), job.metadata.uid


def _floor(moved: GPUJob, slowed: GPUJob, gpu: GPUCapacity) -> float:
    """Returns a utilization floor that rules out the same co-tenants.

    With it, the sum on the same GPU exceeds the slowed job's limit.
    """
    others = sum(t.utilization_percent for t in gpu.tenants if t.job_uid != moved.metadata.uid)
    limit = summed_utilization_limit_percent(slowed.spec.sharing.max_slowdown_percent, gpu.law)
    return min(max(limit - others + 1.0, 1.0), 100.0)
