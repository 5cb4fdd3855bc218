"""Decides why a running attempt must leave its GPUs.

Its node is about to go, or a GPU is unhealthy or over-full.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobFailure, ReservationSource, StopReason
from gpujob_api.quantities import format_count, format_memory
from gpujob_api.report import FailureClass
from gpujob_operator.decide.capacity.availability import BlockedReason, ClosedReason
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.capacity.sites import (
    NodeFacts,
    Sites,
    WorkerSite,
    gpus_at,
    gpus_by_place,
)
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.outcome import AttemptEnd, Outcome
from gpujob_operator.decide.measurement.reservation import reservable_bytes
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import memory_cap_bytes
from gpujob_operator.decide.model.notices import NoticeKind
from gpujob_operator.decide.model.snapshot import GPUUsage
from gpujob_operator.decide.model.stop_reasons import (
    GPU_GONE,
    GPU_OVERCOMMITTED,
    GPU_UNHEALTHY,
    MEMORY_CAP_EXCEEDED,
    NODE_DRAINED,
    NODE_RECLAIMED,
    rule_of,
)

_STOPS = {NoticeKind.RECLAIM: NODE_RECLAIMED, NoticeKind.DRAIN: NODE_DRAINED}


def of(
    job: GPUJob,
    sites: Sites,
    now: datetime,
    deadline: datetime,
    device_access: DeviceAccess,
    usage: GPUUsage | None = None,
) -> StopReason | None:
    """Returns the first fault of any of the job's nodes and GPUs, in a fixed order.

    `deadline` is the deadline of a stop that begins now.
    """
    fresh: list[GPUCapacity] = []
    for site in sites:
        if site.facts is None:
            continue
        found = _noticed(site.node, site.facts, now, deadline)
        if found is not None:
            return found
        if _is_stale(site.facts):
            continue  # Stale readings never stop a job (I14).
        unhealthy = _unhealthy_gpu(site)
        if unhealthy:
            return StopReason(GPU_UNHEALTHY, unhealthy, deadline)
        fresh += site.gpus
    if device_access is DeviceAccess.DEVICE_PLUGIN:
        # The kubelet assigns each GPU once. Two jobs on one GPU only mean that a reading is still
        # missing.
        return None
    return (
        _beyond_cap(job, fresh, deadline)
        or _overfull(job, sites, deadline)
        or _outgrown(job, sites, usage, deadline)
    )


def _noticed(node: str, facts: NodeFacts, now: datetime, deadline: datetime) -> StopReason | None:
    notice = facts.notice
    reason = _STOPS.get(notice.kind) if notice is not None else None
    if notice is None or reason is None:
        return None
    ends_at = notice.ends_at
    if notice.lead_seconds is not None:
        led_to = now + timedelta(seconds=notice.lead_seconds)
        ends_at = led_to if ends_at is None else min(ends_at, led_to)
    when = ""
    if ends_at is not None:
        ends_at = max(ends_at, now + timedelta(seconds=1))
        deadline, when = min(deadline, ends_at), f" in {(ends_at - now).total_seconds():.0f} s"
    sign = f" ({notice.sign})" if notice.sign else ""
    left = (deadline - now).total_seconds()
    message = f"node {node} {notice.kind.value}{when}{sign}; the workers have {left:.0f} s to end"
    return StopReason(reason, message, deadline)


def _overfull(job: GPUJob, sites: Sites, deadline: datetime) -> StopReason | None:
    """Returns the stop if this job must leave an over-full GPU.

    The tenant with the most use above its reservation leaves, or else the largest. A GPU is
    over-full if its free memory is negative. Unmanaged processes alone never make a job move. The
    job then keeps its reservation, and a condition reports it.
    """
    for gpu in gpus_at(sites):
        if gpu.free_bytes >= 0 or len(gpu.tenants) < 2:
            continue
        moved = max(gpu.tenants, key=lambda t: (t.excess_bytes, t.memory_bytes, t.job_uid))
        crowded = replace(gpu, external_bytes=0).free_bytes < 0
        if crowded and moved.job_uid == job.metadata.uid:
            return StopReason(GPU_OVERCOMMITTED, pressure_message(gpu), deadline)
    return None


def _beyond_cap(job: GPUJob, gpus: Iterable[GPUCapacity], deadline: datetime) -> StopReason | None:
    """Returns the stop of a job that uses more memory than the cap that it was placed with.

    It does not matter whether the GPU is full. The stop is the job's own failure, as if the worker
    had kept the cap and run out of memory. The agent's estimates do not count against a job until
    there is not enough memory for all.
    """
    cap_bytes = memory_cap_bytes(job)
    if cap_bytes is None:
        return None
    for gpu in gpus:
        for tenant in gpu.tenants:
            if tenant.job_uid != job.metadata.uid or tenant.excess_bytes <= 0:
                continue
            used_bytes = tenant.memory_bytes + tenant.excess_bytes
            proven_bytes = used_bytes - (tenant.estimated_bytes if gpu.free_bytes >= 0 else 0)
            if proven_bytes > cap_bytes + tenant.context_bytes:
                message = (
                    f"uses {format_memory(used_bytes)}; with sharing.mode Shared gpu.memory "
                    f"({format_memory(cap_bytes)}) is a cap"
                )
                return StopReason(MEMORY_CAP_EXCEEDED, message, deadline)
    return None


def _outgrown(
    job: GPUJob, sites: Sites, usage: GPUUsage | None, deadline: datetime
) -> StopReason | None:
    """Returns the stop of a job that uses more than it can reserve next to its co-tenants.

    It leaves before it needs as much again, because the co-tenants keep what they were promised.
    """
    held = job.status.reservation
    if usage is None or held is None or held.source is not ReservationSource.MEASURED:
        return None
    for place, gpu in gpus_by_place(sites).items():
        most_bytes = reservable_bytes(job, {place: gpu}, {})
        if len(gpu.tenants) < 2 or usage.memory_peak_bytes <= most_bytes:
            continue
        message = (
            f"was seen to use {format_memory(usage.memory_peak_bytes)} of GPU {gpu.uuid}, reserves "
            f"{format_memory(held.memory_bytes)}, and can have {format_memory(most_bytes)} beside "
            f"{format_count(len(gpu.tenants) - 1, 'job')}"
        )
        return StopReason(GPU_OVERCOMMITTED, message, deadline)
    return None


def unreachable(sites: Sites, configuration: Configuration, now: datetime) -> str:
    """Returns a message if a node of the attempt has not responded for too long, or "".

    Silence proves nothing, since the pods may still run. The job waits until the node is back or
    gone (I3).
    """
    for site in sites:
        since = site.facts.not_ready_since if site.facts is not None else None
        silent_seconds = (now - since).total_seconds() if since is not None else 0.0
        if silent_seconds > configuration.node_lost_seconds:
            return (
                f"node {site.node} has not answered for {silent_seconds:.0f} s; the job resumes "
                "on another node once the Node object is removed, or here once the node is back"
            )
    return ""


def gone(sites: Sites) -> str:
    """Returns a message about a node of the attempt that no longer exists, or ""."""
    node = next((site.node for site in sites if site.facts is None), None)
    if node is None:
        return ""
    return f"the Node object {node} is removed; the job goes on elsewhere once its pods are gone"


def pressure_message(gpu: GPUCapacity) -> str:
    return (
        f"GPU {gpu.uuid}: {format_memory(gpu.reserved_bytes)} reserved by "
        f"{format_count(len(gpu.tenants), 'job')} + "
        f"{format_memory(gpu.excess_bytes)} used above that + "
        f"{format_memory(gpu.external_bytes)} used by unmanaged processes + "
        f"{format_memory(gpu.driver_bytes)} driver > {format_memory(gpu.total_bytes)}"
    )


def pressure(status: GPUJobStatus, sites: Sites) -> GPUCapacity | None:
    """Returns the first over-full GPU of the job's placement, or None."""
    if status.placement is None or status.finished:
        return None
    return next((gpu for gpu in gpus_at(sites) if gpu.free_bytes < 0), None)


