"""The scenes that are recorded: what the operator sees, cycle by cycle, in worlds of all kinds."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings

from bench.scale import Cluster, offer, snapshot_of, time_placements
from bench.scale_cycle import Cycles
from bench.scale_nouns import running_pod
from gpujob_api.gpujob import GPUJob, SharingMode, SpotPolicy
from gpujob_api.quantities import GIB
from gpujob_operator.decide.model.configuration import Configuration, OrderPolicy
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import InvalidJob, Snapshot
from gpujob_operator.decide.planner import Planner
from tests.golden.cycles import Seen
from tests.harness import builders
from tests.harness.builders import make_gpu, make_gpu_node, make_job, make_node, make_queue
from tests.harness.world import World
from tests.property import test_plan_memory, test_plan_memory_events
from tests.property.plan_snapshots import NOW, fresh_clusters, odd_snapshots
from tests.simulation.simulation import PlanFunction, Simulation

# The examples of a recording are the same every time.
PROFILE = "gpujob-golden"
settings.register_profile(
    PROFILE,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class _Story(World):
    """A world that keeps what each cycle sees."""

    def __init__(self, count: int, gpus: int, **snapshot: Any) -> None:
        gpu_nodes = [
            make_gpu_node(f"n{n}", *(_gpu(n, k) for k in range(gpus)), price=1.0)
            for n in range(count)
        ]
        super().__init__(gpu_nodes=gpu_nodes, **snapshot)
        self.seen: list[Seen] = []
        self._planner = Planner()

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.seen.append((snapshot, now))
        return self._planner(snapshot, now)

    def play(self, *jobs: GPUJob, ends: str = "") -> None:
        """The jobs arrive, time passes until all patience is over, and one job ends."""
        dated = (replace(j.metadata, creation_timestamp=self.now) for j in jobs)
        self.submit(*(replace(j, metadata=m) for j, m in zip(jobs, dated, strict=True)))
        for seconds in (1.0, 2.0, 40.0, 61.0, 61.0):
            self.tick(seconds)
        if ends in self.running():
            self.end(ends)
            self.tick()


class _SeeingEvents(test_plan_memory_events.Still):
    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        self.seen.append((snapshot, now))
        return super().decide(snapshot, now)

    seen: list[Seen]


class _SeeingSimulation(Simulation):
    seen: list[list[Seen]]

    def _planner(self) -> PlanFunction:
        """A new process remembers nothing: it begins another scene."""
        planner, seen = Planner(), list[Seen]()
        self.seen.append(seen)

        def decide(snapshot: Snapshot, now: datetime) -> Plan:
            seen.append((snapshot, now))
            return planner(snapshot, now)

        return decide


class _SeeingCycles(Cycles):
    seen: list[Seen]

    def step(self) -> tuple[Plan, float, float]:
        self.seen.append((self.snapshot, self.now))
        return super().step()


def odd(count: int) -> list[Seen]:
    """Snapshots that have nothing to do with each other, in states that nobody meant to exist."""
    found: list[Seen] = []
    profile = settings(settings.get_profile(PROFILE), max_examples=count)

    @profile
    @given(odd_snapshots() | fresh_clusters())
    def draw(snapshot: Snapshot) -> None:
        found.append((snapshot, NOW))

    draw()
    return found


def simulated(seed: int) -> list[list[Seen]]:
    """A seed of the simulation with its faults: what each operator process saw."""
    simulation = _SeeingSimulation(seed)
    simulation.seen = []
    simulation.run()
    return [seen for seen in simulation.seen if seen]


def scale(nodes: int, pending: int) -> list[Seen]:
    """The benchmark's cluster: filled, in the swing of its changes, and with patient jobs."""
    cluster = Cluster.of(nodes)
    time_placements(cluster)
    offer(cluster, cluster.draw(pending))
    snapshot = snapshot_of(cluster, cluster.draw(pending))
    cycles = _SeeingCycles(snapshot, running_pod, cluster.waiting_job, pending)
    cycles.seen = []
    cycles.step()
    cycles.settle(nodes // 2)
    cycles.wait(60.0, nodes // 2)
    return cycles.seen


def events(seed: int) -> list[Seen]:
    """A cluster that rests, and one event after the other."""
    random = Random(seed)
    world = _SeeingEvents(test_plan_memory_events.Tally())
    world.seen = []
    world.submit(*(test_plan_memory_events.job(number, random) for number in range(8)))
    for _ in range(40):
        world.tick(random.choice([0.5, 1.0, 3.0, 130.0]))
        random.choice(test_plan_memory_events.EVENTS)(world, random)
    return world.seen


def life(seed: int) -> list[Seen]:
    """Jobs of all kinds come and go on nodes of two models, one of them spot, under quotas."""
    random, models = Random(seed), ("NVIDIA A10", "NVIDIA A10", "NVIDIA A100", "NVIDIA A10")
    zone = "topology.kubernetes.io/zone"
    configuration = Configuration(
        order_policy=list(OrderPolicy)[seed % len(OrderPolicy)],
        price_per_gpu_hour={"NVIDIA A10": 1.0, "NVIDIA A100": 3.0},
        spot_price_per_gpu_hour={"NVIDIA A10": 0.4},
    )
    world = _Story(
        *(4, 2),
        nodes=[make_node(f"n{n}", spot=n == 3, labels={zone: f"z{n % 2}"}) for n in range(4)],
        queues=[make_queue("a", gpus=2, borrow=3), make_queue("b", gpus=3), make_queue("default")],
        configuration=configuration,
    )
    gpu_nodes = [
        make_gpu_node(f"n{n}", *(_gpu(n, k, model=model) for k in range(2)))
        for n, model in enumerate(models)
    ]
    world.snapshot = replace(world.snapshot, gpu_nodes=tuple(gpu_nodes))
    for number in range(40):
        world.submit(test_plan_memory.any_job(random, number, world.seconds))
        running = sorted(world.running())
        if running and random.random() < 0.6:
            world.end(random.choice(running), random.choice([0, 0, 1]))
        _measure(world, random)
        world.tick(random.choice([0.5, 3.0, 20.0, 90.0]))
    return world.seen


def _measure(world: World, random: Random) -> None:
    reports, usage, step = [], dict(world.snapshot.usage), int(world.seconds)
    for job in world.snapshot.jobs:
        if job.metadata.name in world.running() and random.random() < 0.7:
            attempt = job.status.attempt
            resumed, saved = job.status.resumed_from_step, job.status.checkpoint
            if attempt > 1 and resumed is None and saved is not None:
                resumed = saved.step
            report = builders.make_report(
                attempt, step=step, checkpoint_step=step // 2, resumed_from_step=resumed
            )
            reports.append(builders.received(job, report, world.seconds))
            usage[job.metadata.uid, attempt] = builders.used(random.choice([3, 6]) * GIB)
    world.snapshot = replace(world.snapshot, reports=tuple(reports), usage=usage)


def _gpu(node: int, index: int, **fields: Any) -> Any:
    return make_gpu(f"GPU-{node}{index}", index=index, **fields)


def _jobs(
    name: str, count: int, gib: int, percent: float = 20.0, steps: int = 4000, **spec: Any
) -> list[GPUJob]:
    """Measured jobs NAME0, NAME1 ..."""
    seen = builders.measured(gib * GIB, step=10, utilization_percent=percent)
    seen = replace(seen, steps_total=steps)
    jobs = [make_job(f"{name}{number}", **spec) for number in range(count)]
    return [builders.with_status(job, measurement=seen) for job in jobs]


def made() -> Iterator[tuple[str, list[Seen]]]:
    """Small stories, each about one rule."""
    alone = SharingMode.EXCLUSIVE
    gangs = _Story(3, 2)
    gangs.play(*_jobs("g", 2, 9, workers=3, sharing=alone), *_jobs("h", 1, 9, workers=5), ends="g0")
    gangs.play(make_job("wide", workers=2, gpus_per_worker=2), make_job("huge", workers=9))
    yield "gangs", gangs.seen

    preemption = _Story(2, 2)
    preemption.play(*_jobs("low", 6, 12, 45.0))
    preemption.play(*_jobs("high", 3, 20, 60.0, priority=5), ends="high0")
    yield "preemption", preemption.seen

    backfill = _Story(1, 4)
    backfill.play(*_jobs("long", 3, 9, sharing=alone, steps=9000))
    backfill.play(make_job("all", gpus_per_worker=4), *_jobs("small", 3, 9))
    backfill.play(*_jobs("brief", 1, 5, steps=20), *_jobs("slow", 1, 5, steps=10**6), ends="long0")
    yield "backfill", backfill.seen

    tree = [make_queue("root", gpus=4), make_queue("a", gpus=1, borrow=2, parent="root")]
    tree += [make_queue("b", gpus=2, parent="root", weight=2), make_queue("default", gpus=1)]
    quotas = _Story(2, 2, queues=tree)
    quotas.play(*_jobs("a", 4, 12, queue="a", sharing=alone))
    quotas.play(*_jobs("b", 3, 12, queue="b", sharing=alone))
    quotas.play(make_job("nowhere", queue="none"), make_job("d", suspend=True), ends="b0")
    yield "quotas", quotas.seen

    slowed = _Story(2, 1, configuration=Configuration(slowed_seconds=30.0))
    slowed.play(*_jobs("t", 4, 4, 25.0, max_slowdown_percent=60))
    slowed.play(*_jobs("strict", 2, 4, 40.0, max_slowdown_percent=0))
    for name in sorted(slowed.running()):
        was = slowed.status(name).measurement
        late = replace(was.current, step_seconds=0.19) if was and was.current else None
        slowed.change(name, measurement=replace(was, current=late) if was else None)
    slowed.play(ends="t0")
    yield "slowed", slowed.seen

    spot = _Story(2, 2, nodes=[make_node("n0"), make_node("n1", spot=True)])
    spot.play(
        *(job for policy in SpotPolicy for job in _jobs(policy.value.lower(), 3, 15, spot=policy))
    )
    spot.play(ends="prefer0")
    yield "spot", spot.seen

    sick = _Story(2, 2)
    broken = InvalidJob(make_job("broken").metadata, "spec.gpu", "is bad")
    sick.snapshot = replace(sick.snapshot, invalid_jobs=(broken,))
    sick.play(*_jobs("w", 4, 9), make_job("other", models=("none-such",)))
    ill = make_gpu_node("n0", _gpu(0, 0, healthy=False), _gpu(0, 1, unmanaged=20 * GIB))
    sick.snapshot = replace(sick.snapshot, gpu_nodes=(ill, sick.snapshot.gpu_nodes[1]))
    sick.play(make_job("late"), ends="w3")
    yield "unhealthy", sick.seen
