"""What planning remembers from one cycle to the next: derived figures of what did not change.

A large cluster changes little from cycle to cycle. The memory knows every object by identity (nouns
are immutable, and an observed object is replaced only when it changed), and derives anew only what
rests on objects that are not the same. Dropping it changes no plan; a test holds it to that.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.backfill.release_times import ReleaseTimes
from gpujob_operator.decide.backfill.tenancy import Tenancy
from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.equivalence_classes import EquivalenceClasses
from gpujob_operator.decide.cache.holders import Holders
from gpujob_operator.decide.cache.index import Groups
from gpujob_operator.decide.cache.job_entry import Diffs, JobEntry, ProfileKey, spec_version
from gpujob_operator.decide.cache.mix_counts import MixCounter
from gpujob_operator.decide.cache.node_arrays import NodeArrayCache
from gpujob_operator.decide.cache.nodes import Nodes
from gpujob_operator.decide.cache.pending_queues import PendingQueues
from gpujob_operator.decide.cache.pods import Pods
from gpujob_operator.decide.cache.release_arrays import ReleaseArrays
from gpujob_operator.decide.cache.tenancy import TenancyArrays
from gpujob_operator.decide.capacity.cluster import Capacity, holds_gpus
from gpujob_operator.decide.capacity.sites import sites_of
from gpujob_operator.decide.capacity.usage import NOTHING, usage_of, usage_of_orphans
from gpujob_operator.decide.lifecycle.inputs import JobInputs
from gpujob_operator.decide.measurement.profile import differ_in_paces, profile_name
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.pod_template import host_requests
from gpujob_operator.decide.model.snapshot import GPUUsage, PodView, ReceivedReport, Snapshot
from gpujob_operator.decide.model.workers import JobName, crew_of
from gpujob_operator.decide.packing.demand import WorkloadMix
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.node_views import in_order
from gpujob_operator.decide.placement.requirements import JobRequirements, demand_of, needs_of
from gpujob_operator.decide.queue.pending import Pending, last_reason_of, order_keys_of
from gpujob_operator.decide.queue.quota import QuotaState

_Usage = Mapping[tuple[str, int], GPUUsage]


@dataclass(slots=True)
class SchedulerCache:
    """Give the same one to every cycle of one operator. `update` first, then read."""

    known: dict[str, JobEntry] = field(default_factory=dict[str, JobEntry])
    releases: ReleaseTimes = field(default_factory=ReleaseTimes)
    waiting: PendingQueues = field(default_factory=PendingQueues)
    # Jobs that hold GPUs.
    holders: Holders = field(default_factory=Holders)
    # Jobs whose step is to be decided in this cycle; `settle` takes one out.
    to_step: set[str] = field(default_factory=set[str])
    reports: dict[str, ReceivedReport] = field(default_factory=dict[str, ReceivedReport])
    # The first moment of the deadlines of jobs that rest.
    next_at: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    # UIDs of jobs that are gone and own pods.
    gone: set[str] = field(default_factory=set[str])
    _arrays: NodeArrayCache = field(default_factory=NodeArrayCache)
    _release_arrays: ReleaseArrays = field(init=False)
    _tenancy: TenancyArrays = field(default_factory=TenancyArrays)
    mix: WorkloadMix = field(default_factory=WorkloadMix)
    usage: _Usage = field(default_factory=dict[tuple[str, int], GPUUsage])
    _configuration: Configuration = field(default_factory=Configuration)
    _listening_since: datetime | None = None
    _nodes: Nodes = field(default_factory=Nodes)
    _diffs: Diffs = field(default_factory=Diffs)
    _pods: Pods = field(default_factory=Pods)
    # Jobs by namespace and name.
    _named: Groups[JobName] = field(default_factory=lambda: Groups[JobName]())
    _profiles: dict[ProfileKey, GPUProfile] = field(default_factory=dict[ProfileKey, GPUProfile])
    # Jobs by the profile that they look at, and by the nodes that they are on.
    _users: Groups[ProfileKey] = field(default_factory=lambda: Groups[ProfileKey]())
    _jobs_on: Groups[str] = field(default_factory=lambda: Groups[str]())
    _counts: MixCounter = field(default_factory=MixCounter)
    # Jobs that are to be counted in the mix.
    _unmixed: set[str] = field(default_factory=set[str])
    _quiet_until: Deadlines[str] = field(default_factory=lambda: Deadlines[str]())
    _classes: EquivalenceClasses = field(default_factory=EquivalenceClasses)
    # Jobs of which anything changed with this snapshot.
    _changed: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self._release_arrays = ReleaseArrays(self.releases)

    def update(self, snapshot: Snapshot, now: datetime) -> None:
        """Brings everything up to date with the snapshot."""
        self._forget_if_foreign(snapshot)
        self.releases.begin(now)
        self._release_arrays.tidy(len(self.releases.jobs))
        self._changed = set()
        self._find_nodes_again(self._nodes.take(snapshot))
        self._take_jobs(snapshot.jobs)
        self._take_pods(snapshot.pods)
        self._take_profiles(snapshot.profiles)
        self._take_readings(snapshot)
        self._renew_usage()
        for name, gpus in self._nodes.renew(snapshot.configuration, now).items():
            jobs = self._jobs_on.of(name)
            self.to_step |= jobs if gpus is None else self._on_gpus(jobs, gpus)
        self._renew_mix()
        self._renew_waiting()
        self.to_step.update(self._quiet_until.due(now))

    def assumed(self) -> AssumedCapacity:
        """The nodes as they are now, for the placements of one cycle."""
        capacity = self.capacity
        return AssumedCapacity.of(
            capacity, self.mix, self._arrays.renew(in_order(capacity)), self._arrays.memo
        )

    def tenancy_of(self, capacity: Capacity) -> Tenancy:
        """The GPUs of these nodes with their tenants as columns, until it is asked for again."""
        return self._tenancy.renew(capacity, self._release_arrays)

    @property
    def capacity(self) -> Capacity:
        return self._nodes.capacity

    def queues(self, snapshot: Snapshot) -> QuotaState:
        """What the queues hold, free to be changed."""
        by_name = {queue.metadata.name: queue for queue in snapshot.queues}
        return QuotaState.of(by_name, self.holders.use())

    def needs(self, uid: str) -> JobRequirements:
        known = self.known[uid]
        if known.needs is None:
            known.needs = needs_of(known.job, known.profile, self._configuration, known.requests)
        return known.needs

    def inputs(self, uid: str) -> JobInputs:
        """What the next step of the job is decided from."""
        known = self.known[uid]
        job = known.job
        return JobInputs(
            pods=known.pods,
            in_the_way=known.crew.in_the_way,
            report=self.reports.get(uid),
            usage=self.usage.get((uid, job.status.attempt)),
            sites=sites_of(job.status.placement, self.capacity),
            lost_nodes=self._lost_nodes(job),
            listening_since=self._listening_since,
            profile=known.profile,
        )

    def _lost_nodes(self, job: GPUJob) -> frozenset[str]:
        """Nodes that the job names and that are there no more."""
        placement = job.status.placement
        workers = placement.workers if placement is not None else ()
        return frozenset(worker.node for worker in workers if not self._nodes.has(worker.node))

    def pods_of_gone(self) -> list[PodView]:
        """Pods whose controller owner is a GPUJob that is not there."""
        return [pod for uid in self.gone for pod in self._pods.owned(uid)]

    def settle(
        self, uid: str, step: NextStep, inputs: JobInputs, until: datetime, next_at: datetime | None
    ) -> None:
        """Nothing follows from the same until then; `next_at` is the job's own deadline."""
        known = self.known[uid]
        known.inputs, known.step, known.quiet_until = inputs, step, until
        self.to_step.discard(uid)
        self._quiet_until.put(uid, until)
        if next_at is not None:
            self.next_at.put(uid, next_at)
        else:
            self.next_at.drop((uid,))

    def requeue(self, uid: str) -> None:
        """The job's next step is decided anew, in this cycle and those to come."""
        known = self.known[uid]
        known.inputs = known.step = known.quiet_until = None
        self.to_step.add(uid)
        self._quiet_until.drop((uid,))
        self.next_at.drop((uid,))

    # -- what there is

    def _forget_if_foreign(self, snapshot: Snapshot) -> None:
        """Another configuration changes everything."""
        same = snapshot.configuration == self._configuration
        if not same or snapshot.listening_since != self._listening_since:
            fresh = SchedulerCache()
            for name in self.__slots__:
                setattr(self, name, getattr(fresh, name))
        self._configuration = snapshot.configuration
        self._listening_since = snapshot.listening_since

    def _find_nodes_again(self, moved: set[str]) -> None:
        """GPUs came or went: jobs on them are on other nodes now."""
        if not moved:
            return
        for uid in self._on_gpus(self.holders.jobs, moved):
            known = self.known[uid]
            self._put_on(known, self._nodes.of_job(known.job))
            self._changed.add(uid)

    def _on_gpus(self, uids: Iterable[str], gpus: Set[str]) -> set[str]:
        """Those of the jobs that have any of these GPUs."""
        found = set[str]()
        for uid in uids:
            placement = self.known[uid].job.status.placement
            for worker in placement.workers if placement is not None else ():
                if not gpus.isdisjoint(worker.gpus):
                    found.add(uid)
        return found

    def _put_on(self, known: JobEntry, nodes: frozenset[str]) -> None:
        for name in known.nodes - nodes:
            self._jobs_on.discard(name, known.job.metadata.uid)
        for name in nodes:
            self._jobs_on.add(name, known.job.metadata.uid)
        known.nodes = nodes

    def _take_pods(self, pods: tuple[PodView, ...]) -> None:
        names, owners = self._pods.take(pods)
        self._changed |= owners
        for name in names:
            self._changed |= self._named.of(name)

    def _take_jobs(self, jobs: tuple[GPUJob, ...]) -> None:
        new, gone = self._diffs.jobs.take(jobs)
        for job in new:
            self._put_job(job)
        for job in gone:
            known = self.known.get(job.metadata.uid)
            if known is not None and known.job is job:
                self._drop_job(known)

    def _drop_job(self, known: JobEntry) -> None:
        uid = known.job.metadata.uid
        self._uncount(known)
        self._put_on(known, frozenset())
        self._quiet_until.drop((uid,))
        self.next_at.drop((uid,))
        self.to_step.discard(uid)
        self._users.discard(known.profile_key, uid)
        self._named.discard(_name_of(known.job), uid)
        self.releases.drop(uid)
        self._release_arrays.forget(uid)
        del self.known[uid]
        self._changed.add(uid)

    def _put_job(self, job: GPUJob) -> None:
        uid = job.metadata.uid
        before = self.known.get(uid)
        if before is not None and spec_version(before.job) == spec_version(job):
            requests, key = before.requests, before.profile_key
        else:
            requests, key = host_requests(job), (job.metadata.namespace, profile_name(job))
        nodes: frozenset[str] = frozenset()
        if before is not None:
            self._uncount(before)
            self._users.discard(before.profile_key, uid)
            nodes = before.nodes
        known = JobEntry(
            job, requests, key, holds_gpus(job), nodes, profile=self._profiles.get(key)
        )
        self.known[uid] = known
        self.releases.put(job, key)
        self._named.add(_name_of(job), uid)
        self._release_arrays.forget(uid)
        self._users.add(key, uid)
        self._put_on(known, self._nodes.of_job(job))
        self._count(known)
        self._changed.add(uid)

    def _count(self, known: JobEntry) -> None:
        if not known.job.finished:
            self._unmixed.add(known.job.metadata.uid)
        if known.held:
            self.holders.add(known.job)

    def _uncount(self, known: JobEntry) -> None:
        if known.held:
            self.holders.remove(known.job)
        self._unmix(known)
        self._unmixed.discard(known.job.metadata.uid)

    def _take_profiles(self, profiles: tuple[GPUProfile, ...]) -> None:
        new, gone = self._diffs.profiles.take(profiles)
        changed = {(one.metadata.namespace, one.metadata.name): one for one in new}
        for one in gone:
            key = (one.metadata.namespace, one.metadata.name)
            if self._profiles.get(key) is one and key not in changed:
                del self._profiles[key]
                self._renew_users(key, one)
        for key, profile in changed.items():
            before = self._profiles.get(key)
            self._profiles[key] = profile
            self._renew_users(key, before)

    def _renew_users(self, key: ProfileKey, before: GPUProfile | None) -> None:
        """The jobs that look at this profile, which was `before`."""
        after = self._profiles.get(key)
        only_paces = before is not None and after is not None and differ_in_paces(before, after)
        for uid in sorted(self._users.of(key)):
            known = self.known[uid]
            known.profile = after
            if only_paces:
                # Recorded slowdowns only increase, so a job with nothing to add before still has
                # nothing to add.
                continue
            known.needs = None
            self._unmix(known)
            if not known.job.finished:
                self._unmixed.add(uid)
            self._changed.add(uid)

    def _take_readings(self, snapshot: Snapshot) -> None:
        """Reports and measured use: a job of which there is something else is looked at."""
        new, gone = self._diffs.reports.take(snapshot.reports)
        for one in gone:
            if self.reports.get(one.job_uid) is one:
                del self.reports[one.job_uid]
                self.to_step.add(one.job_uid)
        for one in new:
            if one.rank == 0:
                self.reports[one.job_uid] = one
                self.to_step.add(one.job_uid)
        before, after = self.usage, snapshot.usage
        if before is not after:
            self.to_step.update(
                key[0] for key, used in after.items() if before.get(key) is not used
            )
            self.to_step.update(key[0] for key in before.keys() - after.keys())
            self.usage = after

    # -- what follows

    def _renew_usage(self) -> None:
        """What the changed jobs hold now."""
        for uid in sorted(self._changed):
            known = self.known.get(uid)
            owned = self._pods.owned(uid) if known is None else ()
            self.gone.discard(uid)
            if owned:
                self.gone.add(uid)
            self._nodes.hold(f"owner {uid}", usage_of_orphans(owned))
            if known is None:
                self._nodes.hold(uid, NOTHING)
                continue
            known.crew = crew_of(known.job, self._pods.namesakes(known.job))
            self.requeue(uid)
            self._nodes.hold(uid, usage_of(known.job, known.pods, known.requests))
        self.to_step = {uid for uid in self.to_step if uid in self.known}

    def _renew_mix(self) -> None:
        if self._counts.start_again(self.capacity):
            for uid, known in self.known.items():
                known.demand = None
                if not known.job.finished:
                    self._unmixed.add(uid)
        for uid in sorted(self._unmixed):
            known = self.known[uid]
            known.demand = demand_of(self.needs(uid), self.capacity, self._configuration)
            self._counts.add(known.demand, known.job.spec.workers)
        self._unmixed.clear()
        self.mix = self._counts.mix(self.mix)

    def _unmix(self, known: JobEntry) -> None:
        """Takes the job's request out of the mix."""
        if known.demand is not None:
            self._counts.remove(known.demand, known.job.spec.workers)
            known.demand = None

    def _renew_waiting(self) -> None:
        """The line's entries of the changed jobs."""
        expected_anew = self.releases.take_changed(self.waiting.entries)
        for uid in sorted(self._changed.union(expected_anew)):
            known = self.known.get(uid)
            if known is None or not known.waits:
                self.waiting.drop(uid)
                continue
            entry = Pending(
                known.job,
                known.pods,
                equivalence_class=self._equivalence_class(known),
                last_reason=last_reason_of(known.job, known.pods, self._configuration),
                order_keys=order_keys_of(
                    known.job,
                    self._configuration,
                    self.releases.expected_first_run_seconds(known.job),
                ),
            )
            self.waiting.put(entry)

    def _equivalence_class(self, known: JobEntry) -> int:
        spec, needs = known.job.spec, self.needs(known.job.metadata.uid)
        return self._classes.number((needs.scheduling_signature, spec.queue, spec.priority))


def _name_of(job: GPUJob) -> JobName:
    return job.metadata.namespace, job.metadata.name
