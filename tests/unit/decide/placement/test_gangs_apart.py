"""Workers of a gang lie apart where their template, a kubelet's ports or a refusal says so."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.start_refusal import StartRefusal
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.lifecycle.start_refusals import refusal_of
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gang_spread import spread_rules
from gpujob_operator.decide.model.snapshot import PodPhase
from gpujob_operator.decide.packing.apart import DomainLimit, place_apart
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pod,
    make_snapshot,
    make_template,
    placed,
    statuses,
    with_status,
)
from tests.harness.world import World

OWN = {"app": "train"}
SELECTOR = {"matchLabels": OWN}


def anti(key: str = "kubernetes.io/hostname", **term: Any) -> dict[str, Any]:
    one = {"topologyKey": key, "labelSelector": SELECTOR, **term}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [one]}
    return {"affinity": {"podAntiAffinity": required}}


def balanced(skew: int, key: str = "zone", **more: Any) -> dict[str, Any]:
    one = {"topologyKey": key, "maxSkew": skew, "labelSelector": SELECTOR,
           "whenUnsatisfiable": "DoNotSchedule", **more}  # fmt: skip
    return {"topologySpreadConstraints": [one]}


def gang(workers: int = 2, name: str = "gang", **pod: Any) -> GPUJob:
    template = {**make_template(command=("train", name), **pod), "metadata": {"labels": OWN}}
    return make_job(name, workers=workers, sharing=SharingMode.EXCLUSIVE, template=template)


def ports(**port: int) -> dict[str, Any]:
    template = make_template()
    template["spec"]["containers"][0]["ports"] = [port]
    return {"containers": template["spec"]["containers"]}


def cluster(*sizes: int, zones: str = "", at: float = 0.0) -> dict[str, Any]:
    """Nodes with so many GPUs each, and a letter for the zone of each."""
    readings = [
        make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(count)), at=at)
        for n, count in enumerate(sizes)
    ]
    labels = [{"zone": zones[n]} if zones[n : n + 1].strip() else {} for n in range(len(sizes))]
    nodes = [make_node(f"n{n}", labels=labels[n]) for n in range(len(sizes))]
    return {"gpu_nodes": readings, "nodes": nodes}


def nodes_of(job: GPUJob, *sizes: int, zones: str = "", at: float = 0.0) -> Counter[str]:
    seen = make_snapshot(job, **cluster(*sizes, zones=zones, at=at))
    placement = statuses(plan(seen, after(at)).items)[job.metadata.name].placement
    return Counter(worker.node for worker in (placement.workers if placement is not None else ()))


def why(job: GPUJob, *sizes: int, zones: str = "") -> str:
    found = statuses(plan(make_snapshot(job, **cluster(*sizes, zones=zones)), after(0)).items)
    one = next(c for c in found[job.metadata.name].conditions if c.type == "Scheduled")
    return f"{one.reason}: {one.message}"


@pytest.mark.parametrize(
    "pod",
    [anti(), anti(namespaces=["team"]), anti(namespaceSelector={}), ports(hostPort=8080),
     {**ports(containerPort=8080), "hostNetwork": True},
     anti(labelSelector={"matchExpressions": [{"key": "app", "operator": "Exists"}]}),
     anti(labelSelector={}), anti(matchLabelKeys=["pod-template-hash"])],
)  # fmt: skip
def test_one_worker_is_on_a_node(pod: dict[str, Any]) -> None:
    assert nodes_of(gang(2, **pod), 4, 1) == {"n0": 1, "n1": 1}


@pytest.mark.parametrize(
    "pod",
    [{}, anti(labelSelector={"matchLabels": {"app": "other"}}), anti(namespaces=["elsewhere"]),
     anti(labelSelector=None), ports(containerPort=8080), anti(mismatchLabelKeys=["app"]),
     {"affinity": {"podAntiAffinity": "odd"}}, {"topologySpreadConstraints": [3]},
     balanced(1, whenUnsatisfiable="ScheduleAnyway")],
)  # fmt: skip
def test_what_does_not_mean_the_gang_itself_keeps_it_together(pod: dict[str, Any]) -> None:
    job = gang(2, **pod)
    assert spread_rules(job) == ()
    assert nodes_of(job, 4, 1) == {"n0": 2} or "odd" in str(pod) or "[3]" in str(pod)


def test_anti_affinity_by_zone_counts_zones() -> None:
    assert nodes_of(gang(2, **anti("zone")), 2, 2, 1, zones="aab") in (
        {"n0": 1, "n2": 1},
        {"n1": 1, "n2": 1},
    )
    assert nodes_of(gang(3, **anti("zone")), 2, 2, 1, zones="aab") == {}


@pytest.mark.parametrize(
    ("workers", "skew", "wanted"),
    [(2, 1, [1, 1]), (4, 1, [2, 2]), (3, 1, [1, 2]), (4, 2, [1, 3]), (6, 1, None)],
)
def test_zones_are_balanced(workers: int, skew: int, wanted: list[int] | None) -> None:
    """n0 of zone a has four GPUs, n1 of zone b has two, and a node without a zone is not used."""
    found = nodes_of(gang(workers, **balanced(skew)), 4, 2, 4, zones="ab ")
    counts = sorted(found.values())
    if wanted is None:
        assert not found
    else:
        assert "n2" not in found
        assert sum(counts) == workers
        assert max(counts) - min([*counts, *[0] * (2 - len(counts))]) <= skew


def test_a_spot_node_for_all_is_passed_over_where_they_may_not_be_together() -> None:
    seen = cluster(2, 1, 1)
    seen["nodes"] = [replace(node, spot=node.name == "n0") for node in seen["nodes"]]
    found = statuses(plan(make_snapshot(gang(2, **anti()), **seen), after(0)).items)["gang"]
    assert found.placement is not None
    assert len({worker.node for worker in found.placement.workers}) == 2


def test_the_condition_says_why_free_gpus_do_not_do() -> None:
    said = why(gang(3, **anti()), 4, 4)
    assert "its workers must lie apart (podAntiAffinity by kubernetes.io/hostname)" in said
    assert said.startswith("Unsatisfiable"), "there are two nodes for three workers"


def test_victims_are_chosen_on_nodes_apart() -> None:
    """The cheapest two GPUs are on one node; one of them and one elsewhere are freed."""
    lows = [make_job(f"low{n}", sharing=SharingMode.EXCLUSIVE) for n in range(3)]
    world = World(*lows, **cluster(2, 1))
    world.tick()
    high = gang(2, **anti())
    world.submit(replace(high, spec=replace(high.spec, priority=5)))
    world.tick(20)
    assert "gang" in world.running()
    assert len(world.running()) == 2


def test_a_nomination_is_on_nodes_apart() -> None:
    lows = [make_job(f"low{n}", sharing=SharingMode.EXCLUSIVE) for n in range(3)]
    world = World(*lows, **cluster(2, 1))
    world.tick()
    world.submit(gang(2, **anti()))
    world.tick(100)
    on_n0 = next(n for n in ("low0", "low1") if world.gpus(n) & {"GPU-00", "GPU-01"})
    world.end(on_n0)
    world.submit(make_job("late", sharing=SharingMode.EXCLUSIVE, created=101))
    world.tick(10)
    assert "late" not in world.running(), "that GPU is the gang's"


# -- combinations that were refused


def refused(node: str, *beside: str, until: float = 600.0) -> StartRefusal:
    words = "kube-scheduler refused it"
    return StartRefusal("Unschedulable", words, 1, after(until), node, beside, 1)


def test_a_refusal_knows_who_was_taken_where() -> None:
    job = placed(gang(3), ("n0", ("GPU-00",)), ("n0", ("GPU-01",)), ("n1", ("GPU-10",)))
    words: dict[str, Any] = {"reason": "Unschedulable", "message": "had a worker of the gang"}
    pods = (
        make_pod(job, 0, phase=PodPhase.PENDING),
        make_pod(job, 1, phase=PodPhase.PENDING, node=None, **words),
        make_pod(job, 2, phase=PodPhase.PENDING),
    )
    found = refusal_of(job, pods, JobInputs(), Configuration(), after(60))
    assert found is not None
    assert (found.node, found.beside) == ("n0", ("n0", "n1"))


def test_two_workers_that_were_refused_on_one_node_are_spread() -> None:
    """For a reason that nobody reads: the node is used all the same, by one of them."""
    job = with_status(gang(2), start_refusals=(refused("n0", "n0"),))
    assert nodes_of(job, 4, 1) == {"n0": 1, "n1": 1}
    assert nodes_of(job, 4, 4, at=601) in ({"n0": 2}, {"n1": 2}), "it is forgotten"


def test_a_pair_of_nodes_that_was_refused_is_not_tried_again_but_others_are() -> None:
    """Only n2 and n3 may be together, which nobody tells; each was refused beside n0."""
    tried = tuple(refused(node, "n0") for node in ("n1", "n2", "n3"))
    job = with_status(gang(2), start_refusals=tried)
    found = nodes_of(job, 1, 1, 1, 1)
    assert sum(found.values()) == 2
    assert "n0" not in found
    every = (*tried, refused("n2", "n1"), refused("n3", "n1"))
    assert set(nodes_of(with_status(gang(2), start_refusals=every), 1, 1, 1, 1)) == {"n2", "n3"}
    last = (*every, refused("n3", "n2"))
    assert not nodes_of(with_status(gang(2), start_refusals=last), 1, 1, 1, 1)


def test_workers_are_taken_one_after_the_other() -> None:
    limit = DomainLimit({"a": 0, "b": 0, "c": 1}, None, 1)
    assert dict(place_apart({"a": 5, "b": 1, "c": 5}, 4, [limit])) == {"a": 2, "c": 2}
    assert sum(n for _, n in place_apart({"a": 5, "c": 1}, 5, [limit])) == 3
    one = DomainLimit({"a": "a", "b": "b"}, 1, None)
    assert sum(n for _, n in place_apart({"a": 5, "b": 1}, 5, [one])) == 2


def test_the_gpus_for_its_own_workers_are_nobody_elses() -> None:
    world = World(make_job("low", sharing=SharingMode.EXCLUSIVE), **cluster(4))
    world.tick()
    world.submit(gang(4))
    world.tick()
    assert "of 4 GPUs: 3 free for its other workers; 1 allocated exclusively" in world.why("gang")


@pytest.mark.parametrize("requests", [{"cpu": "2"}, {"cpu": "1", "memory": "80Gi"}])
def test_a_gang_that_no_idle_node_has_the_cpu_and_memory_for_is_impossible(
    requests: dict[str, Any],
) -> None:
    """Three of four workers fit beside each other."""
    for workers, reason in ((4, "Unsatisfiable"), (3, "Placed")):
        template = make_template(**requests)
        world = World(make_job("gang", workers=workers, template=template), **cluster(4))
        world.snapshot = replace(world.snapshot, nodes=(make_node("n0", cpu=6),))
        world.tick()
        assert world.why("gang").startswith(reason)
