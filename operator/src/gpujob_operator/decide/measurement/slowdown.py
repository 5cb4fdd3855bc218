"""Decides from measurements which job is slowed by its co-tenants more than it allows.

The reference is the workload's profile: the fastest step measured on this GPU model with the same
settings. From then on a migrated job is packed with a utilization floor, so that the same pair is
not placed together again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpujob_api.gpujob import GPUJob, GPUJobStatus, JobPhase
from gpujob_api.gpuprofile import (
    SLOWDOWN_PERCENT_MAX,
    GPUProfile,
    ProfileEntry,
    SharedPace,
)
from gpujob_api.meta import ConditionStatus
from gpujob_api.report import YIELD_PERCENT_MAX
from gpujob_api.settings import Task
from gpujob_operator.decide.capacity.calibration import band_percent
from gpujob_operator.decide.capacity.cluster import GPUCapacity, has_external_use
from gpujob_operator.decide.measurement.reservation import profile_entry
from gpujob_operator.decide.model import conditions
from gpujob_operator.decide.model.snapshot import Yielding
from gpujob_operator.decide.model.yielding import RAISED_ABOVE

# A job counts as slowed only from this many percentage points above its limit, because step times
# vary.
SLACK_PERCENT = 5.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer a step takes next to co-tenants: seconds of a step, and percent of the
    reference.
    """

    step_seconds: float
    alone_seconds: float
    limit_percent: int

    @property
    def percent(self) -> float:
        return 100.0 * (self.step_seconds / self.alone_seconds - 1.0)

    @property
    def too_much(self) -> bool:
        return self.percent > self.limit_percent + SLACK_PERCENT

    @property
    def message(self) -> str:
        return (
            f"a step takes {self.percent:.0f} % longer than alone ({self.step_seconds:.3g} s "
            f"against {self.alone_seconds:.3g} s); sharing.maxSlowdownPercent is "
            f"{self.limit_percent}"
        )


def slowed_because(
    job: GPUJob,
    status: GPUJobStatus,
    profile: GPUProfile | None,
    gpus: Sequence[GPUCapacity],
    yielding: Yielding | None,
) -> tuple[str, str] | None:
    """Returns the reason and the message if co-tenants slow a running job too much, else None.

    The time that a training yields is no part of its step times, so it counts here. At the most
    that a training yields, the limit does not matter: the service needs another neighbour.
    """
    if status.phase is not JobPhase.RUNNING:
        return None
    if yielding is not None and _yields_too_much(job, yielding):
        limit = job.spec.sharing.max_slowdown_percent
        text = f"{yielding_message(yielding)}; sharing.maxSlowdownPercent is {limit}"
        return "Yields", text
    slowdown = measured_slowdown(job, status, profile, gpus)
    if slowdown is None or not slowdown.too_much:
        return None
    return "CoTenants", slowdown.message


def _yields_too_much(job: GPUJob, yielding: Yielding) -> bool:
    limit = job.spec.sharing.max_slowdown_percent + SLACK_PERCENT
    return yielding.percent >= YIELD_PERCENT_MAX or _longer_percent(yielding) > limit


def _longer_percent(yielding: Yielding) -> float:
    return 100.0 * yielding.percent / (100 - yielding.percent)


def yielding_message(yielding: Yielding) -> str:
    most = ", the most that it yields" if yielding.percent >= YIELD_PERCENT_MAX else ""
    return (
        f"leaves its GPU idle for {yielding.percent} % of the time{most}, because requests of "
        f"{yielding.replica} need more than {RAISED_ABOVE:.0f} % of their objective; a step takes "
        f"{_longer_percent(yielding):.0f} % longer"
    )


def measured_slowdown(
    job: GPUJob, status: GPUJobStatus, profile: GPUProfile | None, gpus: Sequence[GPUCapacity]
) -> Slowdown | None:
    """Returns the job's slowdown next to co-tenants, or None if it is alone or without
    reference.
    """
    if not any(len(gpu.tenants) > 1 for gpu in gpus):
        return None
    step_seconds, entry = _comparable(status, profile)
    if entry is None or entry.current is None or entry.current.step_seconds <= 0:
        return None
    limit = job.spec.sharing.max_slowdown_percent
    return Slowdown(step_seconds, entry.current.step_seconds, limit)


def _comparable(
    status: GPUJobStatus, profile: GPUProfile | None
) -> tuple[float, ProfileEntry | None]:
    """Returns the job's step time in seconds, and the profile entry with the same model and
    settings.

    Batches of a server differ in size, so their times are not comparable.
    """
    placement, measured = status.placement, status.measurement
    if placement is None or measured is None or measured.current is None:
        return 0.0, None
    if measured.task is Task.SERVING:
        return 0.0, None
    entry = profile_entry(profile, placement.gpu_model)
    if entry is None:
        return 0.0, None
    same = entry.tuned == status.tuned and entry.torch_version == measured.torch_version
    return measured.current.step_seconds, entry if same else None


def has_gpus_alone(status: GPUJobStatus, gpus: Sequence[GPUCapacity]) -> bool:
    """Returns whether a running job shares its GPUs with no other job and no unmanaged process."""
    running = status.phase is JobPhase.RUNNING and bool(gpus)
    return running and not any(len(gpu.tenants) > 1 or has_external_use(gpu) for gpu in gpus)


def observed_pace(
    status: GPUJobStatus, profile: GPUProfile | None, gpus: Sequence[GPUCapacity]
) -> SharedPace | None:
    """Returns the pace that the job measured next to co-tenants, or None.

    None means that the step time alone is unknown for this GPU model and these settings.
    """
    step_seconds, entry = _comparable(status, profile)
    if status.phase is not JobPhase.RUNNING or entry is None or not entry.alone_step_seconds:
        return None
    shared = [gpu for gpu in gpus if len(gpu.tenants) > 1]
    if not shared or any(has_external_use(gpu) for gpu in shared):
        return None
    summed_percent = max(gpu.utilization_percent for gpu in shared)
    longer_percent = 100.0 * (step_seconds / entry.alone_step_seconds - 1.0)
    # The seconds are reported by the worker, and the API server refuses larger values.
    slowdown_percent = min(max(longer_percent, 0.0), SLOWDOWN_PERCENT_MAX)
    return SharedPace(band_percent(summed_percent), round(slowdown_percent, 1))


def is_slowed(status: GPUJobStatus) -> bool:
    found = conditions.find(status, conditions.SLOWED)
    return found is not None and found.status is ConditionStatus.TRUE
