"""Which job goes with which: two jobs a GPU, for the most work done by all GPUs together."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import networkx

# Two jobs that take turns do the work of one GPU.
TURNS = 1.0

Gain = Callable[[str, str], float]


def best_pairing(jobs: Sequence[str], gain: Gain) -> list[tuple[str, str]]:
    """The perfect matching of greatest total gain (Edmonds' blossom algorithm)."""
    graph = cast("Any", networkx.Graph())
    for first in range(len(jobs)):
        for second in range(first + 1, len(jobs)):
            graph.add_edge(first, second, weight=gain(jobs[first], jobs[second]))
    matched = cast("Any", networkx).max_weight_matching(graph, maxcardinality=True)
    pairs = cast("set[tuple[int, int]]", matched)
    return [(jobs[a], jobs[b]) for a, b in sorted((min(p), max(p)) for p in pairs)]


def throughput_per_gpu(pairs: Sequence[tuple[str, str]], achieved: Gain) -> float:
    """Mean over GPUs of what its two jobs really do together."""
    return sum(achieved(first, second) for first, second in pairs) / len(pairs)


def random_throughput_per_gpu(jobs: Sequence[str], achieved: Gain) -> float:
    """Expected value of a random perfect matching: every pair is equally likely."""
    gains = [
        achieved(jobs[first], jobs[second])
        for first in range(len(jobs))
        for second in range(first + 1, len(jobs))
    ]
    return sum(gains) / len(gains)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank."""
    ranks = [_ranks(first), _ranks(second)]
    middle = (len(first) - 1) / 2
    products = [(a - middle) * (b - middle) for a, b in zip(*ranks, strict=True)]
    squares = [sum((rank - middle) ** 2 for rank in side) for side in ranks]
    scale = (squares[0] * squares[1]) ** 0.5
    return sum(products) / scale if scale else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=lambda index: values[index])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end + 1 < len(order) and values[order[end + 1]] == values[order[start]]:
            end += 1
        for position in range(start, end + 1):
            ranks[order[position]] = (start + end) / 2
        start = end + 1
    return ranks
