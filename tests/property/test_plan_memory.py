"""What planning remembers changes no plan, whatever was there before."""

from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus, ProfileEntry
from gpujob_api.meta import Metadata
from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.jobs import JobEntry
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.measurement.profile import profile_name
from gpujob_operator.decide.model.configuration import Configuration, OrderPolicy
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import GonePod, ProgramFault, Snapshot
from gpujob_operator.decide.planner import Planner, plan
from tests.harness.builders import (
    MODEL,
    NAMESPACE,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_queue,
    make_report,
    make_snapshot,
    measured,
    received,
    used,
    with_status,
)
from tests.harness.world import World
from tests.property.plan_snapshots import NOW, fresh_clusters, odd_snapshots

pytestmark = pytest.mark.promise("I9")

some = settings(max_examples=60)


def assert_same(remembered: Plan, fresh: Plan) -> None:
    assert remembered.items == fresh.items
    # Deadlines are kept as moments: their distance is the same but for the last digits.
    if fresh.next_seconds is None or remembered.next_seconds is None:
        assert remembered.next_seconds == fresh.next_seconds
    else:
        assert remembered.next_seconds == pytest.approx(fresh.next_seconds, abs=1e-3)


def some_of(one: tuple[Any, ...], other: tuple[Any, ...], random: Random) -> tuple[Any, ...]:
    """Objects of both, each once, by UID or name."""
    mixed: dict[str, Any] = {}
    for item in random.sample((*one, *other), len(one) + len(other)):
        if random.random() < 0.8:
            name = getattr(item, "uid", "") or getattr(item, "name", "")
            mixed.setdefault(name or item.metadata.uid or item.metadata.name, item)
    return tuple(mixed.values())


def between(one: Snapshot, other: Snapshot, random: Random) -> Snapshot:
    """A picture in which some is of the one, some of the other, and some is gone."""
    return replace(
        one,
        jobs=some_of(one.jobs, other.jobs, random),
        pods=some_of(one.pods, other.pods, random),
        nodes=some_of(one.nodes, other.nodes, random),
        gpu_nodes=one.gpu_nodes if random.random() < 0.5 else other.gpu_nodes,
        queues=some_of(one.queues, other.queues, random),
        profiles=some_of(one.profiles, other.profiles, random),
        volumes=some_of(one.volumes, other.volumes, random),
        reports=one.reports if random.random() < 0.5 else other.reports,
        refused_pods=one.refused_pods if random.random() < 0.5 else other.refused_pods,
        refused_templates=(
            one.refused_templates if random.random() < 0.5 else other.refused_templates
        ),
        usage=one.usage if random.random() < 0.5 else other.usage,
    )


@some
@given(odd_snapshots() | fresh_clusters(), odd_snapshots() | fresh_clusters(), st.integers(0, 999))
def test_a_memory_of_another_picture_changes_nothing(
    one: Snapshot, other: Snapshot, seed: int
) -> None:
    random = Random(seed)
    memory = SchedulerCache.of(one)
    pictures = (one, between(one, other, random), other, between(other, one, random), one, one)
    for number, snapshot in enumerate(pictures):
        now = NOW + timedelta(seconds=number * 7)
        if not memory.holds_for(snapshot):
            memory = SchedulerCache.of(snapshot)
        fresh = SchedulerCache.of(snapshot)
        assert_same(plan(snapshot, now, memory), plan(snapshot, now, fresh))
        assert memory.mix.equals(fresh.mix)
        assert memory.capacity == fresh.capacity
        assert memory.entries.keys() == fresh.entries.keys()
        assert set(memory.holders.jobs) == set(fresh.holders.jobs)


# -- a cluster that lives


def any_job(random: Random, number: int, seconds: float) -> GPUJob:
    fields: dict[str, Any] = {
        "created": seconds,
        "priority": random.choice([0, 0, 0, 2]),
        "queue": random.choice(["default", "a", "b"]),
        "workers": random.choice([1, 1, 2]),
    }
    kind = f"kind{random.randrange(3)}"
    if random.random() < 0.3:
        fields["sharing"] = SharingMode.EXCLUSIVE
    job = make_job(f"job{number}", **fields)
    if random.random() < 0.5:
        known = measured(random.choice([2, 5, 9]) * GIB, utilization_percent=10.0)
        job = with_status(job, measurement=replace(known, steps_total=random.choice([None, 400])))
    return replace(job, spec=replace(job.spec, template=make_job(kind).spec.template))


class Living(World):
    """A world that plans with a memory, and asserts in every cycle that it does not matter."""

    def __init__(self, *jobs: GPUJob, **snapshot: Any) -> None:
        super().__init__(*jobs, **snapshot)
        self.planner = Planner()
        self.cycles = 0

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        fresh = plan(snapshot, now)
        assert_same(self.planner(snapshot, now), fresh)
        self.cycles += 1
        return fresh


