"""Decides how much of a GPU an attempt reserves, from the best knowledge about the job.

If sharing is `Shared`, the user's hint is a cap. It decides, and only the context is added to it.
Otherwise the first of these that exists decides: the job's own measurement, its workload's profile
on this GPU model, or the whole GPU.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpujob_api.gpujob import GPUJob, Measurement, Reservation, ReservationSource, SharingMode
from gpujob_api.gpuprofile import GPUProfile, ProfileEntry
from gpujob_operator.decide.capacity.cluster import GPUCapacity
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.held_gpus import Place, known_context_bytes, memory_cap_bytes
from gpujob_operator.decide.model.snapshot import GPUUsage

# The utilization is reserved anew if it differs by this much.
UTILIZATION_CHANGE_PERCENT = 10.0
# A job gets its own GPUs after this many consecutive GPUs soon became unhealthy under it. If one
# more breaks, no other job can have caused it.
UNHEALTHY_GPUS_SHARED_MAX = 2


def with_margin(memory_bytes: int, configuration: Configuration) -> int:
    fraction = int(memory_bytes * configuration.memory_margin_fraction)
    return memory_bytes + max(fraction, configuration.memory_margin_bytes)


def profile_entry(profile: GPUProfile | None, gpu_model: str) -> ProfileEntry | None:
    if profile is None:
        return None
    return next((e for e in profile.status.entries if e.gpu_model == gpu_model), None)


def takes_whole_gpus(job: GPUJob, configuration: Configuration) -> bool:
    """Returns whether the job shares no GPU.

    Its spec demands it, GPUs broke under it, or the kubelet picks the GPUs, which may differ from
    the chosen ones.
    """
    picked = configuration.device_access is DeviceAccess.DEVICE_PLUGIN
    return picked or job.spec.sharing.mode is SharingMode.EXCLUSIVE or breaks_gpus(job)


def ran_out_of_memory(job: GPUJob) -> bool:
    """Returns whether an attempt ran out of GPU memory, whichever job had taken it."""
    return job.status.counters.out_of_memory > 0 or job.status.out_of_memory_step is not None


def breaks_gpus(job: GPUJob) -> bool:
    """Returns whether so many GPUs broke under the job that the next one decides whether it is to
    blame.
    """
    return job.status.counters.unhealthy_gpus >= UNHEALTHY_GPUS_SHARED_MAX


def wanted_reservation(
    job: GPUJob, entry: ProfileEntry | None, configuration: Configuration
) -> Reservation | None:
    """Returns what a new attempt should reserve on a GPU of the entry's model. None: the
    whole GPU.
    """
    measurement = job.status.measurement
    if takes_whole_gpus(job, configuration):
        return None
    hint = job.spec.gpu.memory
    if job.spec.sharing.mode is SharingMode.SHARED and hint is not None:
        known = measurement or entry
        utilization_percent = known.utilization_percent if known is not None else 100.0
        used_bytes = measurement.memory_bytes if measurement is not None else 0
        contexts_bytes = known_context_bytes(measurement)
        memory_bytes = _under_cap(hint.bytes, used_bytes, contexts_bytes, configuration)
        return Reservation(
            memory_bytes, utilization_percent, ReservationSource.HINT, cap_bytes=hint.bytes
        )
    if ran_out_of_memory(job):
        # The job exceeded its measured memory by an unknown amount. The measurement is discarded,
        # and the job starts on a whole GPU.
        return None
    if measurement is not None and is_settled(measurement, configuration):
        memory = with_margin(measurement.memory_bytes, configuration)
        return Reservation(memory, measurement.utilization_percent, ReservationSource.MEASURED)
    if entry is not None:
        return Reservation(
            memory_bytes=with_margin(entry.memory_bytes, configuration),
            utilization_percent=entry.utilization_percent,
            source=ReservationSource.PROFILE,
        )
    return None


def _under_cap(
    cap_bytes: int, used_bytes: int, contexts_bytes: int, configuration: Configuration
) -> int:
    """Returns what a job with this cap and this use reserves.

    That is the cap plus the contexts above it, as far as they were seen. Use beyond that was a
    breach of the cap and adds nothing.
    """
    if used_bytes <= cap_bytes:
        return cap_bytes
    return min(with_margin(used_bytes, configuration), cap_bytes + contexts_bytes)


def is_settled(measurement: Measurement, configuration: Configuration) -> bool:
    """Returns whether the measurement shows what the job needs.

    An attempt that ended early had only begun to allocate.
    """
    if measurement.current is None:
        return measurement.samples >= configuration.measurement_samples_without_reports_min
    return measurement.samples >= configuration.measurement_samples_min


def measured_reservation(
    job: GPUJob, usage: GPUUsage, configuration: Configuration, most_bytes: Callable[[], int]
) -> Reservation | None:
    """Returns the reservation after a measurement, or None if it stays unchanged.

    It shrinks once, from the whole GPU or a profile's estimate to the measured value, and never
    below the known peak of any attempt. It grows only if the job is seen to use more than it
    reserved, and never beyond `most_bytes`, because the rest of the GPU may already be reserved by
    other jobs (I1). `most_bytes` is called only then, because few jobs grow. Under a cap the
    reservation grows no further than the contexts above the cap, and never shrinks.

    All of this is about memory. The utilization rises at once, and falls once the job was observed
    to use less for minutes.
    """
    held = job.status.reservation
    if held is None or held.exclusive or takes_whole_gpus(job, configuration):
        return None
    if usage.samples < configuration.measurement_samples_min:
        return None
    known = job.status.measurement
    known_bytes = max(usage.memory_peak_bytes, known.memory_bytes if known is not None else 0)
    first = held.source is not ReservationSource.MEASURED
    utilization_percent = max(
        round(usage.utilization_percent, 1), job.status.utilization_floor_percent
    )
    # A job with a cap holds 100 % before it is measured. An operator that started anew has fewer
    # readings than the measurement.
    capped = held.source is ReservationSource.HINT and held.utilization_percent >= 100
    capped = capped and (known is None or usage.samples >= known.samples)
    unknown = capped or held.source is ReservationSource.WHOLE_GPU
    if not (usage.may_fall or unknown):
        utilization_percent = max(utilization_percent, held.utilization_percent)
    moved = abs(utilization_percent - held.utilization_percent) >= UTILIZATION_CHANGE_PERCENT
    outgrown = known_bytes > held.memory_bytes
    cap_bytes = memory_cap_bytes(job)
    if cap_bytes is not None:
        contexts_bytes = max(usage.context_bytes, known_context_bytes(known))
        needed_bytes = _under_cap(cap_bytes, known_bytes, contexts_bytes, configuration)
        found = replace(
            held,
            memory_bytes=_grown(held, needed_bytes, most_bytes) if outgrown else held.memory_bytes,
            utilization_percent=utilization_percent if moved else held.utilization_percent,
        )
        # A cap that is not recorded yet would otherwise grow with the reservation.
        return replace(found, cap_bytes=cap_bytes) if found != held else None
    wanted_bytes = with_margin(known_bytes, configuration)
    if not (first or outgrown or moved):
        return None
    memory_bytes = held.memory_bytes
    if outgrown:
        memory_bytes = _grown(held, wanted_bytes, most_bytes)
    elif first:
        memory_bytes = min(memory_bytes, wanted_bytes)
    found = Reservation(memory_bytes, utilization_percent, ReservationSource.MEASURED)
    # Without free memory nothing changes, however much more the job is seen to use.
    return found if found.memory_bytes != held.memory_bytes or first or moved else None


def _grown(held: Reservation, wanted_bytes: int, most_bytes: Callable[[], int]) -> int:
    return max(held.memory_bytes, min(wanted_bytes, most_bytes()))


def reservable_bytes(
    job: GPUJob, gpus: Mapping[Place, GPUCapacity], promised: Mapping[Place, int]
) -> int:
    """Returns the most memory that the job can reserve on each of its GPUs.

    That is what it holds and uses there, plus free memory. `promised` is what this cycle has
    already given to other jobs, by GPU.
    """
    held = job.status.reservation
    if held is None:
        return 0
    limits = [_most_on(job, held, gpu, promised.get(place, 0)) for place, gpu in gpus.items()]
    return max(held.memory_bytes, min(limits, default=0))


def _most_on(job: GPUJob, held: Reservation, gpu: GPUCapacity, promised_bytes: int) -> int:
    own = (tenant for tenant in gpu.tenants if tenant.job_uid == job.metadata.uid)
    used_bytes = held.memory_bytes + sum(tenant.excess_bytes for tenant in own)
    return used_bytes + gpu.free_bytes - promised_bytes
