"""Where a worker goes: the node and GPUs that cost the jobs still to come the least.

`choose` is a pure function of the fleet, the request and the mix. Figures per node are kept on the
side (`ScoreCache`) and renewed only for rows that changed, so that thousands of identical requests
cost one evaluation and a placement costs what the last one changed.

Order among nodes that can take the request: spot where it is preferred; the lower cost, in whole
steps of 0.02 of a GPU (near-ties are ties, on purpose: the first row fills up first); the lower
price; the lower risk of being taken away; the first row. Among a node's GPUs: the lower cost, then
the first.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpujob_operator.decide.packing.arrays import Booleans, Floats, Integers, NodeArrays
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.packing.filter import free_gpus, host_fits
from gpujob_operator.decide.packing.fragmentation import FragmentationCost
from gpujob_operator.decide.packing.gang import place_gang
from gpujob_operator.decide.packing.request import Request, Score, Selection, SpotPreference
from gpujob_operator.decide.packing.score_cache import REQUESTS_MAX, NodeScores, ScoreCache

STEP_GPUS = 0.02


def choose(
    fleet: NodeArrays, request: Request, mix: WorkloadMix, ledger: ScoreCache
) -> Selection | None:
    """The best place for one worker; None where there is none.

    `ledger` belongs to this fleet, not to a copy of it.
    """
    valuation = ledger.of(fleet, mix)
    scores = _renewed(fleet, request, valuation, ledger)
    scarcity = valuation.scarcity()
    cost = scores.cost
    if scarcity is not None:
        cost = cost + scarcity * _gpus_on(fleet, request.demand)
    steps = np.ceil(cost / STEP_GPUS - 1e-9)
    row = _first_best(fleet, request, steps)
    if row is None:
        return None
    demand = request.demand
    if demand.gpus == 1 and not demand.exclusive:
        gpus: tuple[int, ...] = (int(scores.gpu[row]),)
    else:
        rows = np.array([row])
        free = free_gpus(fleet, rows, request.demand, request.utilization_limit_percent)
        gpus = tuple(_gpus_of_worker(fleet, valuation, rows, free, demand)[0].tolist())
        gpus = _linked(fleet, row, free[0], gpus, demand)
    candidates = int(np.isfinite(cost).sum())
    price = 0.0 if scarcity is None else float(cost[row] - scores.cost[row])
    return Selection(row, gpus, _score(scores, row, price), candidates)


def choose_gang(
    fleet: NodeArrays,
    request: Request,
    workers: int,
    ledger: ScoreCache,
    mix: WorkloadMix,
    levels: Sequence[Integers] = (),
) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Row and GPU columns of every worker of a gang, each on GPUs of its own, close together (see
    `gang`): as many as fit, all of them where all do.

    `levels` are the domain of each row, the closest level first; -1: in none.
    """
    demand = request.demand
    counts = _workers_by_row(fleet, request)
    rows = np.flatnonzero(counts > 0)
    if request.spot is SpotPreference.PREFER and counts[fleet.spot].sum() >= workers:
        rows = rows[fleet.spot[rows]]
    # Among equals the cheaper node, then the one reclaimed less often, then the first row.
    nodes = {
        (float(fleet.price[row]), float(fleet.risk[row]), int(row)): int(counts[row])
        for row in rows
    }
    domains = [
        {node: int(level[node[-1]]) for node in nodes if level[node[-1]] >= 0} for level in levels
    ]
    total = min(workers, sum(nodes.values()))
    parts = place_gang(nodes, total, domains) or ()
    valuation = ledger.of(fleet, mix)
    found: list[tuple[int, tuple[int, ...]]] = []
    for (_, _, row), count in parts:
        at = np.array([row])
        free = free_gpus(fleet, at, demand, request.utilization_limit_percent)
        all_gpus = replace(demand, gpus=demand.gpus * count)
        chosen = _gpus_of_worker(fleet, valuation, at, free, all_gpus)[0]
        # GPUs that are linked come to one worker.
        order = np.argsort(fleet.link_group[row, chosen], kind="stable")
        gpus: list[int] = chosen[order].tolist()
        found += [
            (row, tuple(gpus[first : first + demand.gpus]))
            for first in range(0, len(gpus), demand.gpus)
        ]
    return tuple(found)


