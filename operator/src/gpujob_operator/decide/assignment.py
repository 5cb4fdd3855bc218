"""Cards for one job, all its workers or none, and for one that fits nowhere the reasons.

The order of preference is that of `placement.choose`: the spot policy, then what costs the jobs
still to come the least, then the cheaper node, then the first name. Stable: the same snapshot
always gives the same answer.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from gpujob_api.gpujob import (
    Placement,
    Reservation,
    ReservationSource,
    SpotPolicy,
    WorkerPlacement,
)
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.board import Board, Place, disturbed
from gpujob_operator.decide.capacity import Capacity, Card, NodeCapacity, Tenant
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.interference import summed_utilization_limit_percent
from gpujob_operator.decide.needs import Needs, node_refusal
from gpujob_operator.decide.placement import Request, SpotPreference

_SPOT = {
    SpotPolicy.PREFER: SpotPreference.PREFER,
    SpotPolicy.REQUIRE: SpotPreference.REQUIRE,
    SpotPolicy.NEVER: SpotPreference.NEVER,
}


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where the job goes and what it holds; `take_on` makes it so for the rest of the cycle."""

    placement: Placement
    reservation: Reservation
    request: Request
    places: tuple[Place, ...]
    tenant: Tenant

    def take_on(self, board: Board) -> None:
        for place in self.places:
            board.take(place, self.request, self.tenant)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job fits nowhere now. `possible` is False when it never can on these cards."""

    message: str
    possible: bool
    counts: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class _Misfit:
    """A card that does not do: the finding, and what is missing in bytes where that is it."""

    finding: str
    missing_bytes: int = 0
    possible: bool = True


def assign(
    needs: Needs, board: Board, configuration: Configuration, length_seconds: float = inf
) -> Assignment | Refusal:
    """A place for every worker of the job, or with numbers why not. Leaves the board as it was.

    All cards of a gang are of one model, so that its workers run at one speed. `length_seconds` is
    how long the job will run, as far as known: short ones may use cards that wait for a long one.
    """
    filler = board.may_fill(length_seconds)
    alike = (needs.alike, filler)
    known = board.refusals.get(alike)
    if isinstance(known, Refusal):
        return known
    best: Assignment | None = None
    refusal: Refusal | None = None
    start = board.mark()
    for model in _models(needs, board.capacity):
        found = _assign_on_model(needs, model, board, configuration, filler=filler)
        board.back(start)
        if isinstance(found, Refusal):
            refusal = refusal or found
        elif best is None or _better(found, best, needs):
            best = found
    if best is not None:
        return best
    refusal = refusal or _no_model(needs, board.capacity)
    board.refusals[alike] = refusal
    return refusal


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
    needs: Needs, model: str, board: Board, configuration: Configuration, *, filler: bool
) -> Assignment | Refusal:
    wanted = needs.reservation(model, board.capacity.largest_bytes(model), configuration)
    request = _request(needs, model, wanted, board)
    places: list[Place] = []
    held = wanted
    for rank in range(needs.job.spec.workers):
        place = board.choose(request, undisturbed=needs.exclusive, filler=filler)
        if place is None:
            return _explain(needs, model, wanted, board, rank)
        if wanted is None:
            held = _smaller(held, _whole(needs, place.cards))
        assert held is not None, "known, or the whole card"
        board.take(place, request, _tenant(needs, held))
        places.append(place)
    assert held is not None, "a job has at least one worker"
    return Assignment(
        placement=Placement(
            workers=tuple(
                WorkerPlacement(rank, place.node, tuple(card.uuid for card in place.cards))
                for rank, place in enumerate(places)
            ),
            spot=all(board.capacity.nodes[place.node].node.spot for place in places),
            gpu_model=model,
        ),
        reservation=held,
        request=request,
        places=tuple(places),
        tenant=_tenant(needs, held),
    )


def _request(needs: Needs, model: str, wanted: Reservation | None, board: Board) -> Request:
    demand = needs.demand(model, wanted)
    allowed = [
        name for name, node in board.capacity.nodes.items() if not node_refusal(needs, node.node)
    ]
    everywhere = len(allowed) == len(board.capacity.nodes)
    return Request(
        demand=demand,
        nodes=None if everywhere else board.mask(allowed),
        spot=_SPOT[needs.job.spec.spot.policy],
        utilization_limit_percent=summed_utilization_limit_percent(
            needs.job.spec.sharing.max_slowdown_percent
        ),
    )


def _tenant(needs: Needs, held: Reservation) -> Tenant:
    return Tenant(
        job_uid=needs.job.metadata.uid,
        memory_bytes=held.memory_bytes,
        utilization_percent=held.utilization_percent,
        whole_card=held.source is ReservationSource.WHOLE_CARD,
        max_slowdown_percent=needs.job.spec.sharing.max_slowdown_percent,
    )


def _smaller(one: Reservation | None, other: Reservation) -> Reservation:
    """Whole cards of one model can differ by what the driver keeps; the gang holds the least."""
    return one if one is not None and one.memory_bytes <= other.memory_bytes else other


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
    if needs.exclusive and disturbed(card):
        return _Misfit(f"used by strangers ({format_memory(card.others_bytes)})")
    if card.free_bytes < least:
        stranger = disturbed(card)
        finding = "too full, strangers included" if stranger else "too full"
        return _Misfit(finding, least - card.free_bytes)
    return _slowed(needs, wanted, card) if wanted is not None else None


def _slowed(needs: Needs, wanted: Reservation, card: Card) -> _Misfit | None:
    if not card.tenants:
        return None
    total = card.utilization_percent + wanted.utilization_percent
    limits = [tenant.max_slowdown_percent for tenant in card.tenants]
    limit = min(*limits, needs.job.spec.sharing.max_slowdown_percent)
    if total <= summed_utilization_limit_percent(limit):
        return None
    return _Misfit(f"busy: {total:.0f} % together would slow a job by over {limit} %")


def _explain(
    needs: Needs, model: str, wanted: Reservation | None, board: Board, placed: int
) -> Refusal:
    """Counts the cards by what keeps the job off them, and names the nearest fit."""
    counts: Counter[str] = Counter()
    nearest: tuple[int, str] | None = None
    places = 0
    for node in board.capacity.nodes.values():
        on_node = _node_misfit(needs, node)
        possible = 0
        for card in node.cards:
            if card.model != model:
                continue
            misfit = on_node or _card_misfit(needs, wanted, card, board.claimed)
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
