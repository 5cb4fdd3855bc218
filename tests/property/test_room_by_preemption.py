"""I11: a job that an empty cluster takes gets room from jobs of lower priority, whatever they hold:
GPUs, CPU, places for pods, or places in the domains of a gang that is spread.
"""

import random
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_node, make_template
from tests.harness.hosts import Hosts

pytestmark = pytest.mark.promise("I11")

SEEDS = 60
HOST, ZONE = "kubernetes.io/hostname", "zone"


def spread(rng: random.Random, name: str) -> dict[str, Any]:
    key, selector = rng.choice((HOST, ZONE)), {"matchLabels": {"app": name}}
    if rng.random() < 0.5:
        term = {"topologyKey": key, "labelSelector": selector}
        required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        return {"affinity": {"podAntiAffinity": required}}
    constraint = {
        "maxSkew": rng.choice((1, 1, 2)),
        "topologyKey": key,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": selector,
    }
    return {"topologySpreadConstraints": [constraint]}


def job(rng: random.Random, name: str, **fields: Any) -> GPUJob:
    workers = rng.choice((1, 1, 2, 2, 3, 4))
    pod = spread(rng, name) if workers > 1 and rng.random() < 0.5 else {}
    template = make_template(cpu=str(rng.choice((1, 2, 4, 6, 8))), command=("train", name), **pod)
    template["metadata"] = {"labels": {"app": name}}
    return make_job(
        name,
        workers=workers,
        gpus_per_worker=rng.choice((1, 1, 1, 2)),
        sharing=SharingMode.EXCLUSIVE,
        template=template,
        **fields,
    )


def cluster(rng: random.Random) -> dict[str, Any]:
    gpu_nodes, nodes = [], []
    for number in range(rng.randint(1, 3)):
        name, pods = f"n{number}", rng.choice((3, 6, 100))
        gpus = (make_gpu(f"GPU-{number}{k}", index=k) for k in range(rng.randint(1, 4)))
        gpu_nodes.append(make_gpu_node(name, *gpus))
        labels = {ZONE: rng.choice("ab"), HOST: name}
        cpu = rng.choice((8, 8, 12, 16))
        nodes.append(make_node(name, cpu=cpu, labels=labels, pods_allocatable=pods, pods_free=pods))
    return {"gpu_nodes": gpu_nodes, "nodes": nodes}


def starts(world: Hosts) -> bool:
    for _ in range(40):
        world.tick(10)
        if world.phase("high") is JobPhase.RUNNING:
            return True
    return False


def test_it_preempts_in_any_cluster_that_could_take_it() -> None:
    tried = 0
    for seed in range(SEEDS):
        rng = random.Random(seed)
        seen, high = cluster(rng), job(rng, "high", priority=5, created=5)
        if not starts(Hosts(high, **seen)):
            continue
        world = Hosts(*(job(rng, f"low{n}") for n in range(rng.randint(1, 6))), **seen)
        world.tick()
        tried += 1
        world.submit(high)
        assert starts(world), f"seed {seed}: {world.why('high')}"
    assert tried > SEEDS / 2
