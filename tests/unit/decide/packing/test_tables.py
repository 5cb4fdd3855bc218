"""The mix of requests and its tables."""

from collections import Counter

import numpy as np
import pytest

from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.scheduler_cache import rounded_mix
from gpujob_operator.decide.packing.demand import MEMORY_STEPS, Demand, WorkloadMix
from gpujob_operator.decide.packing.tables import Tables
from tests.harness.fleets import CARD_BYTES, shared, whole

KIND = ("A100", CARD_BYTES)


def test_weights_sum_to_one_and_the_heaviest_come_first() -> None:
    mix = WorkloadMix.of({shared(20): 1.0, shared(40): 3.0, whole(): 0.0})
    assert mix.demands == (shared(40), shared(20))
    assert mix.weights == (0.75, 0.25)


def test_the_order_of_counting_does_not_matter() -> None:
    demands = [shared(20), shared(40), whole(), whole(2), shared(20, models=frozenset({"T4"}))]
    one = WorkloadMix.of(Counter(demands))
    other = WorkloadMix.of(Counter(reversed(demands)))
    assert one.demands == other.demands
    assert one.weights == other.weights


def test_typical_classes_cover_95_percent() -> None:
    mix = WorkloadMix.of({shared(10): 90.0, shared(20): 5.0, shared(30): 4.0, shared(40): 1.0})
    assert mix.typical == (shared(10), shared(20))
    assert sum(mix.typical_weights) == pytest.approx(1.0)


def test_nothing_seen_is_an_empty_mix() -> None:
    assert WorkloadMix.of({}).demands == ()
    assert WorkloadMix.of({shared(10): 0.0}).typical == ()


def test_mixes_are_equal_when_the_same_is_computed_from_them() -> None:
    one = WorkloadMix.of({shared(10): 1.0, shared(20): 1.0})
    assert one.equals(WorkloadMix.of({shared(20): 2.0, shared(10): 2.0}))
    assert not one.equals(WorkloadMix.of({shared(10): 1.0}))
    assert not one.equals(WorkloadMix.of({shared(10): 1.0, shared(20): 2.0}))


def test_a_job_more_changes_no_mix_of_many() -> None:
    many = rounded_mix({shared(10): 100.0, shared(20): 50.0})
    assert rounded_mix({shared(10): 103.0, shared(20): 49.0}).equals(many)
    assert not rounded_mix({shared(10): 160.0, shared(20): 50.0}).equals(many)
    assert rounded_mix({shared(10): 0.0}).demands == ()


@pytest.mark.parametrize(
    ("demand", "steps"),
    [
        (shared(40), (50, 0)),
        (shared(80), (100, 0)),
        (shared(0.1), (1, 0)),
        (shared(40.1), (51, 0)),
        (shared(40, 30.0), (50, 6)),
        (shared(40, 31.0), (50, 7)),
        (shared(40, 250.0), (50, 20)),
        (shared(81), None),
    ],
)
def test_steps_are_rounded_up(demand: Demand, steps: tuple[int, int] | None) -> None:
    assert demand.steps(CARD_BYTES, 20 if demand.utilization_percent else 0) == steps


def test_an_idle_gpu_is_worth_one_and_a_full_one_nothing() -> None:
    tables = Tables.of(WorkloadMix.of({shared(20): 1.0}), [KIND])
    assert tables.worth[0] == 0.0
    assert tables.worth[tables.idle[0]] == 1.0
    worth = tables.worth[tables.base[0] : tables.idle[0]]
    assert worth[0] == 0.0
    assert worth[24] == 0.0
    assert worth[25] == pytest.approx(0.25)
    assert worth[MEMORY_STEPS] == pytest.approx(1.0)


def test_a_smaller_gpu_is_worth_less_in_proportion() -> None:
    tables = Tables.of(WorkloadMix.of({shared(10): 1.0}), [KIND, ("T4", CARD_BYTES // 4)])
    assert tables.worth[tables.idle].tolist() == [1.0, 0.25]


def test_slots_count_requests_of_a_class() -> None:
    mix = WorkloadMix.of({shared(20, 30.0): 2.0, whole(): 1.0})
    tables = Tables.of(mix, [KIND])
    share, alone = (mix.typical.index(d) for d in (shared(20, 30.0), whole()))
    idle = tables.slots[tables.idle[0]]
    assert (idle[share], idle[alone]) == (3, 1)
    half_memory = tables.base[0] + 50 * 21 + 20
    assert (tables.slots[half_memory, share], tables.slots[half_memory, alone]) == (2, 0)
    little_time = tables.base[0] + 100 * 21 + 6
    assert tables.slots[little_time, share] == 1


def test_models_give_access() -> None:
    mix = WorkloadMix.of({shared(10, models=frozenset({"T4"})): 1.0, shared(20): 1.0})
    tables = Tables.of(mix, [KIND, ("T4", 16 * GIB)])
    bound = mix.typical.index(shared(10, models=frozenset({"T4"})))
    assert tables.slots[tables.idle, bound].tolist() == [0, 1]
    assert tables.models == ("A100", "T4")
    assert tables.restricted_access.tolist() == [[0.0, 1.0]]
    assert 0 < tables.restricted_share[0] < 1


def test_requests_for_any_model_or_for_all_are_not_restricted() -> None:
    everywhere = frozenset({"A100", "T4"})
    mix = WorkloadMix.of({shared(10): 1.0, shared(12, models=everywhere): 1.0})
    assert not Tables.of(mix, [KIND, ("T4", 16 * GIB)]).restricted_share.size


def test_host_resources_per_gpu_are_the_mean_of_requests_with_gpus() -> None:
    mix = WorkloadMix.of({whole(2, cpu=16): 1.0, Demand(cpu_milli=64_000, gpus=0): 5.0})
    assert Tables.of(mix, [KIND]).cpu_milli_per_gpu == pytest.approx(8000)


def test_no_kinds_and_no_mix_make_empty_tables() -> None:
    assert Tables.of(WorkloadMix.of({shared(10): 1.0}), []).worth.tolist() == [0.0]
    tables = Tables.of(WorkloadMix(), [KIND])
    assert tables.worth[tables.idle[0]] == 1.0
    assert np.count_nonzero(tables.worth) == 1
