"""Cards for one job, all its workers or none, on a trial copy of the ledger.

Order of preference: the spot policy, then a card that is already shared and is left fullest (so
that whole cards stay whole), then the cheaper node, then the node with fewer free cards, then
names: stable, so that the same snapshot always gives the same answer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpujob_api.gpujob import (
    Placement,
    Reservation,
    ReservationSource,
    SpotPolicy,
    WorkerPlacement,
)
from gpujob_api.quantities import MIB, format_memory
from gpujob_operator.decide.capacity import Capacity, Card, NodeCapacity, Tenant
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.needs import Needs, node_refusal

# A stranger below this is the desktop or a monitoring tool, not a tenant.
STRANGER_NOISE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Assignment:
    placement: Placement
    reservation: Reservation
    capacity: Capacity


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job fits nowhere now. `possible` is False when it never can on these cards."""

    message: str
    possible: bool
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Fit:
    key: tuple[object, ...]
    node: str
    cards: tuple[Card, ...]
    reservation: Reservation


@dataclass(frozen=True, slots=True)
class _Misfit:
    """A card that does not do: the finding, and what is missing in bytes where that is it."""

    finding: str
    missing_bytes: int = 0
    possible: bool = True


def assign(
    needs: Needs, capacity: Capacity, claimed: frozenset[str], configuration: Configuration
) -> Assignment | Refusal:
    """Places every worker of the job, or says with numbers why not. `claimed` cards are not free.

    All cards of a gang are of one model, so that its workers run at one speed.
    """
    best: Assignment | None = None
    refusal: Refusal | None = None
    for model in _models(needs, capacity):
        found = _assign_on_model(needs, model, capacity, claimed, configuration)
        if isinstance(found, Refusal):
            refusal = refusal or found
        elif best is None or _better(found, best, needs):
            best = found
    if best is not None:
        return best
    return refusal or _no_model(needs, capacity)


def _models(needs: Needs, capacity: Capacity) -> list[str]:
    wanted = needs.job.spec.gpu.models
    present = {card.model for node in capacity.nodes.values() for card in node.cards}
    return sorted(model for model in present if not wanted or model in wanted)


def _no_model(needs: Needs, capacity: Capacity) -> Refusal:
    present = sorted({card.model for node in capacity.nodes.values() for card in node.cards})
    wanted = ", ".join(needs.job.spec.gpu.models) or "any"
    have = ", ".join(present) or "none: no node with an agent has joined"
    return Refusal(f"no card of model {wanted}; models in the cluster: {have}", possible=False)


def _better(one: Assignment, other: Assignment, needs: Needs) -> bool:
    """Between card models: spot as wished, then less memory held, then the model's name."""

    def key(assignment: Assignment) -> tuple[object, ...]:
        prefer = needs.job.spec.spot.policy is SpotPolicy.PREFER
        wrong = prefer and not assignment.placement.spot
        return wrong, assignment.reservation.memory_bytes, assignment.placement.gpu_model

    return key(one) < key(other)


def _assign_on_model(
    needs: Needs,
    model: str,
    capacity: Capacity,
    claimed: frozenset[str],
    configuration: Configuration,
) -> Assignment | Refusal:
    wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
    trial = capacity
    workers: list[WorkerPlacement] = []
    held: Reservation | None = None
    spot = True
    for rank in range(needs.job.spec.workers):
        fit = _best_fit(needs, model, wanted, trial, claimed)
        if fit is None:
            return _explain(needs, model, wanted, trial, claimed, rank)
        trial = _take(trial, fit, needs)
        workers.append(WorkerPlacement(rank, fit.node, tuple(c.uuid for c in fit.cards)))
        held = fit.reservation if held is None else _smaller(held, fit.reservation)
        spot = spot and capacity.nodes[fit.node].node.spot
    assert held is not None, "a job has at least one worker"
    return Assignment(Placement(tuple(workers), spot, model), held, trial)


