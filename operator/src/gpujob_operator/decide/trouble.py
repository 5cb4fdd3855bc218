"""Why a running attempt must leave its cards: its node goes, its card is sick or over full."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpujob_api.gpujob import GPUJob, GPUJobStatus, Placement, StopReason
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity import Capacity, Card, NodeCapacity, is_stale
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.grace import stop_seconds

NODE_RECLAIMED = "NodeReclaimed"
# A time in seconds since 1970; ten digits last until 2286.
_SECONDS = re.compile(r"^[0-9]{1,10}$", re.ASCII)


def find(
    job: GPUJob, capacity: Capacity, configuration: Configuration, now: datetime
) -> StopReason | None:
    """The first trouble on any of the job's nodes and cards, in a fixed order."""
    placement = job.status.placement
    if placement is None:
        return None
    grace = timedelta(seconds=stop_seconds(job, configuration))
    for worker in placement.workers:
        node = capacity.nodes.get(worker.node)
        if node is None:
            continue
        found = _reclaimed(node, now, grace)
        if found is not None:
            return found
        if is_stale(node.closed):
            continue  # Stale telemetry never stops a job (I14).
        for uuid in worker.gpus:
            card = node.card(uuid)
            if card is not None and card.blocked.startswith("unhealthy"):
                message = f"card {uuid} on {worker.node} is {card.blocked}"
                return StopReason("CardUnhealthy", message, now + grace)
    return _outgrown(job, placement, capacity, now + grace)


def _reclaimed(node: NodeCapacity, now: datetime, grace: timedelta) -> StopReason | None:
    taint = next((t for t in node.node.taints if t.key == TAINT_RECLAIM), None)
    if taint is None:
        return None
    deadline = now + grace
    if _SECONDS.match(taint.value):
        noticed = datetime.fromtimestamp(int(taint.value), UTC)
        deadline = min(deadline, max(noticed, now + timedelta(seconds=1)))
    left = (deadline - now).total_seconds()
    message = f"node {node.node.name} is being reclaimed, {left:.0f} s are left"
    return StopReason(NODE_RECLAIMED, message, deadline)


def _outgrown(
    job: GPUJob, placement: Placement, capacity: Capacity, deadline: datetime
) -> StopReason | None:
    """Of the tenants of an over-full card, the one that uses most above what it holds, else the
    largest.

    A card is over full when its free memory is negative. A stranger alone never makes a job move:
    the job keeps what it holds, and the condition says so.
    """
    for worker in placement.workers:
        for uuid in worker.gpus:
            card = capacity.card(worker.node, uuid)
            if card is None or card.free_bytes >= 0 or len(card.tenants) < 2:
                continue
            moved = max(card.tenants, key=lambda t: (t.excess_bytes, t.memory_bytes, t.job_uid))
            crowded = replace(card, others_bytes=0).free_bytes < 0
            if crowded and moved.job_uid == job.metadata.uid:
                return StopReason("CardOverfull", pressure_message(card), deadline)
    return None


def unreachable(
    placement: Placement, capacity: Capacity, configuration: Configuration, now: datetime
) -> str:
    """That a node of the attempt has not answered for too long, with the numbers; or "".

    It proves nothing: its pods may still run. The job waits until the node is back or gone (I3).
    """
    for worker in placement.workers:
        node = capacity.nodes.get(worker.node)
        since = node.node.not_ready_since if node is not None else None
        silent_seconds = (now - since).total_seconds() if since is not None else 0.0
        if silent_seconds > configuration.node_lost_seconds:
            return (
                f"node {worker.node} has not answered for {silent_seconds:.0f} s; the job goes on "
                "elsewhere once its Node object is removed, or here when it is back"
            )
    return ""


def pressure_message(card: Card) -> str:
    return (
        f"card {card.uuid}: {format_memory(card.reserved_bytes)} reserved by "
        f"{len(card.tenants)} jobs + {format_memory(card.excess_bytes)} used above that + "
        f"{format_memory(card.others_bytes)} used by strangers + "
        f"{format_memory(card.driver_bytes)} driver > {format_memory(card.total_bytes)}"
    )


def pressure(status: GPUJobStatus, capacity: Capacity) -> Card | None:
    """The first over-full card that a job of this status is on, or None."""
    placement = status.placement
    if placement is None or status.finished:
        return None
    for worker in placement.workers:
        for uuid in worker.gpus:
            card = capacity.card(worker.node, uuid)
            if card is not None and card.free_bytes < 0:
                return card
    return None
