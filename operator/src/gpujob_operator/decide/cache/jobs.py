"""Observed jobs by UID, with their pods, profiles and reports, and which of them changed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.groups import Groups, ListDiff
from gpujob_operator.decide.lifecycle.inputs import JobInputs, RefusedPods, refused_by_job
from gpujob_operator.decide.measurement.profile import (
    WorkloadKeys,
    attempt_keys,
    differ_in_paces,
    workload_keys,
)
from gpujob_operator.decide.model.checkpoint_claim import ClaimTemplate
from gpujob_operator.decide.model.held_gpus import holds_gpus
from gpujob_operator.decide.model.plan import NextStep
from gpujob_operator.decide.model.pod_requests import PodRequests
from gpujob_operator.decide.model.pod_template import claims, host_requests
from gpujob_operator.decide.model.snapshot import (
    BoundVolume,
    GPUUsage,
    Parking,
    PerhapsCreated,
    PodView,
    ReceivedReport,
    RefusedPod,
    Snapshot,
    Yielding,
)
from gpujob_operator.decide.model.workers import JobName, JobPods, job_name_of, job_pods_of
from gpujob_operator.decide.placement.requirements import JobRequirements

UsageByAttempt = Mapping[tuple[str, int], GPUUsage]
ProfileKey = tuple[str, str]
# A namespace and a claim's name.
ClaimKey = tuple[str, str]
_Version = tuple[int, int]


@dataclass(slots=True)
class Volumes:
    """The volumes that claims are bound to, by claim. `take` the lists in order."""

    _by_claim: dict[ClaimKey, dict[str, BoundVolume]] = field(
        default_factory=dict[ClaimKey, dict[str, BoundVolume]]
    )
    _diff: ListDiff[BoundVolume] = field(default_factory=lambda: ListDiff[BoundVolume]())

    def take(self, volumes: tuple[BoundVolume, ...]) -> set[ClaimKey]:
        """Takes the observed volumes. Returns the claims whose volumes came, changed or went."""
        new, gone = self._diff.take(volumes)
        for one in gone:
            of_claim = self._by_claim.get(_claim_of(one), {})
            if of_claim.get(one.name) is one:
                del of_claim[one.name]
            if not of_claim:
                self._by_claim.pop(_claim_of(one), None)
        for one in new:
            self._by_claim.setdefault(_claim_of(one), {})[one.name] = one
        return {_claim_of(one) for one in (*new, *gone)}

    def of(self, claims: Iterable[ClaimKey]) -> tuple[BoundVolume, ...]:
        """Returns the volumes of these claims, by claim and name."""
        found = (self._by_claim.get(claim, {}) for claim in claims)
        return tuple(of_claim[name] for of_claim in found for name in sorted(of_claim))


def _claim_of(volume: BoundVolume) -> ClaimKey:
    return volume.namespace, volume.claim


@dataclass(slots=True)
class JobEntry:
    """One job with what is derived from it alone. The other fields are set later."""

    job: GPUJob
    requests: PodRequests
    # Keys of the spec.
    spec_keys: WorkloadKeys
    # Keys of the job's attempt, or of the spec without an attempt.
    keys: WorkloadKeys
    held: bool
    claims: tuple[ClaimKey, ...] = ()
    job_pods: JobPods = field(default_factory=JobPods)
    profile: GPUProfile | None = None
    # The volumes that its claims are bound to.
    volumes: tuple[BoundVolume, ...] = ()
    # Computed on first use.
    requirements: JobRequirements | None = None
    # The last decision, which was to write nothing, and the time until which it holds.
    inputs: JobInputs | None = None
    step: NextStep | None = None
    quiet_until: datetime | None = None

    @property
    def profile_key(self) -> ProfileKey:
        return self.keys.profile

    @property
    def waits(self) -> bool:
        """True for a job that admission looks at."""
        job = self.job
        return not self.held and job.metadata.deletion_timestamp is None and not job.finished


# A job before and after a change. None: it did not exist, or is gone.
Replacement = tuple[JobEntry | None, JobEntry | None]


def spec_version(job: GPUJob) -> _Version:
    """A spec changes with its generation. Without one (0), every object counts as a new version."""
    generation = job.metadata.generation
    return (generation, 0) if generation else (0, id(job))


@dataclass(slots=True)
class Pods:
    """All pods that could be workers, kept from snapshot to snapshot.

    They are indexed by the job whose name they have and by their controller owner.
    """

    _diff: ListDiff[PodView] = field(default_factory=lambda: ListDiff[PodView]())
    _by_uid: dict[str, PodView] = field(default_factory=dict[str, PodView])
    _namesakes: dict[JobName, dict[str, PodView]] = field(
        default_factory=dict[JobName, dict[str, PodView]]
    )
    _owned: dict[str, dict[str, PodView]] = field(default_factory=dict[str, dict[str, PodView]])

    def take(self, pods: tuple[PodView, ...]) -> tuple[set[JobName], set[str]]:
        """Takes the observed pods.

        Returns the names of jobs and the UIDs of owners with a pod that came, went or changed.
        """
        new, gone = self._diff.take(pods)
        names, owners = set[JobName](), set[str]()
        for pod in new:
            self._drop(self._by_uid.get(pod.uid), names, owners)
            self._put(pod, names, owners)
        for pod in gone:
            if self._by_uid.get(pod.uid) is pod:
                self._drop(pod, names, owners)
        return names, owners

    def namesakes(self, job: GPUJob) -> Iterable[PodView]:
        name = (job.metadata.namespace, job.metadata.name)
        return self._namesakes.get(name, {}).values()

    def owned(self, job_uid: str) -> tuple[PodView, ...]:
        """Returns all pods that have this GPUJob as their controller owner."""
        pods = self._owned.get(job_uid, {}).values()
        return tuple(sorted(pods, key=lambda p: (p.attempt, p.rank, p.uid)))

    def _put(self, pod: PodView, names: set[JobName], owners: set[str]) -> None:
        self._by_uid[pod.uid] = pod
        name = job_name_of(pod)
        if name is not None:
            self._namesakes.setdefault(name, {})[pod.uid] = pod
            names.add(name)
            if pod.job_uid:
                self._owned.setdefault(pod.job_uid, {})[pod.uid] = pod
                owners.add(pod.job_uid)

    def _drop(self, pod: PodView | None, names: set[JobName], owners: set[str]) -> None:
        if pod is None:
            return
        del self._by_uid[pod.uid]
        name = job_name_of(pod)
        if name is None:
            return
        _take_out(self._namesakes, name, pod.uid)
        names.add(name)
        if pod.job_uid:
            _take_out(self._owned, pod.job_uid, pod.uid)
            owners.add(pod.job_uid)


def _take_out(groups: dict[Any, dict[str, PodView]], key: object, uid: str) -> None:
    """Removes the pod. Empty groups are removed, because keys come and go."""
    group = groups[key]
    del group[uid]
    if not group:
        del groups[key]


@dataclass(slots=True)
class Jobs:
    """The observed jobs. `take` the snapshots in order. The sets belong to the last one."""

    entries: dict[str, JobEntry] = field(default_factory=dict[str, JobEntry])
    reports: dict[str, ReceivedReport] = field(default_factory=dict[str, ReceivedReport])
    usage: UsageByAttempt = field(default_factory=dict[tuple[str, int], GPUUsage])
    yields: Mapping[str, Yielding] = field(default_factory=dict[str, Yielding])
    parking: Mapping[str, bool] = field(default_factory=dict[str, bool])
    # Jobs with any change except reports and measured use, and owners of changed pods.
    changed: set[str] = field(default_factory=set[str])
    # The subset whose profile changed in a way that matters to placement.
    reprofiled: set[str] = field(default_factory=set[str])
    # Profiles that came, changed or went (None) with the last `take`.
    changed_profiles: dict[ProfileKey, GPUProfile | None] = field(
        default_factory=dict[ProfileKey, GPUProfile | None]
    )
    # Jobs with a new report, new measured use, another share of time to yield, or another request
    # to park.
    measured: set[str] = field(default_factory=set[str])
    _pods: Pods = field(default_factory=Pods)
    _profiles: dict[ProfileKey, GPUProfile] = field(default_factory=dict[ProfileKey, GPUProfile])
    _by_name: Groups[JobName] = field(default_factory=lambda: Groups[JobName]())
    _volumes: Volumes = field(default_factory=Volumes)
    _by_claim: Groups[ClaimKey] = field(default_factory=lambda: Groups[ClaimKey]())
    # From the configuration. A new configuration creates a new cache.
    _claim_template: ClaimTemplate | None = None
    _by_profile: Groups[ProfileKey] = field(default_factory=lambda: Groups[ProfileKey]())
    _job_diff: ListDiff[GPUJob] = field(default_factory=lambda: ListDiff[GPUJob]())
    _profile_diff: ListDiff[GPUProfile] = field(default_factory=lambda: ListDiff[GPUProfile]())
    _report_diff: ListDiff[ReceivedReport] = field(
        default_factory=lambda: ListDiff[ReceivedReport]()
    )

    def take(self, snapshot: Snapshot) -> list[Replacement]:
        """Takes the snapshot. Returns the jobs that came, changed or went."""
        self.changed, self.reprofiled, self.measured = set(), set(), set()
        self._claim_template = snapshot.configuration.checkpoint_claim_template
        replaced = list(self._take_jobs(snapshot.jobs))
        names, owners = self._pods.take(snapshot.pods)
        self.changed |= owners
        for name in names:
            self.changed |= self._by_name.of(name)
        self._take_profiles(snapshot.profiles)
        self._take_volumes(snapshot.volumes)
        self._take_reports(snapshot.reports)
        self._take_usage(snapshot.usage)
        self._take_yields(snapshot.yields)
        self._take_parking(snapshot.parking)
        for uid in self.changed & self.entries.keys():
            entry = self.entries[uid]
            entry.job_pods = job_pods_of(entry.job, self._pods.namesakes(entry.job))
        return replaced

    def unused_profile(self, key: ProfileKey) -> GPUProfile | None:
        """Returns the profile, unless an unfinished job may use it."""
        users = (self.entries[uid].job for uid in self._by_profile.of(key))
        return self._profiles.get(key) if all(job.finished for job in users) else None

    def orphans(self, uid: str) -> tuple[PodView, ...]:
        """Returns pods whose controller owner is the job of this UID, if there is no such job."""
        return self._pods.owned(uid) if uid not in self.entries else ()

    def _take_jobs(self, jobs: tuple[GPUJob, ...]) -> Iterator[Replacement]:
        new, gone = self._job_diff.take(jobs)
        for job in new:
            before = self.entries.get(job.metadata.uid)
            yield before, self._put(job, before)
        for job in gone:
            entry = self.entries.get(job.metadata.uid)
            if entry is not None and entry.job is job:
                self._drop(entry)
                yield entry, None

    def _put(self, job: GPUJob, before: JobEntry | None) -> JobEntry:
        uid = job.metadata.uid
        if before is not None and spec_version(before.job) == spec_version(job):
            requests, spec_keys, mounts = before.requests, before.spec_keys, before.claims
        else:
            requests, spec_keys = host_requests(job), workload_keys(job)
            names = claims(job, self._claim_template)
            mounts = tuple((job.metadata.namespace, claim) for claim in names)
        if before is not None:
            self._leave_groups(before)
        keys = attempt_keys(job, spec_keys)
        entry = JobEntry(
            job,
            requests,
            spec_keys,
            keys,
            holds_gpus(job),
            mounts,
            profile=self._profiles.get(keys.profile),
            volumes=self._volumes.of(mounts),
        )
        self.entries[uid] = entry
        self._by_name.add(_name_of(job), uid)
        self._by_profile.add(keys.profile, uid)
        for claim in mounts:
            self._by_claim.add(claim, uid)
        self.changed.add(uid)
        return entry

    def _leave_groups(self, entry: JobEntry) -> None:
        uid = entry.job.metadata.uid
        self._by_profile.discard(entry.profile_key, uid)
        for claim in entry.claims:
            self._by_claim.discard(claim, uid)

    def _drop(self, entry: JobEntry) -> None:
        uid = entry.job.metadata.uid
        self._leave_groups(entry)
        self._by_name.discard(_name_of(entry.job), uid)
        del self.entries[uid]
        self.changed.add(uid)

    def _take_profiles(self, profiles: tuple[GPUProfile, ...]) -> None:
        new, gone = self._profile_diff.take(profiles)
        self.changed_profiles = {}
        changed = {(one.metadata.namespace, one.metadata.name): one for one in new}
        for one in gone:
            key = (one.metadata.namespace, one.metadata.name)
            if self._profiles.get(key) is one and key not in changed:
                del self._profiles[key]
                self.changed_profiles[key] = None
                self._renew_users(key, one)
        for key, profile in changed.items():
            before = self._profiles.get(key)
            self._profiles[key] = self.changed_profiles[key] = profile
            self._renew_users(key, before)

    def _renew_users(self, key: ProfileKey, before: GPUProfile | None) -> None:
        """Gives the profile, which was `before`, to the jobs of its workload."""
        after = self._profiles.get(key)
        only_paces = before is not None and after is not None and differ_in_paces(before, after)
        for uid in self._by_profile.of(key):
            entry = self.entries[uid]
            entry.profile = after
            if only_paces:
                # Recorded slowdowns only increase, so a job that had nothing to add still has
                # nothing to add.
                continue
            entry.requirements = None
            self.reprofiled.add(uid)
            self.changed.add(uid)

    def _take_volumes(self, volumes: tuple[BoundVolume, ...]) -> None:
        for claim in self._volumes.take(volumes):
            for uid in self._by_claim.of(claim):
                entry = self.entries[uid]
                entry.volumes = self._volumes.of(entry.claims)
                entry.requirements = None
                self.changed.add(uid)

    def _take_reports(self, reports: tuple[ReceivedReport, ...]) -> None:
        new, gone = self._report_diff.take(reports)
        for one in gone:
            if self.reports.get(one.job_uid) is one:
                del self.reports[one.job_uid]
                self.measured.add(one.job_uid)
        for one in new:
            if one.rank == 0:
                self.reports[one.job_uid] = one
                self.measured.add(one.job_uid)

    def _take_usage(self, usage: UsageByAttempt) -> None:
        before, self.usage = self.usage, usage
        if before is not usage:
            different = (key for key, used in usage.items() if before.get(key) is not used)
            self.measured.update(uid for uid, _ in different)
            self.measured.update(uid for uid, _ in before.keys() - usage.keys())

    def _take_yields(self, yields: tuple[Yielding, ...]) -> None:
        before, self.yields = self.yields, {one.job_uid: one for one in yields}
        self.measured |= _changed(before, self.yields)

    def _take_parking(self, parking: tuple[Parking, ...]) -> None:
        before, self.parking = self.parking, {one.job_uid: one.parks for one in parking}
        self.measured |= _changed(before, self.parking)


def _name_of(job: GPUJob) -> JobName:
    return job.metadata.namespace, job.metadata.name


def delete_at(job: GPUJob) -> datetime | None:
    """Returns when the job is to be deleted (`spec.ttlSecondsAfterFinished`), or None.

    None means never, or that its deletion was already requested.
    """
    seconds, finished_at = job.spec.ttl_seconds_after_finished, job.status.finished_at
    if seconds is None or finished_at is None or not job.finished:
        return None
    if job.metadata.deletion_timestamp is not None:
        return None
    return finished_at + timedelta(seconds=seconds)


@dataclass(slots=True)
class Starts:
    """Refusals and creations of pods, by the job's UID, as of the last snapshot."""

    _refused: RefusedPods = field(default_factory=lambda: refused_by_job(()))
    _perhaps_created: Mapping[str, PerhapsCreated] = field(
        default_factory=dict[str, PerhapsCreated]
    )
    _recorded: frozenset[str] = frozenset()

    def take(self, snapshot: Snapshot) -> set[str]:
        """Takes the snapshot. Returns the jobs with any change."""
        refused = refused_by_job(snapshot.refused_pods)
        perhaps_created = {one.job_uid: one for one in snapshot.perhaps_created}
        recorded = frozenset(snapshot.recorded)
        changed = _changed(self._refused, refused) | set(recorded ^ self._recorded)
        changed |= _changed(self._perhaps_created, perhaps_created)
        self._refused, self._perhaps_created = refused, perhaps_created
        self._recorded = recorded
        return changed

    def refused(self, uid: str) -> tuple[RefusedPod, ...]:
        return self._refused.get(uid, ())

    def perhaps_created(self, uid: str) -> PerhapsCreated | None:
        return self._perhaps_created.get(uid)


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    return {uid for uid in before.keys() | after.keys() if before.get(uid) != after.get(uid)}
