"""What planning keeps from one cycle to the next: figures derived from unchanged objects.

A large cluster changes little from cycle to cycle. Nouns are immutable, and an observed object is
replaced only if it changed. Objects are therefore compared by identity, and only what depends on a
new object is derived again. Dropping the cache changes no plan, except that decisions that wait for
writes in flight are repeated. Tests check this.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.cache.deadlines import Expiries
from gpujob_operator.decide.cache.groups import SharingGroups
from gpujob_operator.decide.cache.holders import Holders
from gpujob_operator.decide.cache.jobs import JobEntry, Jobs, ProfileKey, Starts, delete_at
from gpujob_operator.decide.cache.node_arrays import NodeArrayCache
from gpujob_operator.decide.cache.nodes import Nodes
from gpujob_operator.decide.cache.pending_queues import EquivalenceClasses, PendingQueues
from gpujob_operator.decide.cache.quiescence import StepQueue
from gpujob_operator.decide.cache.release_arrays import ReleaseArrays
from gpujob_operator.decide.cache.tenancy import TenancyArrays
from gpujob_operator.decide.capacity.cluster import Capacity
from gpujob_operator.decide.capacity.job_usage import NOTHING, usage_of, usage_of_orphans
from gpujob_operator.decide.capacity.sites import sites_of
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.profile import unused_until, with_own_measurement
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.held_gpus import queue_of
from gpujob_operator.decide.model.snapshot import PodView, Snapshot
from gpujob_operator.decide.model.starts import Forecast
from gpujob_operator.decide.packing.demand import Demand, WorkloadMix
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.node_views import in_order
from gpujob_operator.decide.placement.requirements import (
    JobRequirements,
    demand_of,
    requirements_of,
)
from gpujob_operator.decide.queue.order import length_relevant_from_seconds
from gpujob_operator.decide.queue.pending import Pending, last_reason_of, order_keys_of, order_rules
from gpujob_operator.decide.queue.quota import QuotaState

# Steps per doubling of a count. One job more or less does not change a mix of thousands, so what is
# computed from the mix stays valid.
STEPS_PER_DOUBLING = 2


def rounded_mix(counts: Mapping[Demand, float]) -> WorkloadMix:
    """Returns the mix of these requests, with counts rounded to steps of 41 %.

    Each worker of each unfinished job counts once.
    """
    return WorkloadMix.of({demand: _step(count) for demand, count in counts.items() if count > 0})


def _step(count: float) -> float:
    return 2 ** (round(math.log2(count) * STEPS_PER_DOUBLING) / STEPS_PER_DOUBLING)


@dataclass(slots=True)
class MixCounter:
    """The mix of requests in a snapshot, which placement expects of future jobs.

    Counts how often each request occurs. `put` unfinished jobs as they come and change, `drop` them
    as they go, and `renew`.
    """

    mix: WorkloadMix = field(default_factory=WorkloadMix)
    _counts: dict[Demand, float] = field(default_factory=dict[Demand, float])
    # What is counted of each job: its request and its number of workers.
    _counted: dict[str, tuple[Demand, int]] = field(default_factory=dict[str, tuple[Demand, int]])
    _uncounted: set[str] = field(default_factory=set[str])
    # The sizes of GPUs for which the jobs were counted.
    _largest: Mapping[str, int] = field(default_factory=dict[str, int])

    def put(self, uid: str) -> None:
        self.drop(uid)
        self._uncounted.add(uid)

    def drop(self, uid: str) -> None:
        self._uncounted.discard(uid)
        counted = self._counted.pop(uid, None)
        if counted is None:
            return
        demand, workers = counted
        left = self._counts[demand] - workers
        if left > 0:
            self._counts[demand] = left
        else:
            del self._counts[demand]

    def renew(self, capacity: Capacity, request: Callable[[str], tuple[Demand, int]]) -> None:
        """Counts the jobs that were put. `request` returns a job's request and number of workers,
        by UID.
        """
        if capacity.largest != self._largest:
            # Requests depend on the largest GPUs.
            self._largest = dict(capacity.largest)
            self._uncounted |= self._counted.keys()
            self._counted, self._counts = {}, {}
        for uid in sorted(self._uncounted):
            demand, workers = self._counted[uid] = request(uid)
            self._counts[demand] = self._counts.get(demand, 0.0) + workers
        self._uncounted.clear()
        after = rounded_mix(self._counts)
        # The object stays the same while the mix is equal, so what is computed from it stays valid.
        self.mix = self.mix if after.equals(self.mix) else after


@dataclass(slots=True)
class SchedulerCache:
    """The cache. Create it with `of`, and pass it to every cycle for which it `holds_for` the
    snapshot.

    Call `update` first, then read.
    """

    configuration: Configuration = field(default_factory=Configuration)
    listening_since: datetime | None = None
    groups: SharingGroups = field(default_factory=SharingGroups)
    # The calculation whose start ranges all statuses have.
    ranges_written: Forecast | None = None
    steps: StepQueue = field(default_factory=StepQueue)
    releases: ReleaseTimes = field(init=False)
    # Finished jobs by UID, with the time to delete them.
    expiries: Expiries[str] = field(default_factory=lambda: Expiries[str]())
    waiting: PendingQueues = field(default_factory=PendingQueues)
    # Jobs that hold GPUs.
    holders: Holders = field(default_factory=Holders)
    _jobs: Jobs = field(default_factory=Jobs)
    _nodes: Nodes = field(default_factory=Nodes)
    _mix: MixCounter = field(default_factory=MixCounter)
    _classes: EquivalenceClasses = field(default_factory=EquivalenceClasses)
    _arrays: NodeArrayCache = field(default_factory=NodeArrayCache)
    _release_arrays: ReleaseArrays = field(init=False)
    _profile_expiries: Expiries[ProfileKey] = field(default_factory=lambda: Expiries[ProfileKey]())
    _tenancy: TenancyArrays = field(default_factory=TenancyArrays)
    # UIDs of jobs that are gone and own pods.
    _gone: set[str] = field(default_factory=set[str])
    _starts: Starts = field(default_factory=Starts)

    def __post_init__(self) -> None:
        self.releases = ReleaseTimes(configuration=self.configuration)
        self._release_arrays = ReleaseArrays(self.releases)

    @classmethod
    def of(cls, snapshot: Snapshot) -> "SchedulerCache":
        """Returns an empty cache for the snapshot's configuration and sharing groups."""
        groups = SharingGroups.of(snapshot.queues)
        return cls(snapshot.configuration, snapshot.listening_since, groups)

    def holds_for(self, snapshot: Snapshot) -> bool:
        """Returns whether the cache may be used for this snapshot.

        A change of the configuration or of the sharing groups invalidates everything.
        """
        same = snapshot.configuration == self.configuration
        same = same and SharingGroups.of(snapshot.queues) == self.groups
        return same and snapshot.listening_since == self.listening_since

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Brings everything up to date.

        Raises ValueError for a snapshot for which the cache does not hold.
        """
        if not self.holds_for(snapshot):
            raise ValueError("the snapshot has another configuration, or other sharing groups")
        self.releases.begin(now)
        self._release_arrays.tidy(len(self.releases.jobs))
        self._nodes.take(snapshot)
        for before, after in self._jobs.take(snapshot):
            self._replace(before, after)
        for key, profile in self._jobs.changed_profiles.items():
            days = self.configuration.profile_unused_days
            self._profile_expiries.put(key, unused_until(profile, days) if profile else None)
        changed = self._jobs.changed
        for uid in self._jobs.reprofiled:
            self._count(self.entries[uid])
        self._renew_usage(changed)
        self.steps.to_step |= (
            self._jobs.measured | self._starts.take(snapshot)
        ) & self.entries.keys()
        self.steps.end_writes(self.entries, snapshot.writing)
        for name, gpus in self._nodes.renew(self.configuration, now).items():
            jobs = self.holders.on_node(name) if gpus is None else self.holders.on_gpus(name, gpus)
            self.steps.to_step |= jobs
        self._mix.renew(self.capacity, self._request)
        self._renew_waiting(changed)
        self.steps.wake(now)

    @property
    def entries(self) -> Mapping[str, JobEntry]:
        """All jobs by UID."""
        return self._jobs.entries

    @property
    def capacity(self) -> Capacity:
        return self._nodes.capacity

    @property
    def mix(self) -> WorkloadMix:
        return self._mix.mix

    def assumed(self) -> AssumedCapacity:
        """Returns the nodes as they are now, for the placements of one cycle."""
        views = self._arrays.renew(in_order(self.capacity))
        return AssumedCapacity.of(self.capacity, self.mix, views, self._arrays.memo)

    def tenancy_of(self, capacity: Capacity) -> Tenancy:
        """Returns the GPUs of these nodes with their tenants as columns, valid until the
        next call.
        """
        return self._tenancy.renew(capacity, self._release_arrays)

    def queues(self, snapshot: Snapshot) -> QuotaState:
        """Returns what the queues hold. The caller may change the result."""
        by_name = {queue.metadata.name: queue for queue in snapshot.queues}
        state, use = QuotaState(by_name), self.holders.use()
        for uid in self.holders.unsaid:
            job = self.holders.jobs[uid]
            if state.queue_of(job) != queue_of(job):
                use[queue_of(job)].count(job, job.status, -1)
        return QuotaState(by_name, use, tree=state.tree)

    def requirements(self, uid: str) -> JobRequirements:
        entry = self.entries[uid]
        if entry.requirements is None:
            entry.requirements = requirements_of(
                with_own_measurement(entry.job),
                entry.profile,
                self.configuration,
                entry.requests,
                self.groups.party(entry.job),
                entry.volumes,
            )
        return entry.requirements

    def inputs(self, uid: str) -> JobInputs:
        """Returns the inputs of the job's next step."""
        entry = self._jobs.entries[uid]
        status = entry.job.status
        sites = sites_of(status.placement, self._nodes.capacity)
        return JobInputs(
            job_pods=entry.job_pods,
            report=self._jobs.reports.get(uid),
            usage=self._jobs.usage.get((uid, status.attempt)),
            sites=sites,
            # An existing node may have no agent yet.
            lost_nodes=frozenset(
                [s.node for s in sites if s.facts is None and not self._nodes.has(s.node)]
            ),
            refused_pods=self._starts.refused(uid),
            perhaps_created=self._starts.perhaps_created(uid),
            listening_since=self.listening_since,
            yielding=self._jobs.yields.get(uid),
            parks=self._jobs.parking.get(uid),
            profile=entry.profile,
        )

    def expired_profiles(self, now: datetime) -> list[GPUProfile]:
        """Returns profiles to delete, in every cycle until they are gone.

        They do not cause a cycle of their own.
        """
        due = self._profile_expiries.due(now)
        found = (self._jobs.unused_profile(key) for key in due)
        return [profile for profile in found if profile is not None]

    def pods_of_gone(self) -> list[PodView]:
        """Returns pods whose controller owner is a GPUJob that does not exist."""
        return [pod for uid in self._gone for pod in self._jobs.orphans(uid)]

    def _replace(self, before: JobEntry | None, after: JobEntry | None) -> None:
        """Replaces the counted state of a job."""
        if before is not None and before.held:
            self.holders.remove(before.job)
        if after is not None:
            uid = after.job.metadata.uid
            self.releases.put(after.job, after.keys.runs)
            self.expiries.put(uid, delete_at(after.job))
            if after.held:
                self.holders.add(after.job)
            self._count(after)
        elif before is not None:
            uid = before.job.metadata.uid
            self.releases.drop(uid)
            self.expiries.drop(uid)
            self.steps.drop(uid)
            self._mix.drop(uid)
        else:
            return
        self._release_arrays.forget(uid)

    def _count(self, entry: JobEntry) -> None:
        uid = entry.job.metadata.uid
        if entry.job.finished:
            self._mix.drop(uid)
        else:
            self._mix.put(uid)

    def _request(self, uid: str) -> tuple[Demand, int]:
        """Returns what each worker of the job requests, and the number of workers."""
        workers = self.entries[uid].job.spec.workers
        return demand_of(self.requirements(uid), self.capacity, self.configuration), workers

    def _renew_usage(self, changed: set[str]) -> None:
        """Renews what the changed jobs hold."""
        for uid in sorted(changed):
            entry = self.entries.get(uid)
            self._hold_orphans(uid)
            if entry is None:
                self._nodes.hold(uid, NOTHING)
                continue
            self.steps.requeue(entry)
            party = self.groups.party(entry.job)
            self._nodes.hold(uid, usage_of(entry.job, entry.job_pods, entry.requests, party))

    def _hold_orphans(self, uid: str) -> None:
        """Renews what pods hold whose owner was a job of this UID and is gone."""
        owned = self._jobs.orphans(uid)
        if owned:
            self._gone.add(uid)
        elif uid not in self._gone:
            return
        else:
            self._gone.discard(uid)
        self._nodes.hold(f"owner {uid}", usage_of_orphans(owned))

    def _renew_waiting(self, changed: set[str]) -> None:
        """Renews the queues' entries of the changed jobs."""
        rules = order_rules(self.configuration)
        expected_anew = self.releases.take_changed(
            self.waiting.entries, length_relevant_from_seconds(rules)
        )
        for uid in sorted(changed.union(expected_anew)):
            entry = self.entries.get(uid)
            if entry is None or not entry.waits:
                self.waiting.drop(uid)
                continue
            pods = entry.job_pods.pods
            pending = Pending(
                entry.job,
                pods,
                equivalence_class=self._equivalence_class(entry),
                last_reason=last_reason_of(entry.job, pods, self.configuration),
                order_keys=order_keys_of(
                    entry.job,
                    self.configuration,
                    rules,
                    self.releases.expected_first_run_seconds(entry.job),
                ),
            )
            self.waiting.put(pending)

    def _equivalence_class(self, entry: JobEntry) -> int:
        spec, requirements = entry.job.spec, self.requirements(entry.job.metadata.uid)
        return self._classes.number((requirements.scheduling_signature, spec.queue, spec.priority))
