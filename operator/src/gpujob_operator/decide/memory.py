"""What planning remembers from one cycle to the next: derived figures of what did not change.

A large cluster changes little from cycle to cycle. The memory knows every object by identity (nouns
are immutable, and an observed object is replaced only when it changed), and derives anew only what
rests on objects that are not the same. Dropping it changes no plan; a test holds it to that.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime

from gpujob_api.gpujob import PRIORITY_MAX, GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.board import Kept
from gpujob_operator.decide.capacity import (
    Capacity,
    NodeCapacity,
    build_capacity,
    capacity_of,
    closed_reason,
    holds_cards,
)
from gpujob_operator.decide.configuration import Configuration
from gpujob_operator.decide.fragmentation import Demand, Mix
from gpujob_operator.decide.lifecycle import Step
from gpujob_operator.decide.mix import demand_of, steady_mix
from gpujob_operator.decide.needs import Needs, needs_of
from gpujob_operator.decide.outcome import FOR_OTHERS
from gpujob_operator.decide.profiles import profile_name
from gpujob_operator.decide.queueing import Queues, QueueUse
from gpujob_operator.decide.slowdown import is_slowed
from gpujob_operator.decide.snapshot import CardUsage, NodeView, PodView, ReceivedReport, Snapshot
from gpujob_operator.decide.workload import host_requests

ProfileKey = tuple[str, str]
_Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a job's step was decided from, besides the job, its pods and its profile."""

    report: ReceivedReport | None
    usage: CardUsage | None
    # Of its nodes, what matters to it: whether they are well, and its cards.
    around: tuple[object, ...]


@dataclass(slots=True)
class Known:
    """One job, with what follows from it alone; the rest is set as it is found out."""

    job: GPUJob
    requests: tuple[int, int]
    profile_key: ProfileKey
    held: bool
    nodes: frozenset[str]
    pods: tuple[PodView, ...] = ()
    profile: GPUProfile | None = None
    needs: Needs | None = None
    demand: Demand | None = None
    # The last decision, which was to write nothing, and until when nothing else can follow.
    inputs: Inputs | None = None
    step: Step | None = None
    next_at: datetime | None = None
    quiet_until: datetime | None = None

    def forget_step(self) -> None:
        self.inputs = self.step = self.next_at = self.quiet_until = None


