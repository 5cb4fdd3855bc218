"""GPUProfile: looks up what earlier runs of a workload measured, and saves new measurements."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from gpujob_api.copies import changed
from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase, ReservationSource
from gpujob_api.gpuprofile import (
    GPUProfile,
    GPUProfileSpec,
    GPUProfileStatus,
    ProfileEntry,
    SharedPace,
)
from gpujob_api.meta import Metadata
from gpujob_api.settings import OptimizeMode, TunedSettings
from gpujob_operator.decide.capacity.calibration import with_pace
from gpujob_operator.decide.measurement.fingerprint import workload_of
from gpujob_operator.decide.measurement.reservation import UTILIZATION_CHANGE_PERCENT
from gpujob_operator.decide.model.snapshot import GPUUsage

# Maximum number of entries of one workload. There is one for each GPU model and torch version,
# newest first.
ENTRIES_MAX = 32
_PREFIX = "workload-"
# Readings of five minutes, at one in two seconds.
SAMPLES_OF_MINUTES = 150
# A workload that measures nothing new renews its profile this often, because profiles expire.
RENEWED_AFTER = timedelta(days=1)


class WorkloadKeys(NamedTuple):
    """Namespaces and names that identify other runs of a job's workload."""

    profile: tuple[str, str]
    # Runs that are expected to take equally long: the profile's name and what in the command
    # decides the run's length.
    runs: tuple[str, str]


def workload_keys(job: GPUJob) -> WorkloadKeys:
    """Returns the keys of the spec, which the next attempt runs with."""
    workload = workload_of(job.spec)
    return _keys(job.metadata.namespace, _PREFIX + workload.fingerprint, workload.run_length)


def attempt_keys(job: GPUJob, keys: WorkloadKeys) -> WorkloadKeys:
    """Returns the keys of the job's attempt, or `keys`, which are the spec's, without an attempt.

    The spec may have been edited since the attempt was started.
    """
    name = job.status.profile
    if job.status.placement is None or name is None or name == keys.profile[1]:
        return keys
    return _keys(job.metadata.namespace, name, workload_of(job.spec).run_length)


def profile_name(job: GPUJob) -> str:
    return workload_keys(job).profile[1]


def attempt_mode(job: GPUJob) -> OptimizeMode:
    """Returns the `optimize.mode` of the job's attempt.

    The attempt's profile belongs to the spec with which the attempt was started. Returns the mode
    of the spec if the attempt's mode is unknown.
    """
    name = job.status.profile
    if job.status.placement is None or name is None or name == profile_name(job):
        return job.spec.optimize.mode
    for mode in OptimizeMode:
        optimize = replace(job.spec.optimize, mode=mode)
        if profile_name(replace(job, spec=replace(job.spec, optimize=optimize))) == name:
            return mode
    return job.spec.optimize.mode


def with_own_measurement(job: GPUJob) -> GPUJob:
    """Returns the job as its next attempt finds it.

    Measurements of another workload, made before the spec was edited, are removed. A status of an
    earlier release names no profile.
    """
    status = job.status
    if status.measurement is None or status.profile in (None, profile_name(job)):
        return job
    return replace(job, status=changed(status, measurement=None))


def with_profile_of_spec(job: GPUJob) -> GPUJob:
    """Returns a starting job without pods, updated to the present spec, from which its pods are
    created.
    """
    name = profile_name(job)
    if job.status.profile in (None, name):
        return job
    status = changed(with_own_measurement(job).status, profile=name)
    return replace(job, status=status)


def _keys(namespace: str, name: str, length: str) -> WorkloadKeys:
    return WorkloadKeys((namespace, name), (namespace, f"{name} {length}" if length else name))


def unused_until(profile: GPUProfile, days: int) -> datetime | None:
    """Returns when a profile that no job uses is deleted. None: never, as with 0 `days`."""
    moment = last_measured_at(profile)
    return moment + timedelta(days=days) if moment is not None and days else None


