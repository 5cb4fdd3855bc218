"""Chooses among backends whose answers are close. Pure: figures in, a plan and reasons out.

With a rate, the one that needs least device time a request while its latency stays within the
objective. Without one, the highest throughput within the objective.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpujob_api.serving import Objective
from gpujob_worker.serving.choosing.timing import SizeTime, Timing
from gpujob_worker.serving.plan import REFERENCE, Plan

# A prediction is off by some percent, so part of the objective stays free.
OBJECTIVE_SHARE = 0.8
# Costs that differ by less are equal within the noise of a measurement.
TIE_SHARE = 0.02
_LATE_SHARE_MIN = 1e-4
_BUSY_MAX = 0.95


@dataclass(frozen=True, slots=True)
class Measured:
    """A backend whose answers were accepted."""

    plan: Plan
    timing: Timing


@dataclass(frozen=True, slots=True)
class Demand:
    """`rate` is in requests of one sample a second. None if it is not known."""

    objective: Objective
    rate: float | None = None
    memory_bytes_max: int | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """`refusals` are by plan. `fallback` is True if nothing kept the objective."""

    plan: Plan
    reason: str
    refusals: dict[Plan, str]
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class _Cost:
    measured: Measured
    seconds: float
    size: int
    latency: float


def choose(measured: Sequence[Measured], demand: Demand) -> Chosen:
    """Returns the choice. Eager is the fallback, whether it was measured or not."""
    refusals: dict[Plan, str] = {}
    costs: list[_Cost] = []
    for one in measured:
        found = _cost(one, demand)
        if isinstance(found, _Cost):
            costs.append(found)
        else:
            refusals[one.plan] = found
    if not costs:
        return Chosen(REFERENCE, "no backend keeps the objective", refusals, fallback=True)
    least = min(cost.seconds for cost in costs)
    equal = [cost for cost in costs if cost.seconds <= least * (1 + TIE_SHARE)]
    best = min(equal, key=_preference)
    return Chosen(best.measured.plan, _reason(best, demand, costs), refusals)


def latency_seconds(one: SizeTime, rate: float, late_share: float) -> float:
    """Returns the predicted latency that all but `late_share` of the requests keep.

    Batches of b samples form in (b - 1) / rate. They queue as in M/D/1 with the load
    r = rate * t(b) / b, whose waiting time has the tail P(W > x) = r * exp(-2 (1 - r) x / t)
    (heavy-traffic approximation, Kingman 1961). To this t(b) itself is added, and the measured
    difference of its 99th percentile from the median.
    """
    busy = rate * one.seconds / one.size
    if busy >= 1:
        return math.inf
    forming = (one.size - 1) / rate if rate > 0 else 0.0
    late = max(late_share, _LATE_SHARE_MIN)
    queueing = max(0.0, math.log(busy / late)) if busy > 0 else 0.0
    waiting = one.seconds * queueing / (2 * (1 - busy))
    return forming + waiting + max(one.seconds, one.p99_seconds)


def _cost(one: Measured, demand: Demand) -> "_Cost | str":
    """Returns the cost at the best size, or the reason of the refusal."""
    if not one.timing.sizes:
        return "refused: no size was timed"
    if demand.memory_bytes_max is not None and one.timing.memory_bytes > demand.memory_bytes_max:
        used, most = _gib(one.timing.memory_bytes), _gib(demand.memory_bytes_max)
        return f"refused: needs {used} of memory, at most {most}"
    most_seconds = OBJECTIVE_SHARE * demand.objective.latency_milliseconds / 1000
    late = 1 - demand.objective.percentile / 100
    found: list[_Cost] = []
    for size in one.timing.sizes:
        if demand.rate:
            latency = latency_seconds(size, demand.rate, late)
            fits = demand.rate * size.seconds / size.size <= _BUSY_MAX
        else:
            # A request that just missed a batch waits for its end.
            latency, fits = size.seconds + max(size.seconds, size.p99_seconds), True
        found.append(_Cost(one, size.seconds / size.size, size.size, latency))
        if not fits:
            found[-1] = _Cost(one, size.seconds / size.size, size.size, math.inf)
    within = [cost for cost in found if cost.latency <= most_seconds]
    if within:
        return min(within, key=lambda cost: cost.seconds)
    return _too_slow(found, most_seconds, demand)


def _too_slow(found: Sequence[_Cost], most_seconds: float, demand: Demand) -> str:
    best = min(found, key=lambda cost: cost.latency)
    most = f"{1000 * most_seconds:.3g} ms"
    if math.isinf(best.latency):
        busiest = min(cost.seconds for cost in found)
        return (
            f"refused: answers {1 / max(busiest, 1e-12):,.0f} samples a second,"
            f" {demand.rate:,.0f} are expected"
        )
    latency = f"{1000 * best.latency:.3g} ms"
    return f"refused: predicted latency {latency} at batch {best.size}, at most {most}"


def _preference(cost: _Cost) -> tuple[int, float, str]:
    timing = cost.measured.timing
    return timing.memory_bytes, timing.start_seconds, str(cost.measured.plan)


def _reason(best: _Cost, demand: Demand, costs: Sequence[_Cost]) -> str:
    eager = next((cost for cost in costs if cost.measured.plan == REFERENCE), None)
    figure = f"{1e6 * best.seconds:,.1f} us of the device a sample at batch {best.size}"
    rate = f" at {demand.rate:,.0f} requests a second" if demand.rate else ""
    latency = f", predicted latency {1000 * best.latency:.3g} ms{rate}"
    beside = ""
    if eager is not None and best.measured.plan != REFERENCE:
        beside = f"; {eager.seconds / best.seconds:.2f} times as fast as written"
    return f"{best.measured.plan}: {figure}{latency}{beside}"


def _gib(count: int) -> str:
    return f"{count / 1024**3:.2f} GiB"