def _smaller(one: Reservation, other: Reservation) -> Reservation:
    """Whole cards of one model can differ by what the driver keeps; the gang holds the least."""
    return one if one.memory_bytes <= other.memory_bytes else other


def _best_fit(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    capacity: Capacity,
    claimed: frozenset[str],
) -> _Fit | None:
    fits = [
        fit
        for node in capacity.nodes.values()
        if (fit := _fit_on_node(needs, model, wanted, node, claimed)) is not None
    ]
    return min(fits, key=lambda fit: fit.key, default=None)


def _fit_on_node(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    node: NodeCapacity,
    claimed: frozenset[str],
) -> _Fit | None:
    if _node_misfit(needs, node) is not None:
        return None
    fitting = [
        card
        for card in node.cards
        if card.model == model and _card_misfit(needs, wanted, card, claimed) is None
    ]
    count = needs.job.spec.gpus_per_worker
    if len(fitting) < count:
        return None
    cards = tuple(sorted(fitting, key=lambda card: (card.free_bytes, card.uuid))[:count])
    reservation = wanted if wanted is not None else _whole(needs, cards)
    idle = sum(1 for card in node.cards if not card.tenants)
    prefer = needs.job.spec.spot.policy is SpotPolicy.PREFER
    key = (
        prefer and not node.node.spot,
        wanted is not None and not any(card.tenants for card in cards),
        node.price_per_gpu_hour if node.price_per_gpu_hour is not None else float("inf"),
        sum(card.free_bytes for card in cards),
        idle,
        node.node.name,
    )
    return _Fit(key, node.node.name, cards, reservation)


def _whole(needs: Needs, cards: tuple[Card, ...]) -> Reservation:
    return Reservation(
        memory_bytes=min(card.free_bytes for card in cards),
        utilization_percent=100.0,
        source=ReservationSource.WHOLE_CARD,
        exclusive=needs.exclusive,
    )


def _node_misfit(needs: Needs, node: NodeCapacity) -> _Misfit | None:
    if node.closed:
        return _Misfit(node.closed)
    refusal = node_refusal(needs, node.node)
    if refusal:
        return _Misfit(refusal, possible=False)
    if node.cpu_milli_free < needs.cpu_milli:
        possible = needs.cpu_milli <= node.node.cpu_milli_allocatable
        return _Misfit(
            f"{needs.cpu_milli - node.cpu_milli_free} milli-CPU short", possible=possible
        )
    if node.memory_bytes_free < needs.memory_bytes:
        short = needs.memory_bytes - node.memory_bytes_free
        possible = needs.memory_bytes <= node.node.memory_bytes_allocatable
        return _Misfit(f"{format_memory(short)} host memory short", possible=possible)
    return None


def _card_misfit(
    needs: Needs, wanted: Reservation | None, card: Card, claimed: frozenset[str]
) -> _Misfit | None:
    if card.blocked:
        return _Misfit(f"blocked ({card.blocked.split(':')[0]})")
    room = card.total_bytes - card.driver_bytes
    least = needs.least_bytes(card.model, wanted)
    if least > room:
        return _Misfit("too small", least - room, possible=False)
    if card.uuid in claimed:
        return _Misfit("kept for an earlier job")
    if card.taken:
        return _Misfit("held whole by another job")
    if wanted is None and card.tenants:
        return _Misfit("shared already, and this job starts alone until it is measured")
    if needs.exclusive and card.others_bytes > STRANGER_NOISE_BYTES:
        return _Misfit(f"used by strangers ({format_memory(card.others_bytes)})")
    if card.free_bytes < least:
        stranger = card.others_bytes > STRANGER_NOISE_BYTES
        finding = "too full, strangers included" if stranger else "too full"
        return _Misfit(finding, least - card.free_bytes)
    return _slowed(needs, wanted, card) if wanted is not None else None