def last_measured_at(profile: GPUProfile) -> datetime | None:
    """Returns when a job of the workload was last measured, or when the profile was created."""
    moments = [entry.updated_at for entry in profile.status.entries]
    return max(moments, default=profile.metadata.creation_timestamp)


def differ_in_paces(before: GPUProfile, after: GPUProfile) -> bool:
    """Returns whether only the measured slowdowns differ."""
    return _without_paces(before) == _without_paces(after)


def _without_paces(profile: GPUProfile) -> tuple[object, ...]:
    entries = profile.status.entries
    still = tuple(replace(e, shared=(), updated_at=entries[0].updated_at) for e in entries)
    return profile.spec, still


def samples_for_profile(usage: GPUUsage) -> int:
    """Returns the readings that an entry counts: none of a start-up. A run beside others, or one
    that yielded, shows less than the job would use alone, so it is not one that was observed for
    minutes.
    """
    if usage.is_of_start_up:
        return 0
    return usage.samples if usage.may_fall else min(usage.samples, SAMPLES_OF_MINUTES - 1)


def new_entries(
    status: GPUJobStatus,
    profile: GPUProfile | None,
    now: datetime,
    *,
    alone: bool = False,
    serves: bool = False,
    pace: SharedPace | None = None,
    samples: int | None = None,
) -> tuple[ProfileEntry, ...] | None:
    """Returns the profile's entries with the measurement of a job of this status, or None.

    None means that the measurement adds nothing. `alone` means that the job has its GPUs to itself.
    Otherwise `pace` is its measurement next to co-tenants, if known. `serves` means that the job
    answers requests and has enough readings: it executed its largest batch before the first
    request, and never succeeds. `samples` counts the readings of the present utilization, if known.
    Those of the measurement include the start-up and earlier attempts.
    """
    entry = _entry(status, now, alone=alone, serves=serves)
    if entry is None:
        return None
    if samples is not None:
        entry = replace(entry, samples=samples)
    before = profile.status.entries if profile is not None else ()
    same = next((e for e in before if _is_about(e, entry)), None)
    if same is not None:
        joined = _joined(same, entry, pace)
        if joined is None:
            return None
        entry = joined
    others = tuple(e for e in before if e is not same)
    return (entry, *others)[:ENTRIES_MAX]


def with_entries(
    job: GPUJob, profile: GPUProfile | None, entries: tuple[ProfileEntry, ...]
) -> GPUProfile:
    """Returns the profile of the attempt's workload, or a new one, with these entries."""
    if profile is not None:
        return replace(profile, status=replace(profile.status, entries=entries))
    namespace, name = attempt_keys(job, workload_keys(job)).profile
    return GPUProfile(
        metadata=Metadata(name=name, namespace=namespace),
        spec=_spec(job, name.removeprefix(_PREFIX)),
        status=GPUProfileStatus(entries=entries),
    )


def _alone_seconds(
    before: ProfileEntry, after: ProfileEntry, tuned: TunedSettings | None
) -> float | None:
    """Returns the fastest step alone on its GPUs, of either entry, with the settings of the entry.

    A gain below 5 % is noise.
    """
    known = before.alone_step_seconds if before.tuned == tuned else None
    new = after.alone_step_seconds if after.tuned == tuned else None
    if known is None or new is None:
        return known if new is None else new
    return new if new < known * 0.95 else known


def _alone_joules(
    before: ProfileEntry, after: ProfileEntry, tuned: TunedSettings | None, seconds: float | None
) -> float | None:
    """Returns the energy of the step with that time. One measurement is as good as another."""
    known = before.alone_joules_per_step if before.tuned == tuned else None
    new = after.alone_joules_per_step if after.tuned == tuned else None
    if known is None or new is None:
        return known if new is None else new
    return known if seconds == before.alone_step_seconds else new