def _workers_by_row(fleet: NodeArrays, request: Request) -> Integers:
    """How many workers each node can take, each on GPUs of its own."""
    demand = request.demand
    rows = np.arange(len(fleet.names))
    fits = host_fits(fleet, rows, demand, _allowed(fleet, request))
    free = free_gpus(fleet, rows, demand, request.utilization_limit_percent)
    counts = free.sum(axis=1) // demand.gpus
    if demand.cpu_milli:
        counts = np.minimum(counts, fleet.cpu_milli_free // demand.cpu_milli)
    if demand.memory_bytes:
        counts = np.minimum(counts, fleet.memory_bytes_free // demand.memory_bytes)
    return np.where(fits, counts, 0)


def _score(scores: NodeScores, row: int, scarcity: float) -> Score:
    worth, usable = float(scores.worth[row]), float(scores.usable[row])
    stranded = float(scores.stranded[row])
    return Score(worth + usable + stranded + scarcity, worth, usable, stranded, scarcity)


def _first_best(fleet: NodeArrays, request: Request, steps: Floats) -> int | None:
    if not len(steps):
        return None
    if request.spot is SpotPreference.PREFER:
        on_spot = np.where(fleet.spot, steps, np.inf)
        steps = on_spot if np.isfinite(on_spot).any() else steps
    best = steps.min()
    if best == np.inf:
        return None
    ties = np.flatnonzero(steps == best)
    # Stable: among equals the first row.
    return int(ties[np.lexsort((fleet.risk[ties], fleet.price[ties]))[0]])


def _gpus_on(fleet: NodeArrays, demand: Demand) -> Floats:
    """How much of a GPU the demand takes, by row, in GPUs of the largest memory."""
    totals = np.maximum(fleet.memory_total[:, 0], 1)
    largest = max((size for _, size in fleet.kinds), default=1)
    if demand.exclusive:
        return demand.gpus * totals / largest
    share = np.maximum(demand.gpu_memory_bytes / totals, demand.utilization_percent / 100)
    return demand.gpus * share * totals / largest


def _renewed(
    fleet: NodeArrays, request: Request, valuation: FragmentationCost, ledger: ScoreCache
) -> NodeScores:
    scores = ledger.scores.get(request)
    if scores is None:
        rows = len(fleet.names)
        scores = NodeScores.none_fits(rows)
        while len(ledger.scores) >= REQUESTS_MAX:
            del ledger.scores[next(iter(ledger.scores))]
        ledger.scores[request] = scores
    stale = np.flatnonzero(fleet.changed_at_clock > scores.seen)
    scores.seen = fleet.clock
    if len(stale):
        scores.cost[stale] = np.inf
        rows = stale[host_fits(fleet, stale, request.demand, _allowed(fleet, request))]
        if len(rows):
            _evaluate(fleet, request, valuation, rows, scores)
    return scores


def _evaluate(
    fleet: NodeArrays,
    request: Request,
    valuation: FragmentationCost,
    rows: Integers,
    scores: NodeScores,
) -> None:
    demand = request.demand
    free = free_gpus(fleet, rows, request.demand, request.utilization_limit_percent)
    enough = free.sum(axis=1) >= demand.gpus
    rows, free = rows[enough], free[enough]
    if not len(rows):
        return
    if demand.gpus == 1 and not demand.exclusive:
        _evaluate_gpus(fleet, valuation, rows, free, demand, scores)
        return
    gpus = _gpus_of_worker(fleet, valuation, rows, free, demand)
    scores.put(rows, valuation.costs(fleet, rows, gpus, demand), slice(None))


def _evaluate_gpus(
    fleet: NodeArrays,
    valuation: FragmentationCost,
    rows: Integers,
    free: Booleans,
    demand: Demand,
    scores: NodeScores,
) -> None:
    """One shared GPU: every GPU of a row is tried that differs from those before it."""
    state = np.where(free, valuation.state[rows], -1)
    same_before = np.tril(state[:, :, None] == state[:, None, :], -1).any(axis=2)
    at, column = np.nonzero(free & ~same_before)
    parts = valuation.costs(fleet, rows[at], column[:, None], demand)
    table = np.full(free.shape, np.inf)
    table[at, column] = parts.total
    best = np.argmin(table, axis=1)
    number = np.zeros(free.shape, dtype=np.int64)
    number[at, column] = np.arange(len(at))
    scores.gpu[rows] = best
    scores.put(rows, parts, number[np.arange(len(rows)), best])


def _gpus_of_worker(
    fleet: NodeArrays, valuation: FragmentationCost, rows: Integers, free: Booleans, demand: Demand
) -> Integers:
    """The demand's number of GPUs on each row: those that lose the least, the first on ties."""
    if demand.exclusive:
        order = np.argsort(~free, axis=1, kind="stable")
    else:
        loss = np.where(free, valuation.gpu_costs(fleet, rows, demand), np.inf)
        order = np.argsort(loss, axis=1, kind="stable")
    return np.sort(order[:, : demand.gpus], axis=1)


def _linked(
    fleet: NodeArrays, row: int, free: Booleans, gpus: tuple[int, ...], demand: Demand
) -> tuple[int, ...]:
    """Whole GPUs of one worker within one link group, the group with the fewest free GPUs."""
    groups = fleet.link_group[row]
    if demand.gpus < 2 or not demand.exclusive or len(set(groups[free].tolist())) < 2:
        return gpus
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for group in sorted(set(groups[free].tolist())):
        members = np.flatnonzero(free & (groups == group))
        if len(members) >= demand.gpus:
            found.append((len(members), group, tuple(members[: demand.gpus].tolist())))
    return min(found)[2] if found else gpus


def _allowed(fleet: NodeArrays, request: Request) -> Booleans:
    allowed = fleet.eligible
    if request.nodes is not None:
        allowed = allowed & request.nodes.allowed
    if request.spot is SpotPreference.REQUIRE:
        allowed = allowed & fleet.spot
    elif request.spot is SpotPreference.NEVER:
        allowed = allowed & ~fleet.spot
    return allowed
