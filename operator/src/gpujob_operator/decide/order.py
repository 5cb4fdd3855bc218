"""In which order jobs are given cards: priority, overdue waiting, work left, arrival.

Between queues `line` puts their shares before the work. Pure sort keys over a few numbers of each
job, running ones included (who comes late enough in the order loses its cards to an earlier one).
The queueing of a cycle and the benchmarks use this same function.
"""

from collections.abc import Iterable

from gpujob_operator.decide.queue.order import Contender, OrderRules, order_key


def order(contenders: Iterable[Contender], now_seconds: float, rules: OrderRules) -> list[str]:
    """UIDs, who is served first comes first. The same for any order of the input."""
    keyed = sorted(order_key(contender, now_seconds, rules) for contender in contenders)
    return [key[-1] for key in keyed]
