"""Finds the cheapest running jobs to stop so that a pending job can start.

The set that loses the least work is chosen. Preemption terminates: a victim waits behind the jobs
that were already pending, can never preempt the same job in turn, and is preempted a bounded number
of times.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_operator.decide.capacity.cluster import (
    Capacity,
    GPUCapacity,
    NodeCapacity,
    Tenant,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.packing.apart import first_apart
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.finding import NO_GPUS
from gpujob_operator.decide.placement.gpu_filter import after_departures, why_not
from gpujob_operator.decide.placement.node_filter import nodes_for, spread_limits
from gpujob_operator.decide.placement.requirements import (
    CycleView,
    JobRequirements,
    WorkerRequest,
    resolve,
)

# A running job can be a victim for one of these reasons:
#
# 1. Preempted. The pending job is in the victim's queue and has a higher priority.
# 2. Reclaimed. The pending job is within what was promised to its queue, and the victim's queue
#    borrows.
# 3. Migrated. The victim has a durable checkpoint and fits elsewhere at once, and the migration
#    costs at most half of what it gains (consolidation).
#
# Jobs of a fourth kind are passed in as victims but are never stopped. Their attempts have ended by
# themselves, and their GPUs are free in the next cycle, or are being stopped already. They cost
# nothing and are chosen first.

# Maximum number of victims for one job.
VICTIMS_MAX = 64


@dataclass(frozen=True, slots=True)
class Victim:
    """A running job that may be stopped, the reason, and the loss in GPU-seconds."""

    job: GPUJob
    reason: str
    cost_gpu_seconds: float


@dataclass(frozen=True, slots=True)
class PreemptionTargets:
    """The victims. `nominated` has the GPUs that are kept for the pending job.

    It will fit on them. All GPUs of a node are kept if it needs CPU, memory or pods of victims
    there.
    """

    victims: tuple[Victim, ...]
    nominated: frozenset[Place]

    @property
    def cost_gpu_seconds(self) -> float:
        return sum(victim.cost_gpu_seconds for victim in self.victims)


def is_preemptible(job: GPUJob, configuration: Configuration) -> bool:
    """Returns whether the job may be stopped once more for a higher priority, or be moved."""
    return is_at_work(job) and job.status.counters.preemptions < configuration.preemptions_max


def is_at_work(job: GPUJob) -> bool:
    """Returns whether the job has an attempt that nobody stops yet."""
    return job.status.phase in (JobPhase.STARTING, JobPhase.RUNNING)


def select_victims(
    requirements: JobRequirements,
    assumed: AssumedCapacity,
    victims: Mapping[str, Victim],
    configuration: Configuration,
) -> PreemptionTargets | None:
    """Returns the cheapest victims whose removal makes the job fit, or None.

    1. On each GPU, take the cheapest jobs until the worker fits.
    2. Take the cheapest GPUs of each node.
    3. Take the cheapest nodes.
    4. Check the result against the capacity, and spare victims that are not needed.
    """
    best: PreemptionTargets | None = None
    workers = requirements.job.spec.workers
    for model in requirements.models(assumed.capacity):
        places = _places(requirements, model, assumed, victims, configuration)
        limits = spread_limits(requirements, assumed.capacity)
        ordered = sorted(places, key=lambda place: place.key)
        chosen = first_apart(ordered, workers, limits, lambda place: place.node)
        if len(chosen) < workers:
            continue
        found = _verified(requirements, chosen, assumed, victims, configuration)
        if found is not None and (best is None or found.cost_gpu_seconds < best.cost_gpu_seconds):
            best = found
    return best


def can_be_freed(
    requirements: JobRequirements,
    assumed: AssumedCapacity,
    leaving: Mapping[str, Victim],
    configuration: Configuration,
) -> bool:
    """Returns whether the job would fit without all of these jobs, however many they are."""
    workers = requirements.job.spec.workers
    for model in requirements.models(assumed.capacity):
        limits = spread_limits(requirements, assumed.capacity)
        places = _places(requirements, model, assumed, leaving, configuration)
        if len(first_apart(places, workers, limits, lambda place: place.node)) == workers:
            return True
    return False


def all_reschedulable(
    targets: PreemptionTargets,
    assumed: AssumedCapacity,
    view: CycleView,
    configuration: Configuration,
) -> bool:
    """Returns whether every victim finds another place now, with the GPUs of
    `targets` kept free.
    """
    trial = AssumedCapacity.of(assumed.capacity, assumed.mix)
    trial.nominate(assumed.nominated | targets.nominated)
    for victim in targets.victims:
        found = assign(view.requirements_of(victim.job.metadata.uid), trial, configuration)
        if not isinstance(found, Assignment):
            return False
        found.assume(trial)
    return True


@dataclass(frozen=True, slots=True)
class _FreedPlace:
    """GPUs of one node for one worker, and the jobs that must leave them."""

    node: str
    uuids: tuple[str, ...]
    victims: frozenset[str]
    cost: float

    @property
    def key(self) -> tuple[float, int, str, tuple[str, ...]]:
        return self.cost, len(self.victims), self.node, self.uuids


def _places(
    requirements: JobRequirements,
    model: str,
    assumed: AssumedCapacity,
    victims: Mapping[str, Victim],
    configuration: Configuration,
) -> list[_FreedPlace]:
    request = resolve(requirements, model, assumed.capacity, configuration)
    held = _held_by_node(victims)
    found: list[_FreedPlace] = []
    for node in nodes_for(requirements, assumed.capacity):
        nominated = assumed.nominated_on.get(node.node.name, NO_GPUS)
        gpus = sorted(
            (cost, len(who), gpu.uuid, who)
            for gpu in node.gpus
            if gpu.model == model
            and (freed := _freed(request, gpu, nominated, victims)) is not None
            for cost, who in (freed,)
        )
        found += _worker_places(
            requirements,
            node,
            [(uuid, who) for _, _, uuid, who in gpus],
            victims,
            held.get(node.node.name, {}),
        )
    return found


class _Resources(NamedTuple):
    """What workers take of a node, and jobs give back when they leave."""

    cpu_milli: int
    memory_bytes: int
    pods: int

    def plus(self, other: "_Resources", times: int = 1) -> "_Resources":
        return _Resources(
            self.cpu_milli + times * other.cpu_milli,
            self.memory_bytes + times * other.memory_bytes,
            self.pods + times * other.pods,
        )

    def covers(self, other: "_Resources") -> bool:
        # The node may have less than nothing free.
        return min(self.plus(other, -1)) >= 0


_NOTHING = _Resources(0, 0, 0)


def _held_by_node(victims: Mapping[str, Victim]) -> Mapping[str, Mapping[str, _Resources]]:
    """Returns what each of these jobs holds of each node, by the node's name and the job's UID."""
    held: dict[str, dict[str, _Resources]] = defaultdict(dict)
    for uid, victim in victims.items():
        placement = victim.job.status.placement
        workers = placement.workers if placement is not None else ()
        worker = _Resources(*host_requests(victim.job), 1)
        for node, count in Counter(worker.node for worker in workers).items():
            held[node][uid] = _NOTHING.plus(worker, count)
    return held


@dataclass(slots=True)
class _Host:
    """A node on which workers are put one after the other, while jobs leave it."""

    free: _Resources
    worker: _Resources
    held: Mapping[str, _Resources]
    workers: int = 0
    gone: frozenset[str] = frozenset()
    # What the workers so far leave once these jobs are gone.
    left: _Resources = _NOTHING

    @classmethod
    def of(
        cls, node: NodeCapacity, requirements: JobRequirements, held: Mapping[str, _Resources]
    ) -> "_Host":
        free = _Resources(node.cpu_milli_free, node.memory_bytes_free, node.pods_free)
        worker = _Resources(requirements.cpu_milli, requirements.memory_bytes, 1)
        return cls(free, worker, held, left=free)

    def has_room(self, who: Set[str]) -> bool:
        """Returns whether one more worker fits once these jobs are gone too."""
        return self._without(self.left, who - self.gone).covers(self.worker)

    def has_room_for_all(self, who: Set[str]) -> bool:
        """Returns whether one more worker fits if only these jobs are gone."""
        free = self.free.plus(self.worker, -self.workers)
        return self._without(free, who).covers(self.worker)

    def with_room(self, who: frozenset[str], by_cost: Sequence[str]) -> frozenset[str] | None:
        """Returns these jobs and the cheapest others without which one more worker fits.

        Returns None if it does not fit without all of them.
        """
        left, added = self._without(self.left, who - self.gone), list[str]()
        for uid in by_cost:
            if left.covers(self.worker):
                break
            if uid not in who and uid not in self.gone:
                left = left.plus(self.held[uid])
                added.append(uid)
        if not left.covers(self.worker):
            return None
        for uid in reversed(tuple(added)):
            fewer = left.plus(self.held[uid], -1)
            if fewer.covers(self.worker):
                left = fewer
                added.remove(uid)
        return who.union(added)

    def put(self, who: frozenset[str]) -> None:
        """Puts one more worker there, for which these jobs go."""
        self.left = self._without(self.left, who - self.gone).plus(self.worker, -1)
        self.gone |= who
        self.workers += 1

    def _without(self, left: _Resources, who: Set[str]) -> _Resources:
        for uid in who:
            left = left.plus(self.held.get(uid, _NOTHING))
        return left


def _worker_places(
    requirements: JobRequirements,
    node: NodeCapacity,
    gpus: Sequence[tuple[str, tuple[str, ...]]],
    victims: Mapping[str, Victim],
    held: Mapping[str, _Resources],
) -> list[_FreedPlace]:
    """Returns groups of GPUs for the workers that fit into the node's CPU, memory and pods.

    `gpus` are those of the node with the jobs that must leave each, cheapest first, and `held` is
    what each job holds of the node. A worker may also need the CPU of jobs on other GPUs of it.
    """
    count = requirements.job.spec.gpus_per_worker
    groups = [gpus[first : first + count] for first in range(0, len(gpus) - count + 1, count)]
    waiting = [(group, frozenset(uid for _, who in group for uid in who)) for group in groups]
    by_cost = sorted(held, key=lambda uid: (victims[uid].cost_gpu_seconds, uid))
    host = _Host.of(node, requirements, held)
    places: list[_FreedPlace] = []
    least = 0.0

    def cost_of(who: Set[str]) -> float:
        """Returns what these jobs lose that do not go for the places before."""
        return sum(victims[uid].cost_gpu_seconds for uid in who - host.gone)

    while waiting and len(places) < requirements.job.spec.workers:
        at, (group, own) = 0, waiting[0]
        who = host.with_room(own, by_cost)
        if who is None:
            break
        if who != own:
            # The jobs of other GPUs may give enough CPU for less.
            rest = ((n, one) for n, (_, one) in enumerate(waiting) if host.has_room(one))
            other = next(rest, None)
            if other is not None and cost_of(other[1]) <= cost_of(who):
                at, who = other
                group = waiting[at][0]
        del waiting[at]
        # A place that needs what the jobs leave that go for those before comes after them.
        least = max(least, cost_of(who))
        if not host.has_room_for_all(who):
            who |= host.gone
        host.put(who)
        uuids = tuple(uuid for uuid, _ in group)
        places.append(_FreedPlace(node.node.name, uuids, who, least))
    return places


def _freed(
    request: WorkerRequest, gpu: GPUCapacity, nominated: Set[str], victims: Mapping[str, Victim]
) -> tuple[float, tuple[str, ...]] | None:
    """Returns the cheapest tenants without which the worker fits on the GPU, or None.

    A single tenant is tried before several.
    """

    def fits(gone: Iterable[str]) -> bool:
        return why_not(request, after_departures(gpu, frozenset(gone)), nominated) is None

    movable = sorted(
        (victims[tenant.job_uid].cost_gpu_seconds, tenant.job_uid)
        for tenant in gpu.tenants
        if tenant.job_uid in victims
    )
    if fits(()):
        return 0.0, ()
    for cost, uid in movable:
        if fits((uid,)):
            return cost, (uid,)
    total, gone = 0.0, list[str]()
    for cost, uid in movable:
        total, gone = total + cost, [*gone, uid]
        if fits(gone):
            return total, tuple(gone)
    return None


def _verified(
    requirements: JobRequirements,
    places: Iterable[_FreedPlace],
    assumed: AssumedCapacity,
    victims: Mapping[str, Victim],
    configuration: Configuration,
) -> PreemptionTargets | None:
    """Checks the places together, and spares victims that are not needed."""
    chosen = list(places)
    gpus = {(place.node, uuid) for place in chosen for uuid in place.uuids}
    gone = {uid for place in chosen for uid in place.victims}
    if not gone or len(gone) > VICTIMS_MAX:
        return None
    workers = Counter(place.node for place in chosen)
    names = sorted(workers)
    nodes = {name: _only(assumed.capacity.nodes[name], gpus) for name in names}
    part = replace(assumed.capacity, nodes=nodes)
    if not _fits(requirements, part, gone, victims, assumed, configuration):
        return None
    by_cost = sorted(gone, key=lambda uid: (-victims[uid].cost_gpu_seconds, uid))
    for uid in by_cost:
        if len(gone) > 1 and _fits(
            requirements, part, gone - {uid}, victims, assumed, configuration
        ):
            gone.discard(uid)
    for name, count in workers.items():
        node = assumed.capacity.nodes[name]
        host = _Host.of(node, requirements, {})
        if not host.free.covers(_NOTHING.plus(host.worker, count)):
            # A new tenant of another GPU would take the CPU that victims leave one after the other.
            gpus |= {(name, gpu.uuid) for gpu in node.gpus}
    return PreemptionTargets(tuple(victims[uid] for uid in sorted(gone)), frozenset(gpus))


def _only(node: NodeCapacity, gpus: Set[Place]) -> NodeCapacity:
    name = node.node.name
    return replace(node, gpus=tuple(gpu for gpu in node.gpus if (name, gpu.uuid) in gpus))


def _fits(
    requirements: JobRequirements,
    part: Capacity,
    gone: Set[str],
    victims: Mapping[str, Victim],
    assumed: AssumedCapacity,
    configuration: Configuration,
) -> bool:
    trial = AssumedCapacity.of(_without(part, gone, victims), assumed.mix)
    return isinstance(assign(requirements, trial, configuration), Assignment)


def _without(part: Capacity, gone: Set[str], victims: Mapping[str, Victim]) -> Capacity:
    """Returns the capacity after these jobs have left it."""
    nodes: dict[str, NodeCapacity] = {}
    for name, node in part.nodes.items():
        cpu_milli, memory_bytes = node.cpu_milli_free, node.memory_bytes_free
        pods = node.pods_free
        for uid in gone:
            placement = victims[uid].job.status.placement
            here = sum(worker.node == name for worker in placement.workers) if placement else 0
            cpu, memory = host_requests(victims[uid].job)
            cpu_milli, memory_bytes = cpu_milli + here * cpu, memory_bytes + here * memory
            pods += here
        gpus = tuple(replace(gpu, tenants=_staying(gpu.tenants, gone)) for gpu in node.gpus)
        nodes[name] = replace(
            node,
            gpus=gpus,
            cpu_milli_free=cpu_milli,
            memory_bytes_free=memory_bytes,
            pods_free=pods,
        )
    return replace(part, nodes=nodes)


def _staying(tenants: tuple[Tenant, ...], gone: Set[str]) -> tuple[Tenant, ...]:
    return tuple(tenant for tenant in tenants if tenant.job_uid not in gone)


def pays_off(targets: PreemptionTargets, gpus: int, saved_seconds: float) -> bool:
    """Returns whether a migration gains at least twice its cost.

    The gain is the number of GPUs times the waiting time saved.
    """
    return gpus * saved_seconds >= 2 * targets.cost_gpu_seconds
