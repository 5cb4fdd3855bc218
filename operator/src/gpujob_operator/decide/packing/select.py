"""Chooses where a worker goes: the node and GPUs that cost future jobs the least.

`choose` is a pure function of the fleet, the request and the mix. Figures per node are cached
(`ScoreCache`) and renewed only for rows that changed. Thousands of identical requests therefore
cost one evaluation, and a placement costs as much as the last one changed.

Nodes that can take the request are compared by these criteria, in order:

1. spot, if it is preferred
2. lower cost, in whole steps of 0.02 of a GPU (near-ties are ties on purpose, so the first row
   fills up first)
3. lower price
4. lower risk of a reclamation
5. the first row

Among a node's GPUs, the lower cost comes first, then the first GPU.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from gpujob_operator.decide.packing.apart import DomainLimit, place_apart
from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.fragmentation import FragmentationCost
from gpujob_operator.decide.packing.gang import place_gang
from gpujob_operator.decide.packing.request import Request, Score, Selection
from gpujob_operator.decide.packing.score_cache import REQUESTS_MAX, NodeScores, ScoreCache

STEP_GPUS = 0.02


class SpreadLimit(NamedTuple):
    """How many workers of a gang may be in one domain, by row. -1: no domain. See `DomainLimit`."""

    domains: Integers
    most: int | None
    skew: int | None


def choose(
    arrays: NodeArrays, request: Request, mix: WorkloadMix, score_cache: ScoreCache
) -> Selection | None:
    """Returns the best place for one worker, or None if there is none.

    `score_cache` belongs to this fleet, not to a copy of it.
    """
    fragmentation = score_cache.of(arrays, mix)
    scores = _renewed(arrays, request, fragmentation, score_cache)
    scarcity = fragmentation.scarcity()
    cost = scores.cost
    if scarcity is not None:
        cost = cost + scarcity * _gpus_on(arrays, request.demand)
    steps = np.ceil(cost / STEP_GPUS - 1e-9)
    row = _first_best(arrays, request, steps)
    if row is None:
        return None
    demand = request.demand
    if demand.gpus == 1 and not demand.exclusive:
        gpus: tuple[int, ...] = (int(scores.gpu[row]),)
    else:
        rows = np.array([row])
        free = free_gpus(arrays, rows, request)
        gpus = tuple(_gpus_of_worker(arrays, fragmentation, rows, free, demand)[0].tolist())
        gpus = _linked(arrays, row, free[0], gpus, demand)
    candidates = int(np.isfinite(cost).sum())
    price = 0.0 if scarcity is None else float(cost[row] - scores.cost[row])
    return Selection(row, gpus, _score(scores, row, price), candidates)


def choose_gang(
    arrays: NodeArrays,
    request: Request,
    workers: int,
    score_cache: ScoreCache,
    mix: WorkloadMix,
    levels: Sequence[Integers] = (),
    limits: Sequence[SpreadLimit] = (),
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Returns row and GPU columns of as many workers of a gang as fit, each on its own GPUs.

    They are close together (see `gang`), and as far apart as `limits` require. `levels` are the
    domain of each row, with the closest level first. -1: no domain.
    """
    demand = request.demand
    counts = _workers_by_row(arrays, request)
    parts = None
    if request.prefers_spot and counts[arrays.spot].sum() >= workers:
        on_spot = np.where(arrays.spot, counts, 0)
        parts = _parts(arrays, on_spot, workers, levels, limits)
    if parts is None or sum(count for _, count in parts) < workers:
        parts = _parts(arrays, counts, workers, levels, limits)
    fragmentation = score_cache.of(arrays, mix)
    found: list[tuple[int, tuple[int, ...]]] = []
    for row, count in parts:
        at = np.array([row])
        free = free_gpus(arrays, at, request)
        all_gpus = replace(demand, gpus=demand.gpus * count)
        chosen = _gpus_of_worker(arrays, fragmentation, at, free, all_gpus)[0]
        # Linked GPUs go to the same worker.
        order = np.argsort(arrays.link_group[row, chosen], kind="stable")
        gpus: list[int] = chosen[order].tolist()
        found += [
            (row, tuple(gpus[first : first + demand.gpus]))
            for first in range(0, len(gpus), demand.gpus)
        ]
    return tuple(found)


