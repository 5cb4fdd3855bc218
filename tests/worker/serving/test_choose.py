"""The choice is the cheapest backend within the objective, and every other one has a reason."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.serving import BackendName, Objective
from gpujob_api.settings import Precision
from gpujob_worker.serving.choosing.choose import (
    Demand,
    Measured,
    choose,
    latency_seconds,
)
from gpujob_worker.serving.choosing.timing import SizeTime, Timing
from gpujob_worker.serving.plan import REFERENCE, Plan

pytestmark = pytest.mark.any_torch

SIZES = (1, 2, 4, 8, 16)
COMPILE = Plan(BackendName.COMPILE)
LOWER = Plan(BackendName.EAGER, Precision.BFLOAT16)
GIB = 1024**3


def measured(
    plan: Plan,
    fixed: float,
    per_sample: float,
    memory: int = GIB,
    start: float = 1.0,
    sizes: tuple[int, ...] = SIZES,
) -> Measured:
    """`fixed` and `per_sample` are in milliseconds."""
    times = tuple(
        SizeTime(size, (t := (fixed + per_sample * size) / 1000), t, t, 50) for size in sizes
    )
    return Measured(plan, Timing(times, memory, start))


def demand(
    rate: float | None = None, milliseconds: float = 100.0, memory: int | None = None
) -> Demand:
    return Demand(Objective(milliseconds), rate, memory)


def test_the_least_device_time_a_request_is_chosen() -> None:
    eager, compiled = measured(REFERENCE, 4, 1), measured(COMPILE, 2, 0.5)
    found = choose([eager, compiled], demand(rate=100))
    assert found.plan == COMPILE
    assert not found.fallback
    assert not found.refusals
    assert "Compile float32" in found.reason
    assert "times as fast as written" in found.reason


def test_a_backend_that_is_cheap_only_in_large_batches_loses_at_a_low_rate() -> None:
    # At 10 requests a second, 16 samples take 1.5 s to come.
    large = measured(COMPILE, 10, 0.1)
    small = measured(REFERENCE, 2, 2)
    assert choose([small, large], demand(rate=10)).plan == REFERENCE
    assert choose([small, large], demand(rate=300, milliseconds=200)).plan == COMPILE


def test_a_latency_above_eight_tenths_of_the_objective_is_refused_with_figures() -> None:
    found = choose([measured(REFERENCE, 45, 0, sizes=(1,))], demand(milliseconds=100))
    assert found.fallback
    reason = found.refusals[REFERENCE]
    assert reason == "refused: predicted latency 90 ms at batch 1, at most 80 ms"
    assert choose([measured(REFERENCE, 39, 0, sizes=(1,))], demand()).fallback is False


def test_a_rate_beyond_the_backend_is_refused_with_figures() -> None:
    found = choose([measured(REFERENCE, 0, 10)], demand(rate=1000))
    reason = found.refusals[REFERENCE]
    assert reason == "refused: answers 100 samples a second, 1,000 are expected"


def test_memory_beyond_the_cap_is_refused_with_figures() -> None:
    large = measured(COMPILE, 1, 0.1, memory=3 * GIB)
    small = measured(REFERENCE, 4, 1, memory=GIB)
    found = choose([small, large], demand(memory=2 * GIB))
    assert found.plan == REFERENCE
    assert found.refusals == {COMPILE: "refused: needs 3.00 GiB of memory, at most 2.00 GiB"}


def test_equal_cost_is_decided_by_memory_then_by_the_start() -> None:
    one = measured(REFERENCE, 4, 1, memory=2 * GIB, start=1)
    two = measured(COMPILE, 4, 1.005, memory=GIB, start=9)
    three = measured(LOWER, 4, 1.005, memory=GIB, start=5)
    assert choose([one, two], demand()).plan == COMPILE
    assert choose([one, two, three], demand()).plan == LOWER


def test_without_any_backend_the_model_as_written_serves() -> None:
    found = choose([], demand())
    assert found.plan == REFERENCE
    assert found.fallback
    assert found.reason == "no backend keeps the objective"


def test_a_backend_without_times_is_refused() -> None:
    found = choose([Measured(COMPILE, Timing())], demand())
    assert found.refusals == {COMPILE: "refused: no size was timed"}


def test_the_percentile_of_the_objective_counts() -> None:
    one = SizeTime(1, 0.01, 0.01, 0.01, 50)
    most = latency_seconds(one, rate=70, late_share=0.001)
    some = latency_seconds(one, rate=70, late_share=0.05)
    assert most > some > one.seconds
    assert math.isfinite(latency_seconds(one, rate=70, late_share=0.0))


def test_a_saturated_backend_has_no_latency() -> None:
    assert latency_seconds(SizeTime(1, 0.01, 0.01, 0.01, 50), 100, 0.01) == math.inf


def simulated_p99(seconds: float, rate: float) -> float:
    """Returns the 99th percentile of M/D/1 by simulation (Lindley's recursion)."""
    random_numbers = random.Random(0)
    waiting, found = 0.0, list[float]()
    for _ in range(100_000):
        found.append(waiting + seconds)
        waiting = max(0.0, waiting + seconds - random_numbers.expovariate(rate))
    return sorted(found)[99_000]


@pytest.mark.parametrize("busy", [0.2, 0.5, 0.8])
def test_the_predicted_latency_is_that_of_a_simulated_queue(busy: float) -> None:
    seconds = 0.01
    predicted = latency_seconds(SizeTime(1, seconds, seconds, seconds, 50), busy / seconds, 0.01)
    assert predicted == pytest.approx(simulated_p99(seconds, busy / seconds), rel=0.2)


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.01, 5)), min_size=1, max_size=6),
    st.one_of(st.none(), st.floats(1, 2000)),
    st.floats(5, 500),
)
def test_nothing_within_the_objective_is_cheaper_beyond_a_tie(
    lines: list[tuple[float, float]], rate: float | None, milliseconds: float
) -> None:
    names = (
        REFERENCE,
        COMPILE,
        LOWER,
        Plan(BackendName.AOT_INDUCTOR),
        Plan(BackendName.ONNX_RUNTIME),
        Plan(BackendName.COMPILE, Precision.BFLOAT16),
    )
    all_of_them = [measured(plan, *line) for plan, line in zip(names, lines, strict=False)]
    wanted = demand(rate, milliseconds)
    found = choose(all_of_them, wanted)
    alone = {one.plan: choose([one], wanted) for one in all_of_them}
    within = [one for one in all_of_them if not alone[one.plan].fallback]
    assert found.fallback == (not within)
    assert set(found.refusals) == {one.plan for one in all_of_them if alone[one.plan].fallback}
    if within:
        assert found.plan in {one.plan for one in within}
    if rate is None and within:
        # Without a rate the best cell of a plan is its lowest time a sample in the objective.
        def cost(one: Measured) -> float:
            most = 0.8 * milliseconds / 1000
            sizes = [t for t in one.timing.sizes if 2 * t.seconds <= most]
            return min(t.seconds / t.size for t in sizes)

        chosen = next(one for one in within if one.plan == found.plan)
        assert cost(chosen) <= 1.02 * min(map(cost, within)) * (1 + 1e-9)
