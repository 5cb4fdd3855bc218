"""Which nodes and cards can take a request, and for one that fits nowhere: why, in numbers.

Amounts are exact (bytes, milli-CPU, percent), unlike the steps in which room is valued.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpujob_operator.decide.fleet import Booleans, Fleet, Floats, Integers
from gpujob_operator.decide.fragmentation import Demand


@dataclass(frozen=True, slots=True)
class Nearest:
    """The node that lacks the least, and what it lacks. Resources that suffice are left out."""

    node: str
    missing: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request fits nowhere now: nodes by what rules them out first, and the nearest fit.

    Reasons, in the order of checks: `not eligible`, `no card of the model`, `cards too small`,
    `processor`, `host memory`, `cards in use`, `card memory`, `utilization`. Units of what is
    missing: `cpu_milli`, `memory_bytes`, `cards`, `card_memory_bytes`, `utilization_percent`.
    """

    nodes: int
    failed: Mapping[str, int] = field(default_factory=dict[str, int])
    nearest: Nearest | None = None


def host_fits(fleet: Fleet, rows: Integers, demand: Demand, allowed: Booleans) -> Booleans:
    """Rows that may be used and have the processor and the host memory."""
    return (
        allowed[rows]
        & (fleet.cpu_milli_free[rows] >= demand.cpu_milli)
        & (fleet.memory_bytes_free[rows] >= demand.memory_bytes)
    )


def free_cards(
    fleet: Fleet, rows: Integers, demand: Demand, utilization_limit_percent: float
) -> Booleans:
    """Cards that can take one card's part of the request: [row, column]."""
    fits = _open_cards(fleet, rows, demand)
    fits &= fleet.memory_free[rows] >= demand.card_memory_bytes
    return fits & (
        fleet.idle[rows] | (_over_percent(fleet, rows, demand, utilization_limit_percent) <= 0)
    )


def _of_model(fleet: Fleet, rows: Integers, demand: Demand) -> Booleans:
    present = fleet.memory_total[rows] > 0
    if not demand.models:
        return present
    of_kind = np.array([model in demand.models for model, _ in fleet.kinds], dtype=np.bool_)
    return present & of_kind[fleet.kind[rows]] if len(of_kind) else present


def _open_cards(fleet: Fleet, rows: Integers, demand: Demand) -> Booleans:
    cards = _of_model(fleet, rows, demand) & fleet.usable[rows] & ~fleet.taken[rows]
    return cards & fleet.idle[rows] if demand.exclusive else cards


def _over_percent(fleet: Fleet, rows: Integers, demand: Demand, limit_percent: float) -> Floats:
    """Utilization above what the card's tenants and the request itself put up with."""
    limit = np.minimum(fleet.utilization_limit[rows], limit_percent)
    return fleet.utilization_used[rows] + demand.utilization_percent - limit


def explain(
    fleet: Fleet, demand: Demand, allowed: Booleans, utilization_limit_percent: float
) -> Refusal:
    """Says why no node can take the request. Costs one pass over the fleet."""
    rows = np.arange(len(fleet.names))
    of_model = _of_model(fleet, rows, demand)
    large = of_model & (fleet.memory_total >= demand.card_memory_bytes)
    open_cards = large & _open_cards(fleet, rows, demand)
    roomy = open_cards & (fleet.memory_free >= demand.card_memory_bytes)
    quiet = roomy & free_cards(fleet, rows, demand, utilization_limit_percent)
    checks: tuple[tuple[str, Booleans], ...] = (
        ("not eligible", allowed),
        ("no card of the model", of_model.sum(axis=1) >= demand.cards),
        ("cards too small", large.sum(axis=1) >= demand.cards),
        ("processor", fleet.cpu_milli_free >= demand.cpu_milli),
        ("host memory", fleet.memory_bytes_free >= demand.memory_bytes),
        ("cards in use", open_cards.sum(axis=1) >= demand.cards),
        ("card memory", roomy.sum(axis=1) >= demand.cards),
        ("utilization", quiet.sum(axis=1) >= demand.cards),
    )
    left = np.ones(len(rows), dtype=np.bool_)
    failed: dict[str, int] = {}
    for reason, passed in checks:
        count = int((left & ~passed).sum())
        if count:
            failed[reason] = count
        left &= passed
    could = rows[allowed & (large.sum(axis=1) >= demand.cards)]
    nearest = _nearest(fleet, demand, could, utilization_limit_percent) if len(could) else None
    return Refusal(len(rows), failed, nearest)


def _nearest(fleet: Fleet, demand: Demand, rows: Integers, limit_percent: float) -> Nearest | None:
    """The row with the smallest sum of shortages, each relative to what is asked for."""
    cpu = np.maximum(demand.cpu_milli - fleet.cpu_milli_free[rows], 0)
    memory = np.maximum(demand.memory_bytes - fleet.memory_bytes_free[rows], 0)
    free = free_cards(fleet, rows, demand, limit_percent)
    cards = np.maximum(demand.cards - free.sum(axis=1), 0)
    card_memory, utilization = _card_shortage(fleet, demand, rows, limit_percent)
    shortage = (
        cpu / max(demand.cpu_milli, 1)
        + memory / max(demand.memory_bytes, 1)
        + cards / max(demand.cards, 1)
        + np.minimum(card_memory / max(demand.card_memory_bytes, 1), 1.0)
        + np.minimum(utilization / 100, 1.0)
    )
    at = int(np.argmin(shortage))
    amounts = {
        "cpu_milli": float(cpu[at]),
        "memory_bytes": float(memory[at]),
        "cards": float(cards[at]),
        "card_memory_bytes": float(card_memory[at]),
        "utilization_percent": float(utilization[at]),
    }
    missing = {name: amount for name, amount in amounts.items() if amount > 0}
    return Nearest(fleet.names[int(rows[at])], missing)


def _card_shortage(
    fleet: Fleet, demand: Demand, rows: Integers, limit_percent: float
) -> tuple[Floats, Floats]:
    """What the best cards that are open lack: of the last card needed, bytes and percent."""
    nothing = np.zeros(len(rows))
    if not demand.cards:
        return nothing, nothing
    open_cards = _open_cards(fleet, rows, demand)
    last = min(demand.cards, open_cards.shape[1]) - 1
    short = np.maximum(demand.card_memory_bytes - fleet.memory_free[rows], 0).astype(np.float64)
    over = np.where(
        fleet.idle[rows], 0.0, np.maximum(_over_percent(fleet, rows, demand, limit_percent), 0.0)
    )
    enough = open_cards.sum(axis=1) > last
    memory = np.sort(np.where(open_cards, short, np.inf), axis=1)[:, last]
    utilization = np.sort(np.where(open_cards, over, np.inf), axis=1)[:, last]
    return np.where(enough, memory, 0.0), np.where(enough, utilization, 0.0)