def _entry(
    status: GPUJobStatus, now: datetime, *, alone: bool, serves: bool
) -> ProfileEntry | None:
    measurement, reservation = status.measurement, status.reservation
    if measurement is None or reservation is None or status.placement is None:
        return None
    timing = measurement.current
    if reservation.source is not ReservationSource.MEASURED:
        return None
    if timing is None and not serves and status.phase is not JobPhase.SUCCEEDED:
        # Without reports it is unknown whether the peak is still to come.
        return None
    return ProfileEntry(
        gpu_model=status.placement.gpu_model,
        torch_version=measurement.torch_version,
        memory_bytes=measurement.memory_bytes,
        utilization_percent=measurement.utilization_percent,
        samples=measurement.samples,
        updated_at=now,
        baseline=measurement.baseline,
        current=timing,
        tuned=status.tuned,
        tuning_seconds=status.tuning_seconds,
        alone_step_seconds=timing.step_seconds if alone and timing is not None else None,
        alone_joules_per_step=measurement.joules_per_step if alone else None,
    )


def _is_about(one: ProfileEntry, measured: ProfileEntry) -> bool:
    """Returns whether both are about one GPU model and torch version.

    A run that was only seen from outside has no version. It adds to the newest entry of its model.
    """
    same_torch = one.torch_version == measured.torch_version or measured.current is None
    return one.gpu_model == measured.gpu_model and same_torch


def _joined(
    before: ProfileEntry, after: ProfileEntry, pace: SharedPace | None
) -> ProfileEntry | None:
    """Returns the union of both entries, or None if it is not worth a write.

    Worth a write are 5 % more memory, faster settings, another timing, more utilization, and once a
    day that the workload was measured again. Within a day only more memory, faster settings and
    more utilization replace existing values, so several jobs of one workload converge to the same
    entry and stop writing.
    """
    best = after if _is_faster(after, before) else before
    memory_bytes = max(before.memory_bytes, after.memory_bytes)
    alone_seconds = _alone_seconds(before, after, best.tuned)
    shared = with_pace(before.shared, pace)
    joules = _alone_joules(before, after, best.tuned, alone_seconds)
    timings = best.current, best.tuned, alone_seconds, joules, shared
    alone = before.alone_step_seconds, before.alone_joules_per_step
    known = before.current, before.tuned, *alone, before.shared
    is_recent = after.updated_at - before.updated_at < RENEWED_AFTER
    utilization_percent = _utilization_percent(before, after, is_recent=is_recent)
    change_percent = abs(utilization_percent - before.utilization_percent)
    same = memory_bytes <= before.memory_bytes * 1.05 and timings == known
    if same and is_recent and change_percent < UTILIZATION_CHANGE_PERCENT:
        return None
    return replace(
        best,
        utilization_percent=utilization_percent,
        samples=max(before.samples, after.samples),
        torch_version=before.torch_version,
        memory_bytes=memory_bytes,
        updated_at=after.updated_at,
        alone_step_seconds=alone_seconds,
        alone_joules_per_step=joules,
        shared=shared,
    )


def _utilization_percent(before: ProfileEntry, after: ProfileEntry, *, is_recent: bool) -> float:
    """Returns the utilization of the busier run of a day, because a service is first measured
    without requests. The first run that was observed for minutes replaces shorter ones, and the
    first reading after a start-up those of the start-up.
    """
    better = any(before.samples < least <= after.samples for least in (1, SAMPLES_OF_MINUTES))
    if better or not is_recent:
        return after.utilization_percent
    return max(before.utilization_percent, after.utilization_percent)


def _is_faster(one: ProfileEntry, other: ProfileEntry) -> bool:
    if one.current is None or other.current is None:
        return other.current is None
    if (one.tuned is None) != (other.tuned is None):
        return one.tuned is not None
    return one.current.step_seconds < other.current.step_seconds * 0.95


def _spec(job: GPUJob, fingerprint: str) -> GPUProfileSpec:
    """Returns the spec. Except for the fingerprint, it has only fields that no edit changes."""
    worker = job.spec.worker_container()
    command = (*(worker.get("command") or ()), *(worker.get("args") or ()))
    return GPUProfileSpec(
        fingerprint=fingerprint,
        image=str(worker.get("image", "")),
        command=tuple(str(part) for part in command)[:64],
        gpus_per_worker=job.spec.gpus_per_worker,
        workers=job.spec.workers,
        workload=job.spec.workload,
    )
