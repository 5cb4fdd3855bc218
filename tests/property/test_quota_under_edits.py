"""I11: the rule of quota holds whatever is edited while jobs run.

Nobody is placed beyond a quota, and nobody within what is promised to it is stopped for another
queue or waits for what others would give back.
"""

import re
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, GPUJobSpec, JobPhase, Sharing, SharingMode
from gpujob_api.gpuqueue import GPUQueue, PriorityRange
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.plan import Plan, WriteStatus
from gpujob_operator.decide.model.stop_reasons import RECLAIMED
from tests.harness.builders import (
    MODEL,
    make_gpu,
    make_gpu_node,
    make_job,
    make_queue,
    measured,
    with_status,
)
from tests.harness.world import World
from tests.property.queue_trees import NAMES
from tests.property.quota_reference import Reference

pytestmark = pytest.mark.promise("I11")

SEEDS, SEEDS_A_TEST = 16, 4
LARGE = "NVIDIA H100"
NAMESPACES = ("team", "other")


def any_queue(random: Random, name: str) -> GPUQueue:
    others = [one for one in NAMES if one != name]
    before = NAMES[: NAMES.index(name)]
    parent = random.choice(("", *before, *before, *before) if random.random() < 0.9 else others)
    nominal = random.choice((None, *range(5)))
    quota: dict[str, Any] = {} if nominal is None else {"gpus": nominal}
    borrow, weight = random.choice((None, *range(4))), random.choice((1, 1, 3, 1_000_000))
    queue = make_queue(name, parent=parent, borrow=borrow, weight=weight, **quota)
    allowed = random.choice((None, None, None, NAMESPACES, ("team",), ()))
    bounds = random.choice((None, None, PriorityRange(0, 1)))
    return replace(queue, spec=replace(queue.spec, namespaces=allowed, priority=bounds))


def any_job(random: Random, number: int, seconds: float) -> GPUJob:
    """Some are of a whole GPU, some share by what they were measured to need."""
    workers, gpus = random.choice(((1, 1), (1, 1), (1, 2), (2, 1), (3, 1)))
    job = make_job(
        f"j{number}",
        namespace=random.choice(NAMESPACES),
        queue=random.choice(NAMES),
        priority=random.choice((0, 0, 1, 5)),
        workers=workers,
        gpus_per_worker=gpus,
        models=random.choice(((), (MODEL,), (LARGE,))),
        sharing=random.choice((SharingMode.AUTO, SharingMode.EXCLUSIVE)),
        suspend=random.random() < 0.1,
        created=seconds,
    )
    if random.random() < 0.4:
        size = random.choice((4, 10, 16)) * GIB
        return with_status(job, measurement=measured(size, utilization_percent=10.0))
    return job


def any_edit(random: Random, spec: GPUJobSpec) -> GPUJobSpec:
    change = random.randrange(4)
    if change == 0:
        return replace(spec, queue=random.choice(NAMES))
    if change == 1:
        return replace(spec, priority=random.choice((0, 1, 5)))
    if change == 2:
        return replace(spec, suspend=not spec.suspend)
    return replace(spec, sharing=Sharing(random.choice((SharingMode.AUTO, SharingMode.EXCLUSIVE))))


