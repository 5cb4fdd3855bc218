"""On a cluster where nearly all rests, one event at a time: the plan is the one without a memory.

Only what an event touches is another object, as `observe` has it: what is not woken by an event, or
not built anew, shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob, SharingMode
from gpujob_api.gpunode import GPU, GPUNode, GPUProcess
from gpujob_api.meta import TAINT_RECLAIM
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import GIB
from gpujob_api.report import Timing
from gpujob_api.settings import Precision
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import BoundVolume, NodeView, Snapshot, Taint
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    NAMESPACE,
    make_gpu,
    make_gpu_node,
    make_job,
    make_report,
    measured,
    received,
    used,
    with_status,
)
from tests.harness.plan_items import said_beside
from tests.harness.world import SETTLE_MAX, World

NODES, GPUS = 3, 2


@dataclass(slots=True)
class Tally:
    """How often jobs rested while others were looked at: 0 would prove nothing."""

    rested: int = 0


class Still(World):
    """`tick` touches nothing by itself."""

    def __init__(self, tally: Tally) -> None:
        nodes = [
            make_gpu_node(
                f"n{n}",
                *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(GPUS)),
                price=1.0 if n else None,
            )
            for n in range(NODES)
        ]
        super().__init__(gpu_nodes=nodes)
        self.memory = SchedulerCache()
        self.tally = tally
        # One that knows of writes under way, of jobs by lot.
        self.of_writer, self.lots = SchedulerCache(), Random(0)

    def decide(self, snapshot: Snapshot, now: datetime) -> Plan:
        fresh = plan(snapshot, now)
        found = plan(snapshot, now, self.memory)
        assert found.items == fresh.items
        assert (found.next_seconds is None) is (fresh.next_seconds is None)
        assert abs((found.next_seconds or 0.0) - (fresh.next_seconds or 0.0)) < 1e-3
        self.tally.rested += len(self.memory.entries) - len(self.memory.steps.to_step)
        self._decide_beside_writes(snapshot, now, fresh)
        return found

    def _decide_beside_writes(self, snapshot: Snapshot, now: datetime, fresh: Plan) -> None:
        """Of jobs that are being written nothing need be said again; all else stays."""
        uids = [job.metadata.uid for job in snapshot.jobs]
        writing = {uid for uid in uids if self.lots.random() < 0.5}
        found = plan(replace(snapshot, writing=tuple(writing)), now, self.of_writer)
        assert said_beside(found, writing) == said_beside(fresh, writing)
        assert all(item in fresh.items for item in said_beside(found, ()))

    def tick(self, seconds: float = 1.0) -> None:
        self.seconds += seconds
        for _ in range(SETTLE_MAX):
            if not self.step().items:
                return

    def touch_node(self, name: str, change: Callable[[NodeView], NodeView]) -> None:
        nodes = (change(n) if n.name == name else n for n in self.snapshot.nodes)
        self.snapshot = replace(self.snapshot, nodes=tuple(nodes))

    def read(self, name: str, change: Callable[[GPU], GPU] = lambda gpu: gpu) -> None:
        """The node's GPUs are read again."""
        nodes = tuple(
            _read(one, self.now, change) if one.metadata.name == name else one
            for one in self.snapshot.gpu_nodes
        )
        self.snapshot = replace(self.snapshot, gpu_nodes=nodes)


def _read(node: GPUNode, now: datetime, change: Callable[[GPU], GPU]) -> GPUNode:
    gpus = tuple(change(gpu) for gpu in node.status.gpus)
    return replace(node, status=replace(node.status, gpus=gpus, observed_at=now))


def job(number: int, random: Random) -> GPUJob:
    fields: dict[str, Any] = {"workers": random.choice([1, 1, 1, 2])}
    if random.random() < 0.2:
        fields["sharing"] = SharingMode.EXCLUSIVE
    made = make_job(f"job{number}", **fields)
    kind = make_job(f"kind{random.randrange(3)}").spec.template
    made = replace(made, spec=replace(made.spec, template=kind))
    seen = measured(random.choice([3, 5, 8]) * GIB, step=10, utilization_percent=10.0)
    timed = replace(seen, current=Timing(random.choice([0.1, 0.12]), 3 * GIB))
    return with_status(made, measurement=timed)


# -- events


def arrives(world: Still, random: Random) -> None:
    number = random.randrange(10**9)
    world.submit(replace(job(number, random)))


def ends(world: Still, random: Random) -> None:
    running = sorted(world.running())
    if running:
        world.end(random.choice(running), random.choice([0, 1]))


def is_deleted(world: Still, random: Random) -> None:
    """The job and its pods are gone at once."""
    gone = random.choice(sorted(world.running()) or [""])
    jobs = tuple(one for one in world.snapshot.jobs if one.metadata.name != gone)
    uids = {one.metadata.uid for one in jobs}
    pods = tuple(pod for pod in world.snapshot.pods if pod.job_uid in uids)
    world.snapshot = replace(world.snapshot, jobs=jobs, pods=pods)


def is_read(world: Still, random: Random) -> None:
    world.read(any_node(random))