def _parts(
    arrays: NodeArrays,
    counts: Integers,
    workers: int,
    levels: Sequence[Integers],
    limits: Sequence[SpreadLimit],
) -> list[tuple[int, int]]:
    """Returns rows with the number of workers that each gets, for as many workers as fit."""
    # Among equals the cheaper node comes first, then the one reclaimed less often, then the first
    # row.
    nodes = {
        (float(arrays.price[row]), float(arrays.risk[row]), int(row)): int(counts[row])
        for row in np.flatnonzero(counts > 0)
    }
    domains = [
        {node: int(level[node[-1]]) for node in nodes if level[node[-1]] >= 0} for level in levels
    ]
    if limits:
        parts = place_apart(nodes, workers, [_by_node(limit, arrays) for limit in limits], domains)
    else:
        parts = place_gang(nodes, min(workers, sum(nodes.values())), domains) or ()
    return [(row, count) for (_, _, row), count in parts]


def _by_node(limit: SpreadLimit, arrays: NodeArrays) -> DomainLimit[tuple[float, float, int]]:
    """Returns the limit by the node keys of `choose_gang`, including nodes that take no
    worker now.
    """
    domain_of = {
        (float(arrays.price[row]), float(arrays.risk[row]), int(row)): int(limit.domains[row])
        for row in np.flatnonzero(limit.domains >= 0)
    }
    return DomainLimit(domain_of, limit.most, limit.skew)