class Edited(World):
    """Compares every cycle with the rule."""

    @property
    def reference(self) -> Reference:
        return Reference({one.metadata.name: one for one in self.snapshot.queues})

    @property
    def use(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for job in self.snapshot.jobs:
            if holds_gpus(job):
                found[job.status.queue or job.spec.queue] += job.spec.gpus
        return found

    def step(self) -> Plan:
        before, use = self.reference, self.use
        decided = super().step()
        items = [one for one in decided.items if isinstance(one, WriteStatus)]
        for one in items:
            was, now = one.job.status.placement, one.status.placement
            name = one.status.queue or ""
            if (was is None and now is not None) or one.job.status.queue not in (None, name):
                assert now is None or self._is_within(name), (one.job.metadata.name, name)
            if one.status.stop is not None and one.job.status.stop is None:
                self._may_be_stopped(one, before, use)
        return decided

    def _is_within(self, name: str) -> bool:
        """No queue above holds more than it may, after a cycle that placed a job below it."""
        reference, use = self.reference, self.use
        exists = name in reference.queues
        return exists and all(
            reference.total(up, use) <= reference.most(up) for up in reference.up(name)
        )

    def _may_be_stopped(self, item: WriteStatus, reference: Reference, use: Counter[str]) -> None:
        stop = item.status.stop
        if stop is None or stop.reason != RECLAIMED:
            return
        name = item.job.status.queue or ""
        found = re.search(r"quota of queue (\w+)", stop.message)
        if found is None:
            assert name not in reference.queues, stop.message
            return
        to = found.group(1)
        way = [one for one in reversed(reference.up(name)) if one not in reference.up(to)]
        at = way[0] if way else name
        assert reference.borrows(at, reference.parent(at) if way else name, use), stop.message


def edit(random: Random, world: Edited) -> None:
    """One of the jobs or one of the queues changes; or a queue goes, or comes back."""
    jobs, queues = world.snapshot.jobs, {one.metadata.name: one for one in world.snapshot.queues}
    open_jobs = [job for job in jobs if not job.finished]
    name = random.choice(NAMES)
    if open_jobs and random.random() < 0.6:
        job = random.choice(open_jobs)
        metadata = replace(job.metadata, generation=job.metadata.generation + 1)
        after = replace(job, spec=any_edit(random, job.spec), metadata=metadata)
        jobs = tuple(after if one is job else one for one in jobs)
    elif name in queues and len(queues) > 2 and random.random() < 0.3:
        del queues[name]
    else:
        queue = any_queue(random, name)
        known = queues.get(name)
        queues[name] = queue if known is None else replace(known, spec=queue.spec)
    world.snapshot = replace(world.snapshot, jobs=jobs, queues=tuple(queues.values()))


def may_start(world: Edited, job: GPUJob) -> bool:
    queue = {one.metadata.name: one for one in world.snapshot.queues}.get(job.spec.queue)
    if queue is None or job.spec.suspend:
        return False
    allowed, bounds = queue.spec.namespaces, queue.spec.priority
    if allowed is not None and job.metadata.namespace not in allowed:
        return False
    return bounds is None or 0 <= job.spec.priority <= 1


def is_owed(world: Edited, job: GPUJob) -> bool:
    """An entitled job of one GPU waits, although another job has one that it would give back."""
    reference, use, name = world.reference, world.use, job.spec.queue
    if job.spec.gpus > 1 or not may_start(world, job) or not reference.is_promised_any(name):
        return False
    if not reference.is_entitled(name, 1, use):
        return False
    if "for an earlier job" in world.why(job.metadata.name):
        # Its GPUs are nominated, or its quota is held, for a job that comes first.
        return False
    models = job.spec.gpu.models or (MODEL, LARGE)
    return any(
        reference.gives_back(other.status.queue or other.spec.queue, name, use)
        and other.status.placement.gpu_model in models
        and _has_gpus_alone(world, other)
        and reference.is_allowed(
            name, 1, use - Counter({other.status.queue or "": other.spec.gpus})
        )
        for other in world.snapshot.jobs
        if other.status.phase is JobPhase.RUNNING and other.status.placement is not None
    )


def _has_gpus_alone(world: Edited, job: GPUJob) -> bool:
    others = (one for one in world.snapshot.jobs if holds_gpus(one) and one is not job)
    gpus = world.gpus(job.metadata.name)
    return all(gpus.isdisjoint(world.gpus(one.metadata.name)) for one in others)


def check_gpus(world: Edited) -> None:
    held: Counter[str] = Counter()
    for job in world.snapshot.jobs:
        if holds_gpus(job) and job.status.reservation is not None:
            for gpu in world.gpus(job.metadata.name):
                held[gpu] += job.status.reservation.memory_bytes
    sizes = {
        gpu.uuid: gpu.memory_total_bytes
        for node in world.snapshot.gpu_nodes
        for gpu in node.status.gpus
    }
    assert all(held[gpu] <= sizes[gpu] for gpu in held), held


def play(seed: int) -> None:
    random = Random(seed)
    nodes = [
        make_gpu_node(
            f"n{number}",
            *(make_gpu(f"GPU-{number}{n}", index=n, model=model) for n in range(2)),
        )
        for number, model in enumerate((MODEL, MODEL, LARGE))
    ]
    queues = tuple(any_queue(random, name) for name in NAMES)
    world = Edited(gpu_nodes=nodes, queues=queues)
    for number in range(30):
        world.submit(any_job(random, number, world.seconds))
        if random.random() < 0.6:
            edit(random, world)
        running = sorted(world.running())
        if running and random.random() < 0.3:
            world.end(random.choice(running), random.choice((0, 0, 1)))
        world.tick(random.choice((1.0, 20.0, 90.0)))
        check_gpus(world)
    for _ in range(4):
        world.tick(400)
    owed = {
        job.metadata.name: world.why(job.metadata.name)
        for job in world.snapshot.jobs
        if job.status.phase is JobPhase.PENDING and is_owed(world, job)
    }
    assert not owed
    assert all(job.status.counters.preemptions <= 3 for job in world.snapshot.jobs)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_the_rule_of_quota_holds_whatever_is_edited(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        play(seed)
