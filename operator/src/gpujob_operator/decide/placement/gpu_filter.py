"""Whether a worker fits on a GPU, as scalars."""

from gpujob_api.gpujob import Reservation
from gpujob_operator.decide.capacity.cluster import Card
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.placement.assumed import Board
from gpujob_operator.decide.placement.requirements import Needs


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


def held_bytes(needs: Needs, board: Board, configuration: Configuration) -> int:
    """What the job would hold of a card: the least over the models it may run on."""
    capacity = board.capacity
    wanted_models = needs.job.spec.gpu.models
    held: list[int] = []
    for model, largest in capacity.largest.items():
        if not wanted_models or model in wanted_models:
            wanted = needs.reservation(model, largest, configuration)
            held.append(largest if wanted is None else wanted.memory_bytes)
    return min(held, default=0)