# An attempt that has reported within this time is alive, whatever a reading leaves out.
SILENT_SECONDS = 30.0


def gone_gpus(job: GPUJob, sites: Sites) -> str:
    """Returns a message about GPUs of the attempt that its nodes no longer show, or "".

    A reading without any GPU proves nothing.
    """
    placement = job.status.placement
    workers = placement.workers if placement is not None else ()
    for worker, site in zip(workers, sites, strict=False):
        gone = [uuid for uuid in worker.gpus if site.gpu(uuid) is None]
        if gone and site.facts is not None and tells(site):
            there = format_count(site.facts.gpus, "GPU")
            which, verb = ", ".join(gone[:3]), "is" if len(gone) == 1 else "are"
            return f"{which} of node {site.node} {verb} gone; its agent shows {there}"
    return ""


def stop_for_gone_gpus(
    job: GPUJob, inputs: JobInputs, now: datetime, deadline: datetime
) -> StopReason | None:
    """Returns the stop of an attempt that lost a GPU and no longer reports, or None."""
    gone = gone_gpus(job, inputs.sites)
    if not gone or seconds_until_silent(job, inputs, now) > 0:
        return None
    return StopReason(GPU_GONE, gone, deadline)


def seconds_until_silent(job: GPUJob, inputs: JobInputs, now: datetime) -> float:
    """Returns for how long the last report of the attempt still counts as a sign of life.

    A process that has just begun to receive reports may not have received one yet.
    """
    report = inputs.report
    speaks = report is not None and report.report.attempt == job.status.attempt
    heard = report.received_at if report is not None and speaks else None
    moments = [at for at in (heard, inputs.listening_since) if at is not None]
    if not moments:
        return 0.0
    return SILENT_SECONDS - (now - max(moments)).total_seconds()