def fills(world: Still, random: Random) -> None:
    """Unmanaged processes and workers on the node use more or less, also beside their own GPUs."""
    uuid = any_gpu(random)
    node = f"n{uuid[4]}"
    pods = [pod.uid for pod in world.snapshot.pods if pod.node == node]
    owners = [None, *random.sample(pods, min(2, len(pods)))]
    processes = tuple(
        GPUProcess(100 + number, random.choice([GIB // 32, GIB, 6 * GIB]), owner)
        for number, owner in enumerate(owners)
        if random.random() < 0.6
    )
    used_bytes = sum(process.memory_bytes for process in processes)

    def change(gpu: GPU) -> GPU:
        if gpu.uuid != uuid:
            return gpu
        return replace(gpu, processes=processes, memory_used_bytes=used_bytes)

    world.read(node, change)


def sickens(world: Still, random: Random) -> None:
    uuid, healthy = any_gpu(random), random.random() < 0.6
    text = "" if healthy else "XID 79"

    def change(gpu: GPU) -> GPU:
        return replace(gpu, healthy=healthy, health_message=text) if gpu.uuid == uuid else gpu

    world.read(f"n{uuid[4]}", change)


def falls_silent(world: Still, random: Random) -> None:
    since = random.choice([None, world.now])
    world.touch_node(any_node(random), lambda node: replace(node, not_ready_since=since))


def is_reclaimed(world: Still, random: Random) -> None:
    notice = Taint(TAINT_RECLAIM, "NoSchedule", "")
    taints = random.choice([(), (), (notice,)])
    world.touch_node(any_node(random), lambda node: replace(node, taints=taints))


def has_other_room(world: Still, random: Random) -> None:
    free = random.choice([0, 64_000])
    world.touch_node(any_node(random), lambda node: replace(node, cpu_milli_free=free))


def vanishes_or_returns(world: Still, random: Random) -> None:
    name = any_node(random)
    left = tuple(node for node in world.snapshot.nodes if node.name != name)
    if len(left) == len(world.snapshot.nodes):
        left = (*left, Still(Tally()).snapshot.nodes[int(name[1])])
    world.snapshot = replace(world.snapshot, nodes=left)


def costs_more(world: Still, random: Random) -> None:
    name, price = any_node(random), random.choice([None, 1.0, 2.0])
    nodes = tuple(
        replace(one, spec=replace(one.spec, price_per_gpu_hour=price))
        if one.metadata.name == name
        else one
        for one in world.snapshot.gpu_nodes
    )
    world.snapshot = replace(world.snapshot, gpu_nodes=nodes)


def reports(world: Still, random: Random) -> None:
    running = [one for one in world.snapshot.jobs if one.metadata.name in world.running()]
    if not running:
        return
    one = random.choice(running)
    uid, attempt = one.metadata.uid, one.status.attempt
    step = int(world.seconds) + 11
    told = received(one, make_report(attempt, step=step), world.seconds)
    others = tuple(r for r in world.snapshot.reports if r.job_uid != uid)
    usage = {**world.snapshot.usage, (uid, attempt): used(random.choice([3, 6]) * GIB)}
    world.snapshot = replace(world.snapshot, reports=(*others, told), usage=usage)


def is_bound(world: Still, random: Random) -> None:
    """The volume of all jobs' checkpoints is on some nodes, on none, or on all."""
    nodes = random.sample([f"n{n}" for n in range(NODES)], random.choice([0, 1, 1, 2]))
    fields = [{"key": "metadata.name", "operator": "In", "values": nodes}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    volume = BoundVolume("volume", NAMESPACE, "checkpoints", terms)
    volumes = random.choice([(), (volume,), (volume,)])
    world.snapshot = replace(world.snapshot, volumes=volumes)


def is_edited(world: Still, random: Random) -> None:
    """A job becomes one of another workload, whatever it is doing."""
    optimize = Optimize(precision=random.choice(list(Precision)))
    chosen = random.choice([one.metadata.uid for one in world.snapshot.jobs] or [""])

    def change(one: GPUJob) -> GPUJob:
        if one.metadata.uid != chosen or one.finished or one.spec.optimize == optimize:
            return one
        metadata = replace(one.metadata, generation=one.metadata.generation + 1)
        return replace(one, metadata=metadata, spec=replace(one.spec, optimize=optimize))

    world.snapshot = replace(world.snapshot, jobs=tuple(map(change, world.snapshot.jobs)))


def any_node(random: Random) -> str:
    return f"n{random.randrange(NODES)}"


def any_gpu(random: Random) -> str:
    return f"GPU-{random.randrange(NODES)}{random.randrange(GPUS)}"


EVENTS = (
    *(arrives, arrives, ends, ends, is_deleted, is_read, fills, fills, fills, sickens),
    *(falls_silent, is_reclaimed, has_other_room, vanishes_or_returns, costs_more, reports),
    *(is_bound, is_edited, is_edited),
)


@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_each_event_changes_what_it_would_change_without_a_memory(seed: int) -> None:
    random, tally = Random(seed), Tally()
    world = Still(tally)
    world.submit(*(job(number, random) for number in range(8)))
    world.tick()
    for _ in range(16):
        random.choice(EVENTS)(world, random)
        world.tick(random.choice([0.5, 1.0, 3.0]))
    assert tally.rested
