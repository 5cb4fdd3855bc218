"""Whether a worker fits on a GPU, and if not, why: the one rule. The arrays of `packing.filter` and
the columns of `backfill.earliest_start` follow it."""

from collections.abc import Set
from dataclasses import replace

from gpujob_operator.decide.capacity.cluster import Card, has_external_use
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.finding import NO_CARDS, UnfitReason
from gpujob_operator.decide.placement.requirements import JobRequirements, WorkerRequest, resolve

_NOMINATED = UnfitReason("kept for an earlier job")
_TAKEN = UnfitReason("held whole by another job")
_TOO_SMALL = UnfitReason("too small")
_TOO_FULL = UnfitReason("too full")
_TOO_FULL_BY_EXTERNAL_USE = UnfitReason("too full, strangers included")
_UNMEASURED = UnfitReason("shared already, and this job starts alone until it is measured")
# With the figure in bytes.
EXTERNAL_USE = "used by strangers ({})"
# What keeps a worker off a GPU, and what is missing in bytes where that is it.
Misfit = tuple[UnfitReason, int]


def why_not(request: WorkerRequest, card: Card, nominated: Set[str] = NO_CARDS) -> Misfit | None:
    """What keeps the worker off this GPU of its model; None where it fits. `nominated` are GPUs
    that are kept for other jobs."""
    if card.blocked is not None:
        return render_reason(f"blocked ({card.blocked.reason.value})"), 0
    room = card.total_bytes - card.driver_bytes
    if request.least_bytes > room:
        return _TOO_SMALL, request.least_bytes - room
    if card.uuid in nominated:
        return _NOMINATED, 0
    if card.held_whole:
        return _TAKEN, 0
    if request.wanted is None and card.tenants:
        return _UNMEASURED, 0
    if request.exclusive and has_external_use(card):
        return UnfitReason(EXTERNAL_USE, card.external_bytes), 0
    if card.free_bytes < request.least_bytes:
        finding = _TOO_FULL_BY_EXTERNAL_USE if has_external_use(card) else _TOO_FULL
        return finding, request.least_bytes - card.free_bytes
    return _slowed(request, card)


def _slowed(request: WorkerRequest, card: Card) -> Misfit | None:
    if request.wanted is None or not card.tenants:
        return None
    total = card.utilization_percent + request.wanted.utilization_percent
    limits = [tenant.max_slowdown_percent for tenant in card.tenants]
    limit = min(*limits, request.max_slowdown_percent)
    if total <= summed_utilization_limit_percent(limit, card.law):
        return None
    return UnfitReason(f"busy: {{}} % together would slow a job by over {limit} %", round(total)), 0


def render_reason(text: str) -> UnfitReason:
    """Words of somebody else, braces included."""
    return UnfitReason(text.replace("{", "{{").replace("}", "}}"))


def after_departures(card: Card, gone: Set[str]) -> Card:
    """The GPU once these jobs have left it and another reading has come."""
    if not gone and not card.terminating_bytes:
        return card
    return replace(
        card,
        tenants=tuple(tenant for tenant in card.tenants if tenant.job_uid not in gone),
        external_bytes=card.external_bytes - card.terminating_bytes,
        terminating_bytes=0,
    )


def least_reservation_bytes(
    needs: JobRequirements, board: AssumedCapacity, configuration: Configuration
) -> int:
    """What the job would hold of a card: the least over the models it may run on."""
    capacity = board.capacity
    wanted_models = needs.job.spec.gpu.models
    held: list[int] = []
    for model, largest in capacity.largest.items():
        if not wanted_models or model in wanted_models:
            wanted = resolve(needs, model, capacity, configuration).wanted
            held.append(largest if wanted is None else wanted.memory_bytes)
    return min(held, default=0)
