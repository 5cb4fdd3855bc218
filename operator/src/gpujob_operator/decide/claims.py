"""What a job that does not fit keeps free for itself, and when it could start there (I11).

The soonest start: for every card the moment at which enough of its tenants are expected to be
gone, then the cards that are ready first, each worker's on one node, all of one model. A claim is
kept for the rest of the cycle; who is sure to be gone before it starts may still use it (backfill).
"""

from dataclasses import dataclass
from itertools import islice
from math import inf

from gpujob_api.gpujob import Reservation
from gpujob_operator.decide.board import disturbed
from gpujob_operator.decide.capacity import Capacity, Card, NodeCapacity
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.interference import summed_utilization_limit_percent
from gpujob_operator.decide.needs import Needs, node_refusal
from gpujob_operator.decide.releases import Releases

# Until an agent has read its cards again and told it.
READING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Claim:
    """The cards, and in how many seconds the job could start on them (infinite: unknown).

    `making_room` names the jobs on them that are being stopped.
    """

    uuids: frozenset[str]
    start_seconds: float
    making_room: tuple[str, ...] = ()


# When a card is ready, how many must go first, its free memory; then the UUID.
_Soon = tuple[float, int, int, str]
_Place = tuple[_Soon, tuple[str, ...], tuple[str, ...]]


# The places of each model, soonest first.
Places = tuple[tuple[_Place, ...], ...]


def find_places(
    needs: Needs, capacity: Capacity, releases: Releases, configuration: Configuration
) -> Places:
    """Where a worker could be, and when, on every model that the job accepts."""
    return tuple(
        _on_model(needs, model, capacity, releases, configuration)
        for model in capacity.models(needs.job.spec.gpu.models)
    )


def soonest(
    needs: Needs, places: Places, releases: Releases, claimed: frozenset[str] = frozenset()
) -> Claim | None:
    """The claim with the earliest start; None when the job would not even fit were all our jobs
    gone. Cards in `claimed` are an earlier job's."""
    workers = needs.job.spec.workers
    best: list[_Place] | None = None
    for of_model in places:
        free = (place for place in of_model if claimed.isdisjoint(place[1]))
        chosen = list(islice(free, workers))
        if len(chosen) == workers and (best is None or chosen[-1] < best[-1]):
            best = chosen
    if best is None:
        return None
    stopping = {uid for _, _, tenants in best for uid in tenants if releases.stopping(uid)}
    return Claim(
        uuids=frozenset(uuid for _, uuids, _ in best for uuid in uuids),
        start_seconds=best[-1][0][0],
        making_room=tuple(sorted(stopping)),
    )


def _on_model(
    needs: Needs,
    model: str,
    capacity: Capacity,
    releases: Releases,
    configuration: Configuration,
) -> tuple[_Place, ...]:
    wanted = needs.reservation(model, capacity.largest_bytes(model), configuration)
    places: list[_Place] = []
    for node in nodes_for(needs, capacity):
        ready = [
            soon
            for card in node.cards
            if card.model == model and (soon := _ready(needs, wanted, card, releases)) is not None
        ]
        places += _groups(needs, sorted(ready))
    return tuple(sorted(places))


def _groups(needs: Needs, ready: list[tuple[_Soon, tuple[str, ...]]]) -> list[_Place]:
    """For each worker that the node could take: how soon, its cards, and who is on them."""
    count = needs.job.spec.gpus_per_worker
    found: list[_Place] = []
    for first in range(0, len(ready) - count + 1, count):
        group = ready[first : first + count]
        uuids = tuple(soon[-1] for soon, _ in group)
        tenants = tuple(sorted({uid for _, uids in group for uid in uids}))
        found.append((group[-1][0], uuids, tenants))
    return found


def _ready(
    needs: Needs, wanted: Reservation | None, card: Card, releases: Releases
) -> tuple[_Soon, tuple[str, ...]] | None:
    """When the card can take the worker, and who must be gone by then; None: never."""
    least_bytes = needs.least_bytes(card.model, wanted)
    if card.blocked or card.room_soon_bytes < least_bytes:
        return None
    if needs.exclusive and disturbed(card, soon=True):
        return None
    leaving = sorted((releases.seconds(t.job_uid), t.job_uid) for t in card.tenants)
    gone: list[str] = []
    ready_seconds = READING_SECONDS if card.leaving_bytes else 0.0
    while not fits_without(needs, wanted, card, frozenset(gone)):
        if len(gone) == len(leaving):
            return None
        seconds, uid = leaving[len(gone)]
        ready_seconds = max(ready_seconds, seconds)
        gone.append(uid)
    return (ready_seconds, len(gone), -card.free_bytes, card.uuid), tuple(gone)


def fits_without(
    needs: Needs, wanted: Reservation | None, card: Card, gone: frozenset[str]
) -> bool:
    """Whether the card could take a worker once these tenants have gone and another reading has
    come."""
    stay = [tenant for tenant in card.tenants if tenant.job_uid not in gone]
    if wanted is None:
        return not stay and card.room_soon_bytes >= needs.least_bytes(card.model, None)
    if any(tenant.whole_card for tenant in stay):
        return False
    held_bytes = sum(tenant.memory_bytes + tenant.excess_bytes for tenant in stay)
    if card.room_soon_bytes - held_bytes < wanted.memory_bytes:
        return False
    if not stay:
        return True
    limits = [tenant.max_slowdown_percent for tenant in stay]
    limit = min(*limits, needs.job.spec.sharing.max_slowdown_percent)
    total = sum(tenant.utilization_percent for tenant in stay) + wanted.utilization_percent
    return total <= summed_utilization_limit_percent(limit, card.law)


def nodes_for(needs: Needs, capacity: Capacity) -> list[NodeCapacity]:
    """Open nodes that the job may use, by name."""
    return [
        node
        for node in capacity.nodes.values()
        if not node.closed and not node_refusal(needs, node.node)
    ]


def describe(claim: Claim) -> str:
    """When the job could start, for its condition; "" when nobody can tell."""
    if claim.start_seconds == inf:
        return ""
    return f"could start in about {max(claim.start_seconds, 1.0):.0f} s"
