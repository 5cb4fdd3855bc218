"""GPUProfile: finding what is known about a workload, and saving what was measured."""

from dataclasses import replace
from datetime import datetime

from gpujob_api.gpujob import GPUJob, ReservationSource
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus, ProfileEntry
from gpujob_api.meta import Metadata
from gpujob_operator.decide.workload import fingerprint

# Entries of one workload: one a card model and torch version, newest first.
ENTRIES_MAX = 32


def profile_name(job: GPUJob) -> str:
    return f"workload-{fingerprint(job.spec)}"


def updated_profile(job: GPUJob, profile: GPUProfile | None, now: datetime) -> GPUProfile | None:
    """The profile with this job's measurement, or None when it says nothing new."""
    entry = _entry(job, now)
    if entry is None:
        return None
    before = profile.status.entries if profile is not None else ()
    same = next((e for e in before if _key(e) == _key(entry)), None)
    if same is not None:
        entry = _joined(same, entry)
        if not _differs(same, entry):
            return None
    others = tuple(e for e in before if _key(e) != _key(entry))
    entries = (entry, *others)[:ENTRIES_MAX]
    if profile is not None:
        return replace(profile, status=replace(profile.status, entries=entries))
    return GPUProfile(
        metadata=Metadata(name=profile_name(job), namespace=job.metadata.namespace),
        spec=_spec(job),
        status=GPUProfileStatus(entries=entries),
    )


def _entry(job: GPUJob, now: datetime) -> ProfileEntry | None:
    status = job.status
    measurement, reservation = status.measurement, status.reservation
    if measurement is None or reservation is None or status.placement is None:
        return None
    if reservation.source is not ReservationSource.MEASURED or measurement.current is None:
        return None
    return ProfileEntry(
        gpu_model=status.placement.gpu_model,
        torch_version=measurement.torch_version,
        memory_bytes=measurement.memory_bytes,
        utilization_percent=measurement.utilization_percent,
        samples=measurement.samples,
        updated_at=now,
        baseline=measurement.baseline,
        current=measurement.current,
        tuned=status.tuned,
        tuning_seconds=status.tuning_seconds,
    )


def _key(entry: ProfileEntry) -> tuple[str, str]:
    return entry.gpu_model, entry.torch_version


def _joined(before: ProfileEntry, after: ProfileEntry) -> ProfileEntry:
    """What both know. Only more memory and faster settings replace what is there, so that several
    jobs of one workload come to the same entry and then stop writing.
    """
    memory_bytes = max(before.memory_bytes, after.memory_bytes)
    if before.current is not None and not _is_faster(after, before):
        return replace(before, memory_bytes=memory_bytes, updated_at=after.updated_at)
    return replace(after, memory_bytes=memory_bytes)


def _is_faster(one: ProfileEntry, other: ProfileEntry) -> bool:
    assert one.current is not None, "an entry is made of a timing"
    assert other.current is not None, "asked only of entries with a timing"
    if (one.tuned is None) != (other.tuned is None):
        return one.tuned is not None
    return one.current.step_seconds < other.current.step_seconds * 0.95


def _differs(before: ProfileEntry, after: ProfileEntry) -> bool:
    """More memory by 5 %, faster settings, or a first timing: worth a write."""
    grown = after.memory_bytes > before.memory_bytes * 1.05
    return grown or (before.current, before.tuned) != (after.current, after.tuned)


def _spec(job: GPUJob) -> GPUProfileSpec:
    worker = job.spec.worker_container()
    command = (*(worker.get("command") or ()), *(worker.get("args") or ()))
    return GPUProfileSpec(
        fingerprint=fingerprint(job.spec),
        image=str(worker.get("image", "")),
        command=tuple(str(part) for part in command)[:64],
        gpus_per_worker=job.spec.gpus_per_worker,
        workers=job.spec.workers,
    )