@pytest.mark.parametrize("seed", range(4))
def test_a_life_with_a_memory_is_the_life_without(seed: int) -> None:
    random = Random(seed)
    nodes = [
        make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(2)))
        for n in range(3)
    ]
    queues = [make_queue("a", gpus=2, borrow=3), make_queue("b", gpus=3)]
    policy = list(OrderPolicy)[seed % len(OrderPolicy)]
    world = Living(gpu_nodes=nodes, queues=queues, configuration=Configuration(order_policy=policy))
    for number in range(25):
        world.submit(any_job(random, number, world.seconds))
        running = sorted(world.running())
        if running and random.random() < 0.6:
            world.end(random.choice(running), random.choice([0, 0, 1]))
        reports, usage = [], {}
        for job in world.snapshot.jobs:
            if job.status.phase is JobPhase.RUNNING and random.random() < 0.7:
                step = int(world.seconds)
                report = make_report(job.status.attempt, step=step, checkpoint_step=step // 2)
                reports.append(received(job, report, world.seconds))
                usage[job.metadata.uid, job.status.attempt] = used(random.choice([3, 6]) * GIB)
        world.snapshot = replace(world.snapshot, reports=tuple(reports), usage=usage)
        world.tick(random.choice([0.5, 3.0, 20.0, 90.0]))
    assert world.cycles > 50


def test_a_cycle_that_fails_leaves_no_half_memory() -> None:
    planner = Planner()
    world = World(make_job("a"))
    good = world.snapshot
    planner(good, NOW)
    broken = replace(good, pods=(None,))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        planner(broken, NOW)
    assert planner(good, NOW) == plan(good, NOW)


class Thorough(SchedulerCache):
    """A memory that does not say which waiting jobs are of one kind: each is looked at."""

    def _equivalence_class(self, entry: JobEntry) -> int:
        return 0


class LongLine(World):
    """A world in which many wait; asserts that looking at one of a kind says the same of all."""

    def __init__(self, *jobs: GPUJob, **snapshot: Any) -> None:
        super().__init__(*jobs, **snapshot)
        self.quick, self.thorough = SchedulerCache.of(self.snapshot), Thorough.of(self.snapshot)
        self.settled = 0

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        found = plan(snapshot, now, self.quick)
        assert_same(found, plan(snapshot, now, self.thorough))
        waiting = len(self.quick.waiting.entries)
        self.settled += max(waiting - len(found.items), 0)
        return found


@pytest.mark.parametrize("seed", range(4))
def test_a_kind_is_refused_once_and_none_is_told_otherwise(seed: int) -> None:
    random = Random(seed)
    gpus = [make_gpu(f"GPU-{k}", index=k) for k in range(3)]
    queues = [make_queue("a", gpus=1, borrow=1), make_queue("b", gpus=2)][: seed % 3]
    world = LongLine(gpu_nodes=[make_gpu_node("n", *gpus)], queues=queues)
    names = ["default", *(queue.metadata.name for queue in queues)]
    for number in range(60):
        job = any_job(random, number, world.seconds)
        world.submit(replace(job, spec=replace(job.spec, queue=random.choice(names))))
        running = sorted(world.running())
        if running and random.random() < 0.3:
            world.end(random.choice(running))
        world.tick(random.choice([0.5, 3.0, 20.0, 70.0]))
    assert world.settled > 100


def test_pods_that_went_are_remembered_as_long_as_they_are_told() -> None:
    memory, job = SchedulerCache(), make_job("a")
    gpu = make_gpu(ours=[("old", 3 * GIB)])
    gone = (GonePod("old", T0, ("GPU-0",)),)
    for told in ((), gone, (), gone):
        snapshot = make_snapshot(job, gpus=[gpu], gone_pods=told)
        fresh = SchedulerCache()
        assert_same(plan(snapshot, T0, memory), plan(snapshot, T0, fresh))
        assert memory.capacity == fresh.capacity
        (node,) = memory.capacity.nodes.values()
        assert node.gpus[0].terminating_bytes == (3 * GIB if told else 0)


def test_gpus_that_programs_failed_on_are_closed_as_long_as_it_is_told() -> None:
    memory, job = SchedulerCache(), make_job("a")
    two = tuple(ProgramFault("n0", "GPU-0", 31, uid, "team") for uid in ("x", "y"))
    gpus = [make_gpu(), make_gpu("GPU-1", index=1)]
    for told in ((), two, two[:1], two, (*two, ProgramFault("n0", "GPU-1", 31, "z", "team"))):
        snapshot = make_snapshot(job, gpus=gpus, program_faults=told)
        fresh = SchedulerCache()
        assert_same(plan(snapshot, T0, memory), plan(snapshot, T0, fresh))
        assert memory.capacity == fresh.capacity
        blocked = [gpu.blocked is not None for gpu in memory.capacity.nodes["n0"].gpus]
        assert blocked == [told == two, False]


def test_a_profile_that_comes_later_changes_the_mix() -> None:
    """What is known of the workload by then counts, although the job itself stays the same."""
    memory, job = SchedulerCache(), make_job("a")
    plan(make_snapshot(job), NOW, memory)
    entry = ProfileEntry(MODEL, "", 3 * GIB, 10.0, samples=9, updated_at=NOW)
    profile = GPUProfile(
        Metadata(profile_name(job), NAMESPACE),
        GPUProfileSpec("x", "image:1"),
        GPUProfileStatus(entries=(entry,)),
    )
    known = make_snapshot(job, profiles=(profile,))
    fresh = SchedulerCache()
    assert_same(plan(known, NOW, memory), plan(known, NOW, fresh))
    assert memory.mix.demands
    assert memory.mix.equals(fresh.mix)


def test_a_cache_of_another_configuration_is_refused_and_replaced() -> None:
    snapshot = make_snapshot(make_job("a"))
    other = replace(snapshot, configuration=Configuration(preemptions_max=9))
    memory, planner = SchedulerCache.of(snapshot), Planner()
    plan(snapshot, NOW, memory)
    planner(snapshot, NOW)
    with pytest.raises(ValueError, match="another configuration"):
        plan(other, NOW, memory)
    assert planner(other, NOW) == plan(other, NOW)
