"""The observed cache: everything that `plan` may read, as parsed views.

Watches and the operator's own writes put objects in, and the scheduling loop takes an immutable
snapshot out. Only changed objects are parsed again. A snapshot of 10,000 unchanged objects reuses
the existing tuple.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypeVar

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, GPUJobStatus
from gpujob_api.gpunode import GPUNode, GPUNodeStatus
from gpujob_api.gpuprofile import GPUProfile, GPUProfileStatus
from gpujob_api.gpuqueue import GPUQueue, GPUQueueStatus
from gpujob_api.gpuservice import GPUService, GPUServiceStatus
from gpujob_api.manifest import (
    gpuprofile_from_manifest,
    gpuqueue_from_manifest,
    gpuservice_from_manifest,
)
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.gates import GatePod
from gpujob_operator.decide.model.settling import has_settled
from gpujob_operator.decide.model.sharing_groups import sharing_groups
from gpujob_operator.decide.model.snapshot import (
    InvalidJob,
    NodeView,
    PodView,
    ReceivedReport,
    Snapshot,
)
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.gone_pods import GonePods
from gpujob_operator.observe.listers import Listers
from gpujob_operator.observe.node_readings import NodeReadings
from gpujob_operator.observe.placement_records import PlacementRecords, allocatable_bytes
from gpujob_operator.observe.scope import EVERYWHERE, Scope
from gpujob_operator.observe.spot import SpotHistory
from gpujob_operator.observe.start_waits import StartWaits
from gpujob_operator.observe.store import FOR_EVER, Mark, Store
from gpujob_operator.observe.unreadable import UnknownFields, Unreadable
from gpujob_operator.observe.used_nodes import UsedNodes
from gpujob_operator.read.job_specs import JobSpecs
from gpujob_operator.read.nodes import CachedNode, cached_node, counts, with_pods
from gpujob_operator.read.nouns import read_job, same_noun
from gpujob_operator.read.pods import CachedPod, cached_pod, opaque_pod
from gpujob_operator.read.shapes import Identity, identity, identity_or_none
from gpujob_operator.read.volumes import bound_volume, limits_nodes
from gpujob_operator.telemetry.metrics import Metrics


@dataclass(slots=True)
class _Use:
    pods: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0


class NodeUse:
    """The requests of the pods on each node, and the nodes with what these leave free.

    A node's view is the same object until the node or the pods on it change.
    """

    def __init__(self) -> None:
        # By the node's name.
        self._use: dict[str, _Use] = {}
        self._views: dict[str, NodeView] = {}

    def view(self, node: CachedNode) -> NodeView:
        name = node.empty.name
        view = self._views.get(name)
        if view is None:
            use = self._use.get(name, _Use())
            view = self._views[name] = with_pods(node, use.pods, use.cpu_milli, use.memory_bytes)
        return view

    def pod_changed(self, before: CachedPod | None, after: CachedPod | None) -> None:
        for pod, sign in ((before, -1), (after, 1)):
            if pod is None or pod.node is None or not pod.takes_room:
                continue
            use = self._use.setdefault(pod.node, _Use())
            use.pods += sign
            use.cpu_milli += sign * pod.requests.cpu_milli
            use.memory_bytes += sign * pod.requests.memory_bytes
            self._views.pop(pod.node, None)

    def node_changed(self, *nodes: CachedNode | None) -> None:
        """Handles a change of the node from the first to the second state. None: it does
        not exist.
        """
        for node in nodes:
            if node is not None:
                self._views.pop(node.empty.name, None)


class Kind(Enum):
    """The watched kinds."""

    JOB = "GPUJob"
    GPU_NODE = "GPUNode"
    QUEUE = "GPUQueue"
    PROFILE = "GPUProfile"
    SERVICE = "GPUService"
    POD = "Pod"
    NODE = "Node"
    VOLUME = "PersistentVolume"


# Decisions wait for a list of each other kind. An unknown volume costs at most one refusal.
_NOT_AWAITED = frozenset({Kind.VOLUME})
# A change of these kinds is a reading or bookkeeping, for which no user waits. Services have a loop
# of their own.
_SOFT = frozenset({Kind.GPU_NODE, Kind.PROFILE, Kind.SERVICE, Kind.VOLUME})
# The kinds of a user's namespace that only this operator writes.
_SCOPED = frozenset({Kind.JOB, Kind.PROFILE, Kind.SERVICE})

PRUNE_SECONDS = 10.0
# The start-up of an attempt takes this long at most, compilers and downloads included.
START_UP_MAX = timedelta(minutes=30)

_NounT = TypeVar("_NounT", bound=GPUJob | InvalidJob | GPUQueue | GPUProfile | GPUService)


class Cache:
    """The observed cache. Not thread-safe: all calls come from the operator's event loop.

    Objects may have any content. An object that cannot be read is ignored and recorded
    (`unreadable`). An unreadable pod still counts on its node. Jobs, profiles and workers outside
    `scope` are ignored.
    """

    def __init__(
        self,
        dirty: Dirty,
        metrics: Metrics,
        clock: Callable[[], datetime],
        scope: Scope = EVERYWHERE,
        restored: Callable[[], None] = lambda: None,
    ) -> None:
        """`restored` is called if a list shows that the API server's data was restored."""
        self._scope = scope
        self._restored = restored
        self.unreadable = Unreadable(metrics, clock)
        self._dirty = dirty
        self._clock = clock
        self._readings = NodeReadings(
            self._worker, clock, lambda reason: metrics.readings_dropped.labels(reason).inc()
        )
        self.spot = SpotHistory(clock)
        self._pruned_at: datetime | None = None
        self._gone = GonePods(clock)
        self._waits = StartWaits(clock)
        self._node_use = NodeUse()
        self._used_nodes = UsedNodes()
        # Gates of services, by UID of the pod.
        self._gates: dict[str, GatePod] = {}
        self.synced: set[Kind] = set()
        self._unknown = {
            Kind.JOB: UnknownFields(GPUJobStatus),
            Kind.QUEUE: UnknownFields(GPUQueueStatus),
            Kind.PROFILE: UnknownFields(GPUProfileStatus),
            Kind.SERVICE: UnknownFields(GPUServiceStatus),
        }
        self.placements = PlacementRecords(self._show_job)
        self._specs = JobSpecs()
        self.jobs = self._nouns(Kind.JOB, self._read_job)
        self.gpu_nodes = Store(
            clock,
            self._readings.read,
            same_noun,
            self._gpu_node_changed,
            self._ignored(Kind.GPU_NODE),
        )
        self.queues = self._nouns(Kind.QUEUE, gpuqueue_from_manifest)
        self.profiles = self._nouns(Kind.PROFILE, gpuprofile_from_manifest)
        self.services = self._nouns(Kind.SERVICE, gpuservice_from_manifest)
        self.pods = Store(
            clock,
            self._read_pod,
            changed=self._pod_changed,
            ignored=self._ignored(Kind.POD),
            opaque=opaque_pod,
        )
        self.nodes = Store(
            clock, cached_node, changed=self._node_changed, ignored=self._ignored(Kind.NODE)
        )
        self.volumes = Store(clock, bound_volume, ignored=self._ignored(Kind.VOLUME))
        self.listers = Listers(self.jobs, self.pods, self.services, self._gates)
        self._stores: Mapping[Kind, Store[Any]] = {
            Kind.JOB: self.jobs,
            Kind.GPU_NODE: self.gpu_nodes,
            Kind.QUEUE: self.queues,
            Kind.PROFILE: self.profiles,
            Kind.SERVICE: self.services,
            Kind.POD: self.pods,
            Kind.NODE: self.nodes,
            Kind.VOLUME: self.volumes,
        }

    @property
    def ready(self) -> bool:
        """True once every kind except volumes was listed. Nothing may be decided before that."""
        return len(self.synced | _NOT_AWAITED) == len(Kind)

    def version(self, kind: Kind, uid: str) -> int:
        return self._stores[kind].version(uid)

    def apply(self, kind: Kind, event_type: str | None, manifest: object) -> bool:
        """Applies a watch event, or the answer to a write (`event_type` None).

        Returns whether decisions could change. Never raises.
        """
        if kind in _SCOPED and not self._scope.covers(manifest):
            return False
        store = self._stores[kind]
        try:
            found = identity(manifest)
        except FieldError as error:
            self.unreadable.note(kind.value, "", error)
            return False
        counted = kind is Kind.NODE and self._counts(self.nodes.get(found.uid))
        if event_type == "DELETED":
            if kind is Kind.POD:
                # Also stores how the pod ended, which no other event may contain.
                store.upsert(manifest)
            changed = store.remove(found.uid, found.version or FOR_EVER)
        else:
            changed = store.upsert(manifest)
        if changed and (counted or self._matters(kind, found.uid)):
            self._dirty.mark(urgent=kind not in _SOFT)
        return changed

    def unknown_fields(self, kind: Kind, uid: str) -> dict[str, Any]:
        """Returns the fields of the object's status that this version does not know."""
        return self._unknown[kind].of(uid)

    def _nouns(self, kind: Kind, parse: Callable[[Mapping[str, Any]], _NounT]) -> Store[_NounT]:
        """Returns a store of a kind whose status the operator writes."""
        unknown = self._unknown[kind]

        def changed(before: _NounT | None, after: _NounT | None) -> None:
            if before is not None and after is None:
                unknown.forget(before.metadata.uid)
                self.placements.forget(before.metadata.uid)
            self._used_nodes.changed(before, after)

        return Store(self._clock, unknown.noting(parse), same_noun, changed, self._ignored(kind))

    def _ignored(self, kind: Kind) -> Callable[[str, Exception], None]:
        return lambda name, error: self.unreadable.note(kind.value, name, error)

    def forget(self, kind: Kind, uid: str) -> None:
        """Removes an object that a write found to be gone.

        A worker's pod that was not seen to end waits for its event first. Each further write that
        finds it gone calls this again.
        """
        pod = self.listers.pod(uid) if kind is Kind.POD else None
        if pod is not None and self._gone.awaits_removal(pod):
            return
        if self._stores[kind].remove(uid):
            self._dirty.mark()

    def mark(self, kind: Kind) -> Mark:
        """Returns how much of the kind has been seen. Call it before a list is requested."""
        return self._stores[kind].mark

    def condense(self, kind: Kind, mark: Mark, manifest: object) -> object:
        """Returns what to keep of a listed object until its list is complete (`Store.condense`)."""
        if kind in _SCOPED and not self._scope.covers(manifest):
            return identity_or_none(manifest)
        held, changed = self._stores[kind].condense(manifest, mark)
        if changed:
            self._dirty.mark()
        return held

    def resync(
        self,
        kind: Kind,
        manifests: Iterable[object],
        resource_version: str,
        mark: Mark | None = None,
    ) -> bool:
        """Applies a full list of a kind. `mark` is the one from before the request.

        Returns whether it changed anything. Never raises.
        """
        objects = self._in_scope(kind, manifests)
        history = self._stores[kind].mark.history
        changed = self._stores[kind].resync(objects, resource_version, mark)
        if self._stores[kind].mark.history != history:
            self._restored()
        elif kind is Kind.POD:
            self._gone.listed()
        first = kind not in self.synced
        self.synced.add(kind)
        if changed or first:
            self._dirty.mark()
        return changed

    def retain(
        self, kind: Kind, listed: Iterable[Identity], resource_version: str, mark: Mark
    ) -> bool:
        """Removes the objects that a full list lacks (`Store.retain`).

        Returns whether it changed anything. Never raises.
        """
        history = self._stores[kind].mark.history
        changed = self._stores[kind].retain(listed, resource_version, mark)
        if self._stores[kind].mark.history != history:
            self._restored()
        if changed:
            self._dirty.mark()
        return changed

    def begin_another_history(self) -> None:
        """Prepares for data that was restored from a backup.

        Later states replace what is stored, however old they are. List every kind after this call.
        """
        self._gone.begin_another_history(self.pods.uids)
        for store in self._stores.values():
            store.begin_another_history()

    def lacks(
        self,
        kind: Kind,
        manifests: Iterable[object],
        resource_version: str,
        mark: Mark | None = None,
    ) -> bool:
        """Returns whether the list has a change that no event has brought."""
        objects = self._in_scope(kind, manifests)
        return self._stores[kind].lacks(objects, resource_version, mark)

    def _in_scope(self, kind: Kind, manifests: Iterable[object]) -> Iterable[object]:
        return self._scope.only(manifests) if kind in _SCOPED else manifests

    def has_listed_nodes(self) -> bool:
        return Kind.NODE in self.synced

    def has_node(self, name: str) -> bool:
        return self._counts(self.nodes.by_name(name))

    def snapshot(
        self, reports: tuple[ReceivedReport, ...], configuration: Configuration
    ) -> Snapshot:
        """Returns the current snapshot. Never raises. Call it only when `ready`."""
        jobs = self.jobs.views
        good = tuple(job for job in jobs if isinstance(job, GPUJob))
        self._prune(good)
        for received in reports:
            report = received.report
            if received.rank == 0 and has_settled(report):
                key = (received.job_uid, report.attempt)
                self._readings.usage.settled(
                    key,
                    serves=report.serving is not None,
                    began_here=self._is_young(received.job_uid),
                )
        return Snapshot(
            jobs=good,
            invalid_jobs=tuple(job for job in jobs if isinstance(job, InvalidJob)),
            pods=self._pod_views(),
            nodes=tuple(map(self._node_use.view, filter(self._counts, self.nodes.views))),
            gpu_nodes=self.gpu_nodes.views,
            queues=self.queues.views,
            profiles=self.profiles.views,
            volumes=tuple(filter(limits_nodes, self.volumes.views)),
            reports=reports,
            usage=self._readings.usage.usage(),
            spot_pools=self.spot.pools(),
            gone_pods=self._gone.recent(),
            program_faults=self._readings.program_faults.all(),
            recorded=self.placements.uids,
            perhaps_placed=self.placements.perhaps_placed,
            configuration=configuration,
        )

    def _is_young(self, job_uid: str) -> bool:
        """Returns whether the attempt began a short time ago. Of an older one, a process that
        started since has seen no start-up.
        """
        job = self.listers.job(job_uid)
        started_at = job.status.attempt_started_at if job is not None else None
        return started_at is not None and self._clock() - started_at < START_UP_MAX

    def _pod_views(self) -> tuple[PodView, ...]:
        there = (pod.view for pod in self.pods.views if pod.view is not None)
        return (*there, *self._gone.undecided(self.listers.job_of))

    def _matters(self, kind: Kind, uid: str) -> bool:
        """Returns whether decisions depend on the object. Most pods and nodes are not managed."""
        if kind is Kind.NODE:
            return self._counts(self.nodes.get(uid))
        pod = self.pods.get(uid) if kind is Kind.POD else None
        if pod is None or pod.view is not None:
            return True
        return pod.node is not None and self.has_node(pod.node)

    def _counts(self, node: CachedNode | None) -> bool:
        """Returns whether the node is part of a snapshot."""
        return node is not None and counts(node, self._used_nodes)

    def _prune(self, jobs: tuple[GPUJob, ...]) -> None:
        """Drops the use of attempts that are gone. It scans everything, so it runs rarely."""
        now = self._clock()
        if self._pruned_at is not None and (now - self._pruned_at).total_seconds() < PRUNE_SECONDS:
            return
        self._pruned_at = now
        attempts = {(job.metadata.uid, job.status.attempt) for job in jobs}
        attempts |= {
            (pod.view.job_uid, pod.view.attempt) for pod in self.pods.views if pod.view is not None
        }
        self._readings.usage.keep_only(
            attempts, {node.metadata.name for node in self.gpu_nodes.views}
        )

    def _read_job(self, manifest: Mapping[str, Any]) -> GPUJob | InvalidJob:
        job = read_job(manifest, self._specs.read)
        return self.placements.seen(job) if isinstance(job, GPUJob) else job

    def begin_to_lead(self, *, in_doubt: bool) -> None:
        """Relies on the placements that pods record now.

        Call it with every kind listed, before anything is decided. `in_doubt` means that a request
        of the last leader may still arrive.
        """
        jobs = [job for job in self.jobs.views if isinstance(job, GPUJob)]
        pods = [pod.view for pod in self.pods.views if pod.view is not None]
        memory_bytes = allocatable_bytes(self.gpu_nodes.views)
        groups = sharing_groups(self.queues.views)
        self.placements.begin(jobs, pods, memory_bytes, groups, in_doubt=in_doubt)

    def _show_job(self, job: GPUJob) -> None:
        if self.jobs.amend(job.metadata.uid, job):
            self._dirty.mark()

    def _read_pod(self, manifest: Mapping[str, Any]) -> CachedPod:
        """Reads a pod. A worker outside the scope counts on its node and is otherwise
        left alone.
        """
        pod = cached_pod(manifest)
        if not self._scope.covers(manifest):
            return replace(pod, view=None, gate=None)
        return self._waits.noted(pod)

    def take_reading(self, name: str, status: GPUNodeStatus, taken_at: datetime) -> bool:
        """Stores a reading that the node's agent sent. `taken_at` is on this cache's clock.

        Returns False, and stores nothing, while the GPUNode does not exist.
        """
        node = self.gpu_nodes.by_name(name)
        if node is not None:
            self._put_gpu_node(self._readings.take(node, status, taken_at))
        return node is not None

    def close_readings(self, name: str) -> None:
        """Marks the agent's connection as closed. A status that is at least as new counts again."""
        self._readings.close(name)
        self._reread_gpu_node(name)

    def clock_moved(self, by: timedelta) -> None:
        """Moves stored times with the clock, which was set."""
        for name in self._readings.clock_moved(by):
            self._reread_gpu_node(name)
        for uid in self._waits.clock_moved(by):
            pod = self.pods.get(uid)
            if pod is not None and self.pods.amend(uid, self._waits.noted(pod)):
                self._dirty.mark()

    def _reread_gpu_node(self, name: str) -> None:
        node = self.gpu_nodes.by_name(name)
        if node is not None:
            self._put_gpu_node(self._readings.current(node))

    def _put_gpu_node(self, node: GPUNode) -> None:
        if self.gpu_nodes.amend(node.metadata.uid, node):
            self._dirty.mark(urgent=False)

    def _worker(self, uid: str) -> PodView | None:
        """Returns the worker pod with this UID. Use by other pods is not attributed to the job."""
        pod = self.listers.pod(uid)
        job = self.listers.job_of(pod) if pod is not None else None
        if pod is None or job is None:
            return None
        uid = job.metadata.uid
        return pod if pod.job_uid == uid else replace(pod, job_uid=uid)

    def _gpu_node_changed(self, before: GPUNode | None, after: GPUNode | None) -> None:
        if after is None and before is not None:
            self._readings.forget(before.metadata.name)

    def _pod_changed(self, before: CachedPod | None, after: CachedPod | None) -> None:
        self._node_use.pod_changed(before, after)
        if before is not None:
            self._gates.pop(before.uid, None)
        if after is not None and after.gate is not None:
            self._gates[after.uid] = after.gate
        if after is not None and after.view is not None:
            self.placements.created(after.view)
        if after is None and before is not None and before.view is not None:
            self._waits.forget(before.uid)
            self._gone.remember(before.view)
            self._readings.program_faults.remember(before.view)

    def _node_changed(self, before: CachedNode | None, after: CachedNode | None) -> None:
        views = (node.empty if node is not None else None for node in (before, after))
        self.spot.changed(*views)
        self._node_use.node_changed(before, after)