def _slowed(needs: Needs, wanted: Reservation, card: Card) -> _Misfit | None:
    if not card.tenants:
        return None
    total = card.utilization_percent + wanted.utilization_percent
    slowdown = predicted_slowdown_percent(total)
    limits = [tenant.max_slowdown_percent for tenant in card.tenants]
    limit = min(*limits, needs.job.spec.sharing.max_slowdown_percent)
    if slowdown <= limit:
        return None
    return _Misfit(f"busy: {total:.0f} % together would slow a job by over {limit} %")


def predicted_slowdown_percent(utilization_percent: float) -> float:
    """Slowdown of one of two neighbours by their summed utilization.

    Published means of 1,388 measured pairs (Lucid, ASPLOS'23): the relative speeds of both add up
    to 2.00 below 50 %, 1.93 below 80 %, 1.79 below 95 %. Above, time is shared in proportion.
    """
    if utilization_percent < 50:
        return 0.0
    if utilization_percent < 80:
        return 3.5
    if utilization_percent < 95:
        return 10.5
    return max(21.0, utilization_percent - 100.0)


def _take(capacity: Capacity, fit: _Fit, needs: Needs) -> Capacity:
    tenant = Tenant(
        job_uid=needs.job.metadata.uid,
        memory_bytes=fit.reservation.memory_bytes,
        utilization_percent=fit.reservation.utilization_percent,
        whole_card=fit.reservation.source is ReservationSource.WHOLE_CARD,
        max_slowdown_percent=needs.job.spec.sharing.max_slowdown_percent,
    )
    node = capacity.nodes[fit.node]
    taken = {card.uuid for card in fit.cards}
    cards = tuple(
        replace(card, tenants=(*card.tenants, tenant)) if card.uuid in taken else card
        for card in node.cards
    )
    node = replace(
        node,
        cards=cards,
        cpu_milli_free=node.cpu_milli_free - needs.cpu_milli,
        memory_bytes_free=node.memory_bytes_free - needs.memory_bytes,
    )
    return Capacity({**capacity.nodes, fit.node: node})


def _explain(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    capacity: Capacity,
    claimed: frozenset[str],
    placed: int,
) -> Refusal:
    """Counts the cards by what keeps the job off them, and names the nearest fit."""
    counts: Counter[str] = Counter()
    nearest: tuple[int, str] | None = None
    places = 0
    for node in capacity.nodes.values():
        on_node = _node_misfit(needs, node)
        possible = 0
        for card in node.cards:
            if card.model != model:
                continue
            misfit = on_node or _card_misfit(needs, wanted, card, claimed)
            counts[misfit.finding if misfit else "free, but too few on one node"] += 1
            possible += misfit is None or misfit.possible
            if misfit is not None and misfit.missing_bytes:
                nearest = min(nearest or (2**63, ""), (misfit.missing_bytes, _place(node, card)))
        places += possible // needs.job.spec.gpus_per_worker
    total = sum(counts.values())
    asked = needs.job.spec.workers * needs.job.spec.gpus_per_worker
    what = _what(needs, wanted)
    findings = "; ".join(f"{n} {finding}" for finding, n in sorted(counts.items()))
    gang = f" (room for {placed} of {needs.job.spec.workers} workers)" if placed else ""
    message = f"needs {asked} x {what}{gang}; of {total} cards: {findings}"
    if nearest is not None:
        message += f"; nearest: {nearest[1]}, {format_memory(nearest[0])} are missing"
    return Refusal(message, places >= needs.job.spec.workers, dict(counts))


def _what(needs: Needs, wanted: Reservation | None) -> str:
    if wanted is not None:
        return f"{format_memory(wanted.memory_bytes)} at {wanted.utilization_percent:.0f} %"
    hint = f" of at least {format_memory(needs.hint_bytes)}" if needs.hint_bytes else ""
    return f"a whole card{hint}"


def _place(node: NodeCapacity, card: Card) -> str:
    free = format_memory(max(card.free_bytes, 0))
    return f"{card.uuid} on {node.node.name} with {free} free of {format_memory(card.total_bytes)}"
