"""The whole operator process beside a namespace in trouble: the others do not feel it (I15).

The API server is `tests.harness.http_api`: it refuses, is slow or loses answers in one namespace.
Bounds on times are several times what an idle machine takes, and are compared in one run with the
same jobs while all is well.
"""

import time
from pathlib import Path
from statistics import median

import pytest

from gpujob_operator.client.kube import PODS
from tests.harness.http_api_objects import status_body
from tests.harness.http_world import operator_world
from tests.harness.waiting import wait_until

MEDIAN_SECONDS_MAX = 0.5
WORST_SECONDS_MAX = 1.5
WEBHOOK_DOWN = 'Internal error occurred: failed calling webhook "inject": no endpoints available'


def _is_unhindered(well: list[float], beside: list[float]) -> None:
    """As fast as the promise says, or as this machine is while nothing is wrong."""
    assert median(beside) <= max(MEDIAN_SECONDS_MAX, 2 * median(well)), (well, beside)
    assert max(beside) <= max(WORST_SECONDS_MAX, 3 * max(well)), (well, beside)


@pytest.mark.promise("I15")
@pytest.mark.slow
def test_a_webhook_that_is_down_is_felt_in_its_own_namespace_only(tmp_path: Path) -> None:
    with operator_world(tmp_path) as world:
        well = world.seconds_to_pod("before")
        world.api.fail(
            PODS,
            "sick",
            500,
            status_body(500, "InternalError", WEBHOOK_DOWN),
            methods=["POST"],
        )
        lists = world.lists_of_pods()
        for number in range(60):
            # Templates of their own, so that each of them is tried.
            world.submit("sick", f"job-{number}", image=f"image:{number}")
        wait_until(lambda: len(world.creates("sick")) >= 40, seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        assert world.lists_of_pods() == lists
        world.api.heal()
        wait_until(lambda: len(world.pods("sick")) >= 20, seconds=120)
        assert world.lists_of_pods() == lists


@pytest.mark.promise("I15")
@pytest.mark.slow
def test_answers_that_are_lost_in_one_namespace_affect_no_other(tmp_path: Path) -> None:
    """Nobody can say whether these pods were created: their names are asked after."""
    with operator_world(tmp_path) as world:
        well = world.seconds_to_pod("before")
        for methods, after_effect in ((["POST"], True), (["GET"], False)):
            world.api.fail(PODS, "sick", 503, methods=methods, after_effect=after_effect)
        lists = world.lists_of_pods()
        for number in range(20):
            world.submit("sick", f"job-{number}")
        wait_until(lambda: len(world.creates("sick")) >= 20, seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        assert world.lists_of_pods() == lists


@pytest.mark.promise("I15")
@pytest.mark.slow
def test_a_gang_whose_pods_are_slow_to_create_delays_nobody(tmp_path: Path) -> None:
    with operator_world(tmp_path) as world:
        well = world.seconds_to_pod("before")
        world.api.delay(PODS, "sick", 0.8, methods=["POST"])
        started = time.monotonic()
        world.submit("sick", "gang", workers=25)
        wait_until(lambda: bool(world.creates("sick")), seconds=60)
        beside = world.seconds_to_pod("beside")
        _is_unhindered(well, beside)
        wait_until(lambda: len(world.pods("sick")) == 25, seconds=60)
        assert time.monotonic() - started < 25 * 0.8, "side by side"