@dataclass(slots=True)
class Memory:
    """Give the same one to every cycle of one operator. `take_in` first, then read."""

    known: dict[str, Known] = field(default_factory=dict[str, Known])
    capacity: Capacity = field(default_factory=Capacity)
    board: Kept = field(default_factory=Kept)
    mix: Mix = field(default_factory=Mix)
    # Nodes of which anything changed with the last snapshot.
    changed_nodes: set[str] = field(default_factory=set[str])
    # Of jobs that hold cards: how many of each priority, and who makes room for others.
    priorities: Counter[int] = field(default_factory=Counter[int])
    ending: set[str] = field(default_factory=set[str])
    # Who runs and is slowed by its neighbours.
    slowed: set[str] = field(default_factory=set[str])
    _configuration: Configuration | None = None
    _listening_since: datetime | None = None
    _pods: dict[str, PodView] = field(default_factory=dict[str, PodView])
    _views: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    _gpu_nodes: dict[str, GPUNode] = field(default_factory=dict[str, GPUNode])
    _profiles: dict[ProfileKey, GPUProfile] = field(default_factory=dict[ProfileKey, GPUProfile])
    _card_node: dict[str, str] = field(default_factory=dict[str, str])
    _jobs_on: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    _pods_on: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    _use: dict[str, QueueUse] = field(default_factory=dict[str, QueueUse])
    _counts: dict[Demand, float] = field(default_factory=dict[Demand, float])
    _mixed_for: tuple[object, ...] = ()
    _dirty: set[str] = field(default_factory=set[str])

    def take_in(self, snapshot: Snapshot, now: datetime) -> None:
        """Brings everything up to date with the snapshot."""
        self._forget_if_foreign(snapshot)
        self._dirty = set()
        self._take_nodes(snapshot)
        changed_pods = self._take_pods(snapshot.pods)
        new_jobs = self._take_jobs(snapshot.jobs)
        self._group_pods(changed_pods | new_jobs)
        self._take_profiles(snapshot.profiles)
        self._renew_capacity(now)
        self._renew_mix()

    def queues(self, snapshot: Snapshot) -> Queues:
        """What the queues hold, free to be changed."""
        use = {name: replace(held) for name, held in self._use.items() if held.jobs}
        return Queues.of({queue.metadata.name: queue for queue in snapshot.queues}, use)

    def needs(self, uid: str) -> Needs:
        known = self.known[uid]
        if known.needs is None:
            known.needs = needs_of(known.job, known.profile, self._configuration)
        return known.needs

    def lost_nodes(self, job: GPUJob) -> frozenset[str]:
        """Nodes that the job names and that are there no more."""
        placement = job.status.placement
        workers = placement.workers if placement is not None else ()
        return frozenset(worker.node for worker in workers if worker.node not in self._views)

    @property
    def lowest_priority(self) -> int:
        """Of all jobs that hold cards; above every priority when there are none."""
        held = (priority for priority, count in self.priorities.items() if count)
        return min(held, default=PRIORITY_MAX)

    @property
    def room_is_made(self) -> bool:
        return bool(self.ending)

    # -- what there is

    def _forget_if_foreign(self, snapshot: Snapshot) -> None:
        """Another configuration, or cards on other nodes, change everything."""
        cards = {g.uuid: n.metadata.name for n in snapshot.gpu_nodes for g in n.status.gpus}
        same = snapshot.configuration == self._configuration and cards == self._card_node
        if not same or snapshot.listening_since != self._listening_since:
            fresh = Memory()
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        self._configuration = snapshot.configuration
        self._listening_since = snapshot.listening_since
        self._card_node = cards

    def _take_nodes(self, snapshot: Snapshot) -> None:
        views = {view.name: view for view in snapshot.nodes}
        gpu_nodes = {node.metadata.name: node for node in snapshot.gpu_nodes}
        for before, after in ((self._views, views), (self._gpu_nodes, gpu_nodes)):
            for name in before.keys() | after.keys():
                if before.get(name) is not after.get(name):
                    self._dirty.add(name)
        self._views, self._gpu_nodes = views, gpu_nodes

    def _take_pods(self, pods: Iterable[PodView]) -> set[str]:
        """Job UIDs whose pods changed."""
        changed: set[str] = set()
        before, after = self._pods, dict[str, PodView]()
        for pod in pods:
            after[pod.uid] = pod
            known = before.get(pod.uid)
            if known is not pod:
                changed |= {pod.job_uid} if known is None else {pod.job_uid, known.job_uid}
                self._put_pod(known, pod)
        for uid in before.keys() - after.keys():
            changed.add(before[uid].job_uid)
            self._put_pod(before[uid], None)
        self._pods = after
        return changed

    def _put_pod(self, before: PodView | None, after: PodView | None) -> None:
        for name in self._nodes_of_pod(before) if before is not None else ():
            self._pods_on.get(name, {}).pop(before.uid if before is not None else "", None)
            self._dirty.add(name)
        for name in self._nodes_of_pod(after) if after is not None else ():
            self._pods_on.setdefault(name, {})[after.uid if after is not None else ""] = None
            self._dirty.add(name)
        for pod in (before, after):
            known = self.known.get(pod.job_uid) if pod is not None else None
            if known is not None:
                self._dirty.update(known.nodes)

    def _nodes_of(self, job: GPUJob) -> frozenset[str]:
        """Nodes on which the job holds cards: those it names, and those where its cards are."""
        placement = job.status.placement
        if placement is None or not holds_cards(job):
            return frozenset()
        named = {worker.node for worker in placement.workers}
        uuids = (uuid for worker in placement.workers for uuid in worker.gpus)
        return frozenset(named | {self._card_node[u] for u in uuids if u in self._card_node})

    def _nodes_of_pod(self, pod: PodView) -> set[str]:
        names = {self._card_node[uuid] for uuid in pod.gpus if uuid in self._card_node}
        return names | ({pod.node} if pod.node is not None else set())

    def _take_jobs(self, jobs: Iterable[GPUJob]) -> set[str]:
        """UIDs of jobs that were not there before."""
        before, after = self.known, dict[str, Known]()
        for job in jobs:
            uid = job.metadata.uid
            known = before.get(uid)
            if known is None or known.job is not job:
                known = self._changed_job(known, job)
            after[uid] = known
        for uid in before.keys() - after.keys():
            self._uncount(before[uid])
        self.known = after
        return after.keys() - before.keys()

    def _changed_job(self, before: Known | None, job: GPUJob) -> Known:
        same_spec = before is not None and _spec_version(before.job) == _spec_version(job)
        if before is not None:
            self._uncount(before)
        if before is not None and same_spec:
            requests, key = before.requests, before.profile_key
        else:
            requests, key = host_requests(job), (job.metadata.namespace, profile_name(job))
        known = Known(job, requests, key, holds_cards(job), self._nodes_of(job))
        known.profile = self._profiles.get(key)
        known.pods = before.pods if before is not None else ()
        if known.held:
            self._use.setdefault(job.spec.queue, QueueUse()).count(job, job.status)
            self.priorities[job.spec.priority] += 1
            stop = job.status.stop
            if stop is not None and stop.reason in FOR_OTHERS:
                self.ending.add(job.metadata.uid)
            if is_slowed(job.status):
                self.slowed.add(job.metadata.uid)
        for name in known.nodes:
            self._jobs_on.setdefault(name, {})[job.metadata.uid] = None
            self._dirty.add(name)
        return known

    def _uncount(self, known: Known) -> None:
        job = known.job
        if known.held:
            self._use[job.spec.queue].count(job, job.status, -1)
            self.priorities[job.spec.priority] -= 1
            self.ending.discard(job.metadata.uid)
            self.slowed.discard(job.metadata.uid)
        for name in known.nodes:
            self._jobs_on[name].pop(job.metadata.uid, None)
            self._dirty.add(name)
        self._unmix(known)

    def _group_pods(self, changed: set[str]) -> None:
        if not changed:
            return
        groups: dict[str, list[PodView]] = {uid: [] for uid in changed}
        for pod in self._pods.values():
            if pod.job_uid in groups:
                groups[pod.job_uid].append(pod)
        for uid, pods in groups.items():
            known = self.known.get(uid)
            if known is not None:
                known.pods = tuple(sorted(pods, key=lambda p: (p.attempt, p.rank, p.uid)))
                known.forget_step()

    def _take_profiles(self, profiles: Iterable[GPUProfile]) -> None:
        found = {(p.metadata.namespace, p.metadata.name): p for p in profiles}
        before = self._profiles
        changed = {k for k in before.keys() | found.keys() if before.get(k) is not found.get(k)}
        self._profiles = found
        if not changed:
            return
        for known in self.known.values():
            if known.profile_key in changed:
                known.profile = found.get(known.profile_key)
                known.needs = None
                known.forget_step()
                self._unmix(known)

    # -- what follows

    def _renew_capacity(self, now: datetime) -> None:
        """The ledger of cards; nodes on which nothing changed stay the same objects."""
        assert self._configuration is not None, "set when the snapshot was taken in"
        before = self.capacity.nodes
        nodes = {name: node for name, node in before.items() if name not in self._dirty}
        for name, node in nodes.items():
            closed = closed_reason(
                self._views[name], self._gpu_nodes[name], self._configuration, now
            )
            if closed != node.closed:
                nodes[name] = replace(node, closed=closed)
        for name, node in self._built(self._dirty, now).nodes.items():
            nodes[name] = _kept(before.get(name), node)
        self.changed_nodes = {
            name for name in before.keys() | nodes.keys() if before.get(name) is not nodes.get(name)
        }
        if self.changed_nodes:
            self.capacity = capacity_of(nodes)

    def _built(self, names: set[str], now: datetime) -> Capacity:
        """These nodes from what is on them."""
        assert self._configuration is not None, "set when the snapshot was taken in"
        uids = {uid for name in names for uid in self._jobs_on.get(name, ())}
        pods = {uid: self._pods[uid] for name in names for uid in self._pods_on.get(name, ())}
        for uid in uids:
            pods |= {pod.uid: pod for pod in self.known[uid].pods}
        owners = {pod.job_uid for pod in pods.values() if pod.job_uid in self.known}
        part = Snapshot(
            jobs=tuple(self.known[uid].job for uid in uids | owners),
            pods=tuple(pods.values()),
            nodes=tuple(self._views[name] for name in names if name in self._views),
            gpu_nodes=tuple(self._gpu_nodes[name] for name in names if name in self._gpu_nodes),
            configuration=self._configuration,
        )
        requests = {uid: self.known[uid].requests for uid in uids | owners}
        return build_capacity(part, now, requests)

    def _renew_mix(self) -> None:
        assert self._configuration is not None, "set when the snapshot was taken in"
        models = sorted(self.capacity.largest)
        mixed_for = tuple(sorted(self.capacity.largest.items()))
        if mixed_for != self._mixed_for:
            self._mixed_for = mixed_for
            self._counts = {}
            for known in self.known.values():
                known.demand = None
        for uid, known in self.known.items():
            if known.demand is None and not known.job.finished:
                known.demand = demand_of(
                    self.needs(uid), models, self.capacity, self._configuration
                )
                workers = known.job.spec.workers
                self._counts[known.demand] = self._counts.get(known.demand, 0.0) + workers
        mix = steady_mix(self._counts)
        if not mix.equals(self.mix):
            self.mix = mix

    def _unmix(self, known: Known) -> None:
        """Takes the job's request out of the mix; it is counted anew if the job is still there."""
        if known.demand is None:
            return
        left = self._counts[known.demand] - known.job.spec.workers
        if left > 0:
            self._counts[known.demand] = left
        else:
            del self._counts[known.demand]
        known.demand = None


def _kept(before: NodeCapacity | None, after: NodeCapacity) -> NodeCapacity:
    """The old object where the new one says the same, whole or card by card."""
    if before is None or before == after:
        return before or after
    known = {card.uuid: card for card in before.cards}
    cards = (known[c.uuid] if known.get(c.uuid) == c else c for c in after.cards)
    return replace(after, cards=tuple(cards))


def _spec_version(job: GPUJob) -> _Version:
    """A spec changes with its generation; without one (0) nothing is known to be the same."""
    generation = job.metadata.generation
    return (generation, 0) if generation else (0, id(job))


def around(job: GPUJob, capacity: Capacity) -> tuple[object, ...]:
    """What a running job sees of its nodes; what else changes there is nothing to it."""
    found: list[object] = []
    placement = job.status.placement
    for worker in placement.workers if placement is not None else ():
        node = capacity.nodes.get(worker.node)
        if node is None:
            found.append(None)
            continue
        view = node.node
        found += (node.closed, view.not_ready_since, view.taints, node.price_per_gpu_hour)
        found += (card for card in node.cards if card.uuid in worker.gpus)
    return tuple(found)
