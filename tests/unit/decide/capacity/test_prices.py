"""Which spot nodes are taken away how often, and what follows for where jobs go."""

from typing import Any

import pytest

from gpujob_api.gpujob import SpotPolicy
from gpujob_operator.decide.capacity.prices import (
    PRIOR_HOURS,
    interruptions_per_hour,
    price_with_losses,
    rates,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot, SpotPool, pool_of
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    statuses,
)

TYPE, ZONE = "node.kubernetes.io/instance-type", "topology.kubernetes.io/zone"


def spot_node(name: str, zone: str, *, spot: bool = True) -> NodeView:
    return make_node(name, spot=spot, labels={TYPE: "g5", ZONE: zone})


def two_zones(*pools: SpotPool, prices: tuple[Any, Any] = (None, None)) -> Snapshot:
    """n0 is in zone a, n1 in zone b; otherwise they are equal."""
    return make_snapshot(
        make_job(),
        gpu_nodes=[
            make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), price=price)
            for n, price in enumerate(prices)
        ],
        nodes=[spot_node("n0", "a"), spot_node("n1", "b")],
        spot_pools=pools,
    )


def chosen(snapshot: Snapshot) -> str:
    placement = statuses(plan(snapshot, T0).items)["job"].placement
    assert placement is not None
    return placement.workers[0].node


def test_a_pool_is_an_instance_type_in_a_zone() -> None:
    assert pool_of(spot_node("n", "a")) == "g5/a"
    assert pool_of(make_node("n")) == "-/-"


def test_nothing_observed_is_the_prior_and_much_observed_is_what_was_seen() -> None:
    seen = two_zones(SpotPool("g5/a", 0, 0), SpotPool("g5/b", 10_000, 500))
    assert rates(seen)["g5/a"] == pytest.approx(1 / PRIOR_HOURS, rel=0.05)
    assert rates(seen)["g5/b"] == pytest.approx(0.05)
    assert interruptions_per_hour(spot_node("n", "c"), {}) == 1 / PRIOR_HOURS


def test_nobody_takes_back_a_node_that_is_not_spot() -> None:
    seen = rates(two_zones(SpotPool("g5/a", 100, 50)))
    assert interruptions_per_hour(spot_node("n", "a", spot=False), seen) == 0


def test_an_interruption_an_hour_costs_the_grace_and_the_restart() -> None:
    configuration = Configuration(termination_grace_seconds=30, restart_seconds=330.0)
    assert price_with_losses(2.0, 1.0, configuration) == pytest.approx(2.2)
    assert price_with_losses(2.0, 0.0, configuration) == 2.0


def test_of_equal_pools_the_first_and_else_the_calmer() -> None:
    assert chosen(two_zones()) == "n0"
    assert chosen(two_zones(SpotPool("g5/a", 100, 20), SpotPool("g5/b", 100, 1))) == "n1"
    assert chosen(two_zones(SpotPool("g5/a", 100, 1), SpotPool("g5/b", 100, 20))) == "n0"


def test_a_lower_price_counts_before_a_lower_risk_unless_losses_eat_it_up() -> None:
    wild, calm = SpotPool("g5/a", 1000, 600), SpotPool("g5/b", 1000, 0)
    assert chosen(two_zones(wild, calm, prices=(1.0, 1.5))) == "n0"
    assert chosen(two_zones(wild, calm, prices=(1.0, 1.001))) == "n1"


def test_a_planner_that_remembers_learns_of_risk() -> None:
    """What was kept of nodes is renewed when nothing but the rates changed."""
    planner, before = Planner(), two_zones()
    planner(before, T0)
    after = Snapshot(
        jobs=before.jobs,
        nodes=before.nodes,
        gpu_nodes=before.gpu_nodes,
        spot_pools=(SpotPool("g5/a", 100, 20),),
    )
    assert planner(after, T0) == plan(after, T0)
    assert chosen(after) == "n1"


def test_a_gang_goes_to_the_calmer_nodes_too() -> None:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(4)]
    zones = ("a", "b", "a", "b")
    seen = make_snapshot(
        make_job(workers=2, spot=SpotPolicy.REQUIRE),
        gpu_nodes=nodes,
        nodes=[spot_node(f"n{n}", zone) for n, zone in enumerate(zones)],
        spot_pools=(SpotPool("g5/a", 100, 20),),
        configuration=Configuration(topology_labels=()),
    )
    placement = statuses(plan(seen, T0).items)["job"].placement
    assert placement is not None
    assert [worker.node for worker in placement.workers] == ["n1", "n3"]
