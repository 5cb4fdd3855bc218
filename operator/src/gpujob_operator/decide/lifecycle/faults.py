"""Why a running attempt must leave its cards: its node goes, its card is sick or over full."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpujob_api.gpujob import GPUJob, GPUJobStatus, StopReason
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity.availability import BlockedReason, ClosedReason
from gpujob_operator.decide.capacity.cluster import Card
from gpujob_operator.decide.capacity.sites import NodeFacts, Sites, cards_at
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.grace import stop_seconds
from gpujob_operator.decide.model.stop_reasons import CARD_OVERFULL, CARD_UNHEALTHY, NODE_RECLAIMED

# A time in seconds since 1970; ten digits last until 2286.
_SECONDS = re.compile(r"^[0-9]{1,10}$", re.ASCII)


def of(job: GPUJob, sites: Sites, configuration: Configuration, now: datetime) -> StopReason | None:
    """The first trouble on any of the job's nodes and cards, in a fixed order."""
    grace = timedelta(seconds=stop_seconds(job, configuration))
    for site in sites:
        if site.facts is None:
            continue
        found = _reclaimed(site.node, site.facts, now, grace)
        if found is not None:
            return found
        closed = site.facts.closed
        if closed is not None and closed.reason is ClosedReason.STALE:
            continue  # Stale telemetry never stops a job (I14).
        for card in site.cards:
            blocked = card.blocked
            if blocked is not None and blocked.reason is BlockedReason.UNHEALTHY:
                message = f"card {card.uuid} on {site.node} is {blocked.text}"
                return StopReason(CARD_UNHEALTHY, message, now + grace)
    return _outgrown(job, sites, now + grace)


def _reclaimed(node: str, facts: NodeFacts, now: datetime, grace: timedelta) -> StopReason | None:
    taint = next((t for t in facts.taints if t.key == TAINT_RECLAIM), None)
    if taint is None:
        return None
    deadline = now + grace
    if _SECONDS.match(taint.value):
        noticed = datetime.fromtimestamp(int(taint.value), UTC)
        deadline = min(deadline, max(noticed, now + timedelta(seconds=1)))
    left = (deadline - now).total_seconds()
    message = f"node {node} is being reclaimed, {left:.0f} s are left"
    return StopReason(NODE_RECLAIMED, message, deadline)


def _outgrown(job: GPUJob, sites: Sites, deadline: datetime) -> StopReason | None:
    """Of the tenants of an over-full card, the one that uses most above what it holds, else the
    largest.

    A card is over full when its free memory is negative. A stranger alone never makes a job move:
    the job keeps what it holds, and the condition says so.
    """
    for card in cards_at(sites):
        if card.free_bytes >= 0 or len(card.tenants) < 2:
            continue
        moved = max(card.tenants, key=lambda t: (t.excess_bytes, t.memory_bytes, t.job_uid))
        crowded = replace(card, external_bytes=0).free_bytes < 0
        if crowded and moved.job_uid == job.metadata.uid:
            return StopReason(CARD_OVERFULL, pressure_message(card), deadline)
    return None


def unreachable(sites: Sites, configuration: Configuration, now: datetime) -> str:
    """That a node of the attempt has not answered for too long, with the numbers; or "".

    It proves nothing: its pods may still run. The job waits until the node is back or gone (I3).
    """
    for site in sites:
        since = site.facts.not_ready_since if site.facts is not None else None
        silent_seconds = (now - since).total_seconds() if since is not None else 0.0
        if silent_seconds > configuration.node_lost_seconds:
            return (
                f"node {site.node} has not answered for {silent_seconds:.0f} s; the job goes on "
                "elsewhere once its Node object is removed, or here when it is back"
            )
    return ""


def pressure_message(card: Card) -> str:
    return (
        f"card {card.uuid}: {format_memory(card.reserved_bytes)} reserved by "
        f"{len(card.tenants)} jobs + {format_memory(card.excess_bytes)} used above that + "
        f"{format_memory(card.external_bytes)} used by strangers + "
        f"{format_memory(card.driver_bytes)} driver > {format_memory(card.total_bytes)}"
    )


def pressure(status: GPUJobStatus, sites: Sites) -> Card | None:
    """The first over-full card that a job of this status is on, or None."""
    if status.placement is None or status.finished:
        return None
    return next((card for card in cards_at(sites) if card.free_bytes < 0), None)
