"""The queues of a part of the seeds: who may use them, their quotas, and who shares GPUs."""

from dataclasses import replace
from random import Random
from typing import Any

from gpujob_api.manifest import gpuqueue_from_manifest
from tests.simulation.queue_rules import admits, gpu_limit
from tests.simulation.workloads import NAMESPACES, Scenario, Submission, make_queue

QUEUE_SHARE = 1 / 3
PARENT = "lab"
CHILDREN = ("north", "south")
# A reservation is at most the whole card.
CARD_GIB = 24


def with_queues(seed: int, scenario: Scenario) -> Scenario:
    """The scenario, of some seeds with one to three queues more, and each job in one of them."""
    random = Random(seed * 67_867_967 + 9)
    if random.random() >= QUEUE_SHARE:
        return scenario
    gpus = sum(node.gpus for node in scenario.nodes)
    sizes = [size for one in scenario.submissions if (size := _gpus_of(one.spec)) <= gpus]
    queues = _queues(random, gpus, max(sizes, default=1))
    names = [queue["metadata"]["name"] for queue in queues]
    submissions = [_in_queue(one, random.choice(names), queues) for one in scenario.submissions]
    return replace(scenario, queues=queues, submissions=tuple(submissions))


def _queues(random: Random, gpus: int, largest: int) -> tuple[dict[str, Any], ...]:
    """`default`, one or two queues, and sometimes their parent.

    `largest` is how many GPUs a job needs.
    """
    has_parent = random.random() < 0.5
    found = [make_queue("default", **_group(random))]
    for name in CHILDREN[: random.choice([1, 2, 2])]:
        parent = {"parent": PARENT} if has_parent else {}
        found.append(make_queue(name, **_child(random, gpus, largest), **parent))
    if has_parent:
        quota = _quota(random.randint(largest, max(largest, gpus)), largest)
        found.append(make_queue(PARENT, nominal=quota, **_group(random)))
    return tuple(found)


def _child(random: Random, gpus: int, largest: int) -> dict[str, Any]:
    """Often so small that it has to borrow, or that its larger jobs never fit."""
    spec: dict[str, Any] = {"weight": random.choice([1, 1, 3]), **_group(random)}
    if random.random() < 0.7:
        spec["nominal"] = _quota(random.randint(1, gpus), largest)
    if random.random() < 0.4:
        spec["borrowingLimit"] = {"gpus": random.choice([0, 1, 2])}
    if random.random() < 0.3:
        one, other = NAMESPACES
        spec["namespaces"] = random.choice([[one, other], [one], [one], [other], [other], []])
    if random.random() < 0.3:
        spec["priority"] = random.choice([{"minimum": 0}, {"maximum": 0, "minimum": -5}])
    return spec


def _quota(gpus: int, largest: int) -> dict[str, Any]:
    """Enough memory for any job that has enough GPUs."""
    return {"gpus": gpus, "gpuMemory": f"{CARD_GIB * max(gpus, largest)}Gi"}


def _group(random: Random) -> dict[str, Any]:
    return random.choice([{}, {}, {"sharingGroup": "friends"}])


def _in_queue(submission: Submission, name: str, queues: tuple[dict[str, Any], ...]) -> Submission:
    """One that the queue never admits, or that never fits into it, waits for ever."""
    spec: dict[str, Any] = {**submission.spec, "queue": name}
    workload = submission.workload
    nouns = {queue["metadata"]["name"]: gpuqueue_from_manifest(queue) for queue in queues}
    queue, priority = nouns[name], spec.get("priority", 0)
    both = (queue, nouns[queue.spec.parent or name])
    limits = [limit for one in both if (limit := gpu_limit(one)) is not None]
    fits = _gpus_of(spec) <= min(limits, default=_gpus_of(spec))
    if not (fits and admits(queue, submission.namespace, priority)):
        workload = replace(workload, expected="Pending")
    return replace(submission, spec=spec, workload=workload)


def _gpus_of(spec: dict[str, Any]) -> int:
    return spec.get("workers", 1) * spec.get("gpusPerWorker", 1)
