"""The placement benchmark: the protocol's loop, peers' scores by hand, rows and last line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import placement
from bench.openb import peers, product
from bench.openb.cluster import Cluster, curve, simulate
from bench.openb.gradient import FragmentationGradientDescent, typical_pods
from bench.openb.product import Product, demand_of, mix_of
from bench.openb.trace import PodClass, Trace, read_trace, trace_names
from tests.harness.openb_folder import write_openb_folder, write_published


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    write_openb_folder(tmp_path)
    return read_trace(tmp_path, "tiny")


def scores(trace: Trace, scorer: peers.Scorer, cluster: Cluster, pod: PodClass) -> list[int]:
    rows = np.arange(len(cluster.cpu_free))
    return scorer.scores(cluster, rows, trace.classes.index(pod)).tolist()


SHARE = PodClass(4000, 8192, 1, 470, "")
ONE = PodClass(4000, 8192, 1, 1000, "")


def test_classes_and_arrivals(trace: Trace) -> None:
    assert len(trace.classes) == 6
    assert len(trace.of_pod) == 26
    arrivals = trace.arrivals(42)
    rank = trace.orders["rank42"].tolist()
    assert arrivals.nodes.names == tuple(f"n{rank.index(place)}" for place in range(3))
    assert sorted(arrivals.pod_class.tolist()) == sorted(trace.of_pod.tolist())
    assert trace.nodes.capacity_milli == 10_000


def test_a_trace_without_models(tmp_path: Path) -> None:
    write_openb_folder(tmp_path, "plain", spec=False)
    assert trace_names(tmp_path) == ("plain",)
    assert all(not pod.models for pod in read_trace(tmp_path, "plain").classes)


@pytest.mark.parametrize("policy", list(placement.POLICIES))
def test_every_policy_keeps_to_the_rules(trace: Trace, policy: str) -> None:
    """`Cluster.take` asserts that nothing goes below zero; here: models, sums and determinism."""
    arrivals = trace.arrivals(42)
    made = placement.POLICIES[policy](trace, arrivals.nodes, 42)
    cluster = Cluster.empty(arrivals.nodes)
    used = 0
    for number in arrivals.pod_class.tolist():
        pod = trace.classes[number]
        placed = made.place(cluster, number)
        fits = cluster.fits(np.arange(3), pod)
        models = np.array([not pod.models or m in pod.models for m in arrivals.nodes.models])
        assert (placed is not None) == bool((fits & models).any())
        if placed is not None:
            assert fits[placed[0]]
            assert models[placed[0]]
            assert len(set(placed[1])) == pod.num_gpu
            cluster.take(placed[0], placed[1], pod)
            used += pod.demand_milli
    assert used + int(cluster.gpu_total.sum()) == 10_000
    again = placement.POLICIES[policy](trace, arrivals.nodes, 42)
    run = simulate(arrivals, trace.classes, again)
    reached = run.allocation_percent[~np.isnan(run.allocation_percent)]
    assert reached[-1] == pytest.approx(100 * used / 10_000, abs=0.01)


def test_curve_takes_the_mean_of_a_bin_and_fills_empty_ones() -> None:
    found = curve(np.array([[0.6, 1.0], [1.4, 3.0], [3.0, 6.0]]))
    assert found[1] == 2.0
    assert found[2] == 4.0
    assert found[3] == 6.0


def test_best_fit_by_hand(trace: Trace) -> None:
    cluster = Cluster.empty(trace.nodes)
    # 4 GPUs, 32 cores: 1 - (0.5 * 28/128 + 0.5 * 3.53/8) = 0.67; 2 GPUs, 16 cores: 0.857.
    assert scores(trace, peers.BestFit(trace.classes), cluster, SHARE) == [67, 67, 85]


def test_dot_product_by_hand(trace: Trace) -> None:
    cluster = Cluster.empty(trace.nodes)
    assert scores(trace, peers.DotProduct(trace.classes), cluster, ONE) == [96, 96, 98]


def test_packing_prefers_a_shared_gpu_then_a_used_node(trace: Trace) -> None:
    cluster = Cluster.empty(trace.nodes)
    packing = peers.GpuPacking(trace.classes)
    assert scores(trace, packing, cluster, SHARE) == [29, 29, 31]
    cluster.take(1, (0,), SHARE)
    assert scores(trace, packing, cluster, SHARE) == [29, 95, 31]
    cluster.take(1, (0,), SHARE)
    assert scores(trace, packing, cluster, SHARE) == [29, 49, 31]


def test_clustering_prefers_nodes_of_its_kind(trace: Trace) -> None:
    cluster = Cluster.empty(trace.nodes)
    clustering = peers.GpuClustering(trace.classes)
    share = trace.classes.index(SHARE)
    cluster.take(0, clustering.gpus(cluster, 0, share), SHARE)
    assert scores(trace, clustering, cluster, SHARE) == [88, 37, 43]
    assert scores(trace, clustering, cluster, ONE) == [13, 37, 43]


def test_share_pods_go_on_the_tightest_gpu(trace: Trace) -> None:
    cluster = Cluster.empty(trace.nodes)
    cluster.take(0, (2,), SHARE)
    assert peers.tightest_gpu(cluster, 0, SHARE) == [2]
    assert peers.first_idle_gpus(cluster, 0, ONE) == [0]


def test_typical_pods_cover_95_percent_most_frequent_first(trace: Trace) -> None:
    typical = typical_pods(trace)
    assert typical[0][0].gpu_milli == 470
    assert sum(weight for _, weight in typical) == pytest.approx(1.0)
    assert [pod.num_gpu for pod, _ in typical].count(0) == 1


def test_fgd_fills_the_open_gpu(trace: Trace) -> None:
    arrivals = trace.arrivals(42)
    policy = peers.Ranked(trace.classes, FragmentationGradientDescent(trace, arrivals.nodes.models))
    cluster = Cluster.empty(arrivals.nodes)
    share = trace.classes.index(SHARE)
    first = policy.place(cluster, share)
    assert first is not None
    cluster.take(*first, SHARE)
    assert policy.place(cluster, share) == first


def test_scores_kept_equal_scores_made_anew(trace: Trace) -> None:
    arrivals = trace.arrivals(43)
    kept = peers.Ranked(trace.classes, peers.BestFit(trace.classes))
    cluster = Cluster.empty(arrivals.nodes)
    for number in arrivals.pod_class.tolist():
        fresh = peers.Ranked(trace.classes, peers.BestFit(trace.classes))
        placed = kept.place(cluster, number)
        assert placed == fresh.place(cluster, number)
        if placed is not None:
            cluster.take(*placed, trace.classes[number])


def test_the_products_demand_is_the_pods(trace: Trace) -> None:
    demand = demand_of(PodClass(8000, 8192, 2, 1000, "G2|G3"))
    assert (demand.gpus, demand.exclusive, demand.models) == (2, True, {"G2", "G3"})
    share = demand_of(SHARE)
    assert (share.gpu_memory_bytes, share.exclusive, share.utilization_percent) == (470, False, 0)
    assert sum(mix_of(trace).weights) == pytest.approx(1.0)


def test_the_products_rule_is_the_one_that_is_run(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    real = product.choose

    def spy(*arguments: Any) -> object:
        asked.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(product, "choose", spy)
    arrivals = trace.arrivals(42)
    simulate(arrivals, trace.classes, Product(trace, arrivals.nodes))
    assert asked


def test_rows_table_and_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_openb_folder(tmp_path)
    write_published(tmp_path, "tiny", "FGD", 42, 50.0)
    placement.main(["--data", str(tmp_path), "--seeds", "42-43", "--policies", "FGD,gpujob"])
    output = capsys.readouterr()
    last = json.loads(output.out.splitlines()[-1])
    found = {(row["policy"], row["source"], row["arrived_percent"]) for row in last["results"]}
    assert found == {
        (policy, source, percent)
        for policy, source in (("FGD", "reproduced"), ("FGD", "published"), ("gpujob", "ours"))
        for percent in (100, 130)
    }
    ours = next(row for row in last["results"] if row["source"] == "ours")
    assert set(ours) == {
        "trace",
        "policy",
        "source",
        "arrived_percent",
        "allocation_percent_mean",
        "allocation_percent_sd",
        "seeds",
    }
    assert ours["seeds"] == 2
    published = [row for row in last["results"] if row["source"] == "published"]
    assert [row["allocation_percent_mean"] for row in published] == [50.0, 50.0]
    assert last["gain_points"][0]["against"] == "published"
    assert "tiny" in output.out
    assert "2 runs" in output.err


@pytest.mark.parametrize(
    ("text", "seeds"), [("42", [42]), ("42-44", [42, 43, 44]), ("1,3-4", [1, 3, 4])]
)
def test_seeds(text: str, seeds: list[int]) -> None:
    assert placement.parse_seeds(text) == seeds