def _workers_by_row(arrays: NodeArrays, request: Request) -> Integers:
    """Returns how many workers each node can take, each on its own GPUs."""
    demand = request.demand
    rows = np.arange(len(arrays.names))
    fits = host_fits(arrays, rows, demand, _allowed(arrays, request))
    free = free_gpus(arrays, rows, request)
    counts = np.minimum(free.sum(axis=1) // demand.gpus, arrays.pods_free)
    if demand.cpu_milli:
        counts = np.minimum(counts, arrays.cpu_milli_free // demand.cpu_milli)
    if demand.memory_bytes:
        counts = np.minimum(counts, arrays.memory_bytes_free // demand.memory_bytes)
    return np.where(fits, counts, 0)


def _score(scores: NodeScores, row: int, scarcity: float) -> Score:
    worth, usable = float(scores.worth[row]), float(scores.usable[row])
    stranded = float(scores.stranded[row])
    return Score(worth + usable + stranded + scarcity, worth, usable, stranded, scarcity)


def _first_best(arrays: NodeArrays, request: Request, steps: Floats) -> int | None:
    if not len(steps):
        return None
    if request.prefers_spot:
        on_spot = np.where(arrays.spot, steps, np.inf)
        steps = on_spot if np.isfinite(on_spot).any() else steps
    best = steps.min()
    if best == np.inf:
        return None
    ties = np.flatnonzero(steps == best)
    # The sort is stable, so the first row of equals wins.
    return int(ties[np.lexsort((arrays.risk[ties], arrays.price[ties]))[0]])


def _gpus_on(arrays: NodeArrays, demand: Demand) -> Floats:
    """Returns how much of a GPU the demand takes, by row, in GPUs of the largest memory."""
    totals = np.maximum(arrays.memory_total[:, 0], 1)
    largest = max((size for _, size in arrays.kinds), default=1)
    if demand.exclusive:
        return demand.gpus * totals / largest
    share = np.maximum(demand.gpu_memory_bytes / totals, demand.utilization_percent / 100)
    return demand.gpus * share * totals / largest


def _renewed(
    arrays: NodeArrays, request: Request, fragmentation: FragmentationCost, score_cache: ScoreCache
) -> NodeScores:
    scores = score_cache.scores.get(request)
    if scores is None:
        rows = len(arrays.names)
        scores = NodeScores.none_fits(rows)
        while len(score_cache.scores) >= REQUESTS_MAX:
            del score_cache.scores[next(iter(score_cache.scores))]
        score_cache.scores[request] = scores
    stale = np.flatnonzero(arrays.changed_at_clock > scores.seen)
    scores.seen = arrays.clock
    if len(stale):
        scores.cost[stale] = np.inf
        rows = stale[host_fits(arrays, stale, request.demand, _allowed(arrays, request))]
        if len(rows):
            _evaluate(arrays, request, fragmentation, rows, scores)
    return scores


def _evaluate(
    arrays: NodeArrays,
    request: Request,
    fragmentation: FragmentationCost,
    rows: Integers,
    scores: NodeScores,
) -> None:
    demand = request.demand
    free = free_gpus(arrays, rows, request)
    enough = free.sum(axis=1) >= demand.gpus
    rows, free = rows[enough], free[enough]
    if not len(rows):
        return
    if demand.gpus == 1 and not demand.exclusive:
        _evaluate_gpus(arrays, fragmentation, rows, free, demand, scores)
        return
    gpus = _gpus_of_worker(arrays, fragmentation, rows, free, demand)
    scores.put(rows, fragmentation.costs(arrays, rows, gpus, demand), slice(None))


def _evaluate_gpus(
    arrays: NodeArrays,
    fragmentation: FragmentationCost,
    rows: Integers,
    free: Booleans,
    demand: Demand,
    scores: NodeScores,
) -> None:
    """Evaluates one shared GPU. It tries every GPU of a row that differs from those before it."""
    state = np.where(free, fragmentation.state[rows], -1)
    at, column = np.nonzero(free & _first_of_equal_states(state))
    parts = fragmentation.costs(arrays, rows[at], column[:, None], demand)
    table = np.full(free.shape, np.inf)
    table[at, column] = parts.total
    best = np.argmin(table, axis=1)
    number = np.zeros(free.shape, dtype=np.int64)
    number[at, column] = np.arange(len(at))
    scores.gpu[rows] = best
    scores.put(rows, parts, number[np.arange(len(rows)), best])


def _first_of_equal_states(state: Integers) -> Booleans:
    """Returns `x[row, column]`: whether no earlier column of the row has the same state."""
    equal = state[:, :, None] == state[:, None, :]
    # Below the diagonal, x[row, column, other] has other < column.
    return ~np.tril(equal, -1).any(axis=2)


def _gpus_of_worker(
    arrays: NodeArrays,
    fragmentation: FragmentationCost,
    rows: Integers,
    free: Booleans,
    demand: Demand,
) -> Integers:
    """Returns the demand's number of GPUs on each row: those that lose the least, the first on
    ties.
    """
    if demand.exclusive:
        order = np.argsort(~free, axis=1, kind="stable")
    else:
        loss = np.where(free, fragmentation.gpu_costs(arrays, rows, demand), np.inf)
        order = np.argsort(loss, axis=1, kind="stable")
    return np.sort(order[:, : demand.gpus], axis=1)


def _linked(
    arrays: NodeArrays, row: int, free: Booleans, gpus: tuple[int, ...], demand: Demand
) -> tuple[int, ...]:
    """Moves a worker's whole GPUs into one link group, the one with the fewest free GPUs."""
    groups = arrays.link_group[row]
    if demand.gpus < 2 or not demand.exclusive or len(set(groups[free].tolist())) < 2:
        return gpus
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for group in sorted(set(groups[free].tolist())):
        members = np.flatnonzero(free & (groups == group))
        if len(members) >= demand.gpus:
            found.append((len(members), group, tuple(members[: demand.gpus].tolist())))
    return min(found)[2] if found else gpus


def _allowed(arrays: NodeArrays, request: Request) -> Booleans:
    return arrays.eligible if request.nodes is None else arrays.eligible & request.nodes.allowed


def host_fits(arrays: NodeArrays, rows: Integers, demand: Demand, allowed: Booleans) -> Booleans:
    """Returns which rows may be used and have enough free CPU and host memory for one more pod."""
    return (
        allowed[rows]
        & (arrays.cpu_milli_free[rows] >= demand.cpu_milli)
        & (arrays.memory_bytes_free[rows] >= demand.memory_bytes)
        & (arrays.pods_free[rows] > 0)
    )


def free_gpus(arrays: NodeArrays, rows: Integers, request: Request) -> Booleans:
    """Returns the GPUs that can take one GPU's part of the request, by [row, column]."""
    demand = request.demand
    fits = _open_gpus(arrays, rows, demand)
    fits &= arrays.memory_free[rows] >= demand.gpu_memory_bytes
    over = _over_percent(arrays, rows, demand, request.utilization_limit_percent)
    return fits & (arrays.idle[rows] | ((over <= 0) & _may_join(arrays, rows, request)))


def _may_join(arrays: NodeArrays, rows: Integers, request: Request) -> Booleans:
    """Applies `party.may_join` to each GPU."""
    namespace, group = request.party
    return (arrays.namespace[rows] == namespace) | (arrays.sharing_group[rows] == group)


def _of_model(arrays: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    present = arrays.memory_total[rows] > 0
    if not demand.models:
        return present
    of_kind = np.array([model in demand.models for model, _ in arrays.kinds], dtype=np.bool_)
    return present & of_kind[arrays.kind[rows]] if len(of_kind) else present


def _open_gpus(arrays: NodeArrays, rows: Integers, demand: Demand) -> Booleans:
    gpus = _of_model(arrays, rows, demand) & arrays.usable[rows] & ~arrays.held_whole[rows]
    return gpus & arrays.idle[rows] if demand.exclusive else gpus


def _over_percent(
    arrays: NodeArrays, rows: Integers, demand: Demand, limit_percent: float
) -> Floats:
    """Returns utilization above what the GPU's tenants and the request itself accept."""
    limit = np.minimum(arrays.utilization_limit[rows], limit_percent)
    return arrays.utilization_used[rows] + demand.utilization_percent - limit
