"""The nodes and GPUs of a cycle, with the reservations of jobs on them.

Only nodes on which something changed are rebuilt in the capacity.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import zip_longest

from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.groups import Groups, ListDiff
from gpujob_operator.decide.capacity.availability import NodeClosed, why_closed
from gpujob_operator.decide.capacity.calibration import laws
from gpujob_operator.decide.capacity.cluster import (
    Capacity,
    GPUCapacity,
    NodeCapacity,
    capacity_of,
    sizes,
)
from gpujob_operator.decide.capacity.job_usage import (
    NOTHING,
    JobUsage,
    TerminatedPod,
    usage_of_gone,
)
from gpujob_operator.decide.capacity.prices import rates
from gpujob_operator.decide.capacity.sites import facts_of
from gpujob_operator.decide.capacity.suspects import suspects
from gpujob_operator.decide.capacity.usage import ClusterUsage, Learned
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import Place
from gpujob_operator.decide.model.snapshot import GonePod, NodeView, ProgramFault, Snapshot


@dataclass(slots=True)
class Nodes:
    """The capacity. `take` the snapshot, `hold` what jobs hold, then `renew`."""

    capacity: Capacity = field(default_factory=Capacity)
    _views: dict[str, NodeView] = field(default_factory=dict[str, NodeView])
    _gpu_nodes: dict[str, GPUNode] = field(default_factory=dict[str, GPUNode])
    _seen_views: ListDiff[NodeView] = field(default_factory=lambda: ListDiff[NodeView]())
    _seen_gpu_nodes: ListDiff[GPUNode] = field(default_factory=lambda: ListDiff[GPUNode]())
    _seen_gone_pods: ListDiff[GonePod] = field(default_factory=lambda: ListDiff[GonePod]())
    # Several nodes have a GPU if an agent reports another node's GPU as its own.
    _nodes_of_gpu: Groups[str] = field(default_factory=lambda: Groups[str]())
    _held: dict[str, JobUsage] = field(default_factory=dict[str, JobUsage])
    _sum: ClusterUsage = field(default_factory=ClusterUsage)
    # When a node's measurements become stale, and the nodes whose measurements are stale.
    _old_at: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    _old: set[str] = field(default_factory=set[str])
    _learned: Learned = field(default_factory=Learned)
    _profiles: tuple[GPUProfile, ...] = ()
    _program_faults: tuple[ProgramFault, ...] = ()
    # Nodes whose capacity may have changed since it was renewed: entirely, or on these GPUs.
    _dirty: set[str] = field(default_factory=set[str])
    _touched: dict[str, set[str]] = field(default_factory=dict[str, set[str]])

    def take(self, snapshot: Snapshot) -> None:
        """Brings the nodes up to date."""
        self._learn(snapshot)
        self._take_gone_pods(snapshot.gone_pods)
        new, gone = self._seen_views.take(snapshot.nodes)
        for view in gone:
            if self._views.get(view.name) is view:
                del self._views[view.name]
        self._views |= {view.name: view for view in new}
        self._dirty.update(view.name for view in (*new, *gone))
        self._take_gpu_nodes(*self._seen_gpu_nodes.take(snapshot.gpu_nodes))

    def _take_gone_pods(self, pods: tuple[GonePod, ...]) -> None:
        new, gone = self._seen_gone_pods.take(pods)
        for pod in gone:
            self.hold(f"pod {pod.uid}", NOTHING)
        for pod in new:
            self.hold(f"pod {pod.uid}", usage_of_gone(pod))

    def _learn(self, snapshot: Snapshot) -> None:
        """Marks the nodes to which the newly learned figures apply."""
        before, spot_rates = self._learned, rates(snapshot)
        same_profiles = snapshot.profiles is self._profiles
        models = before.laws if same_profiles else laws(snapshot.profiles)
        self._profiles = snapshot.profiles
        same_faults = snapshot.program_faults is self._program_faults
        found = before.suspects if same_faults else suspects(snapshot.program_faults)
        self._program_faults = snapshot.program_faults
        self._learned = Learned(spot_rates, models, found)
        self._touch(place for place, _ in before.suspects.items() ^ found.items())
        if spot_rates != before.spot_rates:
            self._dirty.update(name for name, view in self._views.items() if view.spot)
        if models != before.laws:
            known = before.laws.keys() | models.keys()
            changed = {model for model in known if before.laws.get(model) != models.get(model)}
            for name, node in self._gpu_nodes.items():
                if any(gpu.model in changed for gpu in node.status.gpus):
                    self._dirty.add(name)

    def _take_gpu_nodes(self, new: list[GPUNode], gone: list[GPUNode]) -> None:
        names = {node.metadata.name for node in (*new, *gone)}
        before = self._claims(names)
        for node in gone:
            if self._gpu_nodes.get(node.metadata.name) is node:
                del self._gpu_nodes[node.metadata.name]
        self._gpu_nodes |= {node.metadata.name: node for node in new}
        self._dirty |= names
        after = self._claims(names)
        for name, uuid in before - after:
            self._nodes_of_gpu.discard(uuid, name)
        for name, uuid in after - before:
            self._nodes_of_gpu.add(uuid, name)

    def _claims(self, names: Iterable[str]) -> set[Place]:
        """Returns the GPUs that these nodes report as their own."""
        nodes = [self._gpu_nodes[name] for name in names if name in self._gpu_nodes]
        return {(node.metadata.name, gpu.uuid) for node in nodes for gpu in node.status.gpus}

    def has(self, name: str) -> bool:
        return name in self._views

    def _of_gpus(self, uuids: Iterable[str]) -> set[str]:
        return {name for uuid in uuids for name in self._nodes_of_gpu.of(uuid)}

    def hold(self, uid: str, after: JobUsage) -> None:
        """Replaces what this job and its pods hold."""
        before = self._held.pop(uid, NOTHING)
        if after != NOTHING:
            self._held[uid] = after
        if before == after:
            return
        self._sum.remove(before)
        self._sum.add(after)
        for holding in (before, after):
            self._touch(holding.gpus)
            self._touch(holding.gpus_of_stale_pods)
            for pod in holding.ended:
                self._touch(("", uuid) for uuid in self._gpus_with(pod))
            for node, _, _ in (*holding.not_yet_bound, *holding.bound):
                self._touched.setdefault(node, set())

    def _touch(self, places: Iterable[Place]) -> None:
        """Marks GPUs of nodes. A place without a node means every node that has such a GPU."""
        for node, uuid in places:
            for name in (node,) if node else self._nodes_of_gpu.of(uuid):
                self._touched.setdefault(name, set()).add(uuid)

    def _gpus_with(self, pod: TerminatedPod) -> set[str]:
        """Returns the pod's GPUs, and other GPUs of the same nodes on which its processes were
        seen.
        """
        nodes = [self._gpu_nodes[name] for name in self._of_gpus(pod.gpus)]
        gpus = (gpu for node in nodes for gpu in node.status.gpus)
        seen = {g.uuid for g in gpus if any(p.pod_uid == pod.pod_uid for p in g.processes)}
        return seen.union(pod.gpus)

    def renew(
        self, configuration: Configuration, now: datetime
    ) -> dict[str, frozenset[str] | None]:
        """Renews the capacity. Returns the nodes that changed, each with its changed GPUs.

        None instead of GPUs means that more of the node changed. What did not change stays the same
        object.
        """
        nodes = dict(self.capacity.nodes)
        changed: dict[str, frozenset[str] | None] = {}
        due = {*self._old, *self._old_at.due(now)}
        for name in sorted(self._dirty | self._touched.keys() | due):
            before = nodes.get(name)
            same = None if name in self._dirty else before
            after = self._node(name, same, configuration, now)
            self._old.discard(name)
            self._old_at.drop(name)
            if after is not None:
                nodes[name] = after = _kept(before, after)
                self._watch(name, after.closed, configuration)
            else:
                nodes.pop(name, None)
            if after is not before:
                changed[name] = _changed_gpus(before, after)
        self._dirty, self._touched = set(), {}
        if changed or self.capacity.laws != self._learned.laws:
            self.capacity = self._capacity_of(nodes, changed)
        return changed

    def _capacity_of(self, nodes: dict[str, NodeCapacity], changed: Iterable[str]) -> Capacity:
        before = self.capacity.nodes
        both = all(name in before and name in nodes for name in changed)
        if both and all(sizes(before[name]) == sizes(nodes[name]) for name in changed):
            return replace(self.capacity, nodes=nodes, laws=self._learned.laws)
        return capacity_of(nodes, self._learned.laws)

    def _node(
        self, name: str, before: NodeCapacity | None, configuration: Configuration, now: datetime
    ) -> NodeCapacity | None:
        """Returns the capacity of a managed node, or None. `before` is kept if it was not observed
        again.
        """
        view, gpu_node = self._views.get(name), self._gpu_nodes.get(name)
        if view is None or gpu_node is None:
            return None
        if before is None:
            return self._sum.node(view, gpu_node, configuration, now, self._learned)
        touched = self._touched.get(name)
        if touched is not None:
            before = self._sum.with_other_use(before, gpu_node, touched, self._learned)
        closed = why_closed(view, gpu_node, before.notice, configuration, now)
        return replace(before, closed=closed) if closed != before.closed else before

    def _watch(self, name: str, closed: NodeClosed | None, configuration: Configuration) -> None:
        """Schedules the next look, because measurements become stale with time alone."""
        observed = self._gpu_nodes[name].status.observed_at
        if observed is None:
            return
        if closed is not None and closed.stale:
            self._old.add(name)
        else:
            seconds = configuration.telemetry_stale_seconds
            self._old_at.put(name, observed + timedelta(seconds=seconds))


def _changed_gpus(before: NodeCapacity | None, after: NodeCapacity | None) -> frozenset[str] | None:
    """Returns the GPUs that are new objects, or None if jobs see another change of the node."""
    if before is None or after is None or facts_of(before) != facts_of(after):
        return None
    gpus = zip_longest(before.gpus, after.gpus)
    changed = (gpu for pair in gpus if pair[0] is not pair[1] for gpu in pair)
    return frozenset(gpu.uuid for gpu in changed if gpu is not None)


def _kept(before: NodeCapacity | None, after: NodeCapacity) -> NodeCapacity:
    """Returns the old object if the new one is equal, as a whole or GPU by GPU."""
    if before is None or before == after:
        return before or after
    known = {gpu.uuid: gpu for gpu in before.gpus}
    return replace(after, gpus=tuple([_same(known.get(gpu.uuid), gpu) for gpu in after.gpus]))


def _same(before: GPUCapacity | None, after: GPUCapacity) -> GPUCapacity:
    return before if before is not None and (before is after or before == after) else after
