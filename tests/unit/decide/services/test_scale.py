"""The number of replicas follows the load between its bounds."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpuservice import Replicas, ServiceOptimize
from gpujob_api.serving import BackendName, ServingReport
from gpujob_operator.decide.services.scale import BUSY_MAX, FEWER_AFTER, scaled
from tests.harness.builders import T0
from tests.harness.services import Live, ServiceWorld, make_service


def reports(*busy: float) -> list[ServingReport]:
    return [ServingReport(ready=True, busy_percent=percent) for percent in busy]


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [((10,), 1), ((60,), 1), ((61,), 2), ((90, 90), 3), ((100, 100, 100), 4), ((0, 0), 1)],
)
def test_each_replica_is_busy_for_at_most_60_percent(busy: tuple[float, ...], wanted: int) -> None:
    found = scaled(Replicas(1, 4), 1, reports(*busy), False, None, 0, T0)
    assert found.wanted == wanted


def test_without_reports_the_number_stays() -> None:
    assert scaled(Replicas(1, 4), 3, [], False, None, 0, T0).wanted == 3


def test_refused_requests_need_another_replica_whatever_the_load() -> None:
    assert scaled(Replicas(1, 4), 2, reports(10, 10), True, None, 0, T0).wanted == 3


def test_fewer_replicas_come_only_after_five_quiet_minutes() -> None:
    found = scaled(Replicas(1, 4), 3, reports(5, 5, 5), False, None, 0, T0)
    assert (found.wanted, found.fewer_since) == (3, T0)
    almost = T0 + FEWER_AFTER - timedelta(seconds=1)
    assert scaled(Replicas(1, 4), 3, reports(5, 5, 5), False, T0, 1, almost).wanted == 3
    assert scaled(Replicas(1, 4), 3, reports(5, 5, 5), False, T0, 1, T0 + FEWER_AFTER).wanted == 1


def test_the_end_of_the_quiet_time_does_not_decide_for_all_of_it() -> None:
    """Three of four were needed for nearly five minutes. The load pauses at their end."""
    found = scaled(Replicas(1, 4), 4, reports(45, 45, 45, 45), False, None, 0, T0)
    assert (found.wanted, found.fewer) == (4, 3)
    end = T0 + FEWER_AFTER
    found = scaled(Replicas(1, 4), 4, reports(0, 0, 0, 0), False, T0, found.fewer, end)
    assert (found.wanted, found.fewer_since, found.fewer) == (3, end, 1)


def test_a_burst_ends_the_quiet_time() -> None:
    found = scaled(Replicas(1, 4), 2, reports(70, 40), False, T0, 1, T0 + FEWER_AFTER)
    assert (found.wanted, found.fewer_since) == (2, None)


@given(
    low=st.integers(1, 8),
    more=st.integers(0, 8),
    before=st.integers(0, 40),
    busy=st.lists(st.floats(0, 100), max_size=10),
    refused=st.booleans(),
)
def test_the_bounds_hold_whatever_is_reported(
    low: int, more: int, before: int, busy: list[float], refused: bool
) -> None:
    replicas = Replicas(low, low + more)
    found = scaled(replicas, before, reports(*busy), refused, None, 0, T0)
    assert low <= found.wanted <= low + more


@given(load=st.floats(0.1, 6))
def test_a_constant_load_settles(load: float) -> None:
    """The load spreads over the replicas; the number reached needs no change any more."""
    wanted, replicas = 1, Replicas(1, 16)
    for _ in range(20):
        share = min(100.0, 100 * load / wanted)
        wanted = scaled(replicas, wanted, reports(*[share] * wanted), False, None, 0, T0).wanted
    assert load / wanted <= BUSY_MAX + 1e-9
    assert wanted == 1 or load / (wanted - 1) > BUSY_MAX - 1e-9


def test_a_service_under_load_gets_replicas_and_loses_them_again() -> None:
    scene = ServiceWorld(make_service(replicas=Replicas(1, 3)))
    load = 150.0

    def report(live: Live) -> ServingReport:
        return ServingReport(ready=True, busy_percent=min(100.0, load / len(scene.ready())))

    scene.report = report
    scene.run(60)
    assert len(scene.ready()) == 3
    assert scene.status.wanted_replicas == 3
    load = 10.0
    scene.run(290)
    assert len(scene.ready()) == 3
    scene.run(60)
    assert len(scene.ready()) == 1


def test_a_replica_that_answers_and_does_not_report_may_have_the_load() -> None:
    found = scaled(Replicas(1, 4), 2, reports(55), False, T0, 1, T0 + FEWER_AFTER, some_silent=True)
    assert found.wanted == 2
    found = scaled(Replicas(1, 4), 2, reports(150), False, None, 0, T0, some_silent=True)
    assert found.wanted == 3, "more are never wrong"


def test_an_external_engine_has_the_least_number_of_replicas() -> None:
    """It reports no load."""
    optimize = ServiceOptimize(backend=BackendName.EXTERNAL)
    scene = ServiceWorld(make_service(replicas=Replicas(1, 5), optimize=optimize))
    scene.report = lambda live: None
    for least in (1, 4, 1):
        scene.edit(replicas=Replicas(least, 5))
        scene.run(120)
        assert len(scene.ready()) == least


def test_a_replica_that_answers_again_brings_no_new_refusals() -> None:
    """Its process counts from its start, and its probe failed only for a moment."""
    scene = ServiceWorld(make_service(replicas=Replicas(2, 4)))
    scene.report = lambda live: ServingReport(ready=True, refused=5)
    scene.run(60)
    first = scene.replicas()[0]
    first.ready = False
    scene.run(20)
    first.ready = True
    scene.run(20)
    assert scene.status.wanted_replicas == 2