def without_gpus_faults(job: GPUJob, outcome: Outcome, sites: Sites) -> Outcome:
    """Returns the outcome, changed to an interruption if a GPU may explain the failure.

    That is so if a GPU of the attempt is gone or unhealthy, and a worker failed for no known reason
    of its own.
    """
    failure = outcome.failure
    unexplained = failure is not None and failure.failure_class is FailureClass.UNKNOWN
    if outcome.end is not AttemptEnd.FAILED or failure is None or not unexplained:
        return outcome
    if rule_of(job.status.stop).failure is not None:
        return outcome
    gone = gone_gpus(job, sites)
    unhealthy = next((text for text in map(_unhealthy_gpu, sites) if text), "")
    if not gone and not unhealthy:
        return outcome
    text = f"{failure.message}; not counted, because {gone or unhealthy}"
    return replace(
        outcome,
        end=AttemptEnd.INTERRUPTED,
        failure=JobFailure(failure.failure_class, text),
        error="",
        gpu_broke=bool(unhealthy),
    )


def _unhealthy_gpu(site: WorkerSite) -> str:
    """Returns a message about the first unhealthy GPU of a fresh reading, or ""."""
    if site.facts is None or _is_stale(site.facts):
        return ""
    for gpu in site.gpus:
        blocked = gpu.blocked
        if blocked is not None and blocked.reason is BlockedReason.UNHEALTHY:
            return f"GPU {gpu.uuid} on {site.node} is {blocked.text}"
    return ""


def _is_stale(facts: NodeFacts) -> bool:
    return facts.closed is not None and facts.closed.stale


def tells(site: WorkerSite) -> bool:
    """Returns whether the node's readings are of now."""
    facts = site.facts
    if facts is None or not facts.gpus or _is_stale(facts):
        return False
    return facts.closed is None or facts.closed.reason is not ClosedReason.NOT_READY
