"""GPUJob: what the user asks for (`spec`) and what came of it (`status`)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.meta import Condition, Metadata
from gpujob_api.quantities import Memory
from gpujob_api.report import CheckpointReport, FailureClass, Timing
from gpujob_api.settings import OptimizeMode, Precision, Toggle, TunedSettings

WORKERS_MAX = 1024
GPUS_PER_WORKER_MAX = 16
WORKER_CONTAINER = "worker"
_INTERVAL = re.compile(r"^(?:Auto|([1-9][0-9]{0,5})(s|m|h))$")
_INTERVAL_SECONDS = {"s": 1, "m": 60, "h": 3600}


class SharingMode(Enum):
    AUTO = "Auto"
    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"


class SpotPolicy(Enum):
    PREFER = "Prefer"
    REQUIRE = "Require"
    NEVER = "Never"


class JobPhase(Enum):
    """Where a job is in its life. Succeeded and Failed are final."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ReservationSource(Enum):
    """What a reservation rests on, from least to best known."""

    WHOLE_CARD = "WholeCard"
    HINT = "Hint"
    PROFILE = "Profile"
    MEASURED = "Measured"


@dataclass(frozen=True, slots=True)
class GPURequest:
    """Which card a worker needs. `memory` is a hint until a measurement exists."""

    memory: Memory | None = None
    models: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Sharing:
    mode: SharingMode = SharingMode.AUTO
    max_slowdown_percent: int = 10


@dataclass(frozen=True, slots=True)
class BatchSize:
    """`total` is what one optimizer step learns from and never changes by itself.

    `per_step` is how much of it goes through the card at once: a number that divides `total`, or
    None for Auto.
    """

    total: int | None = None
    per_step: "PerStep | None" = None

    def __post_init__(self) -> None:
        per_step = self.per_step.samples if self.per_step else None
        if self.total is not None and per_step is not None and self.total % per_step:
            raise FieldError("total", f"{self.total} is not divisible by perStep {per_step}")


@dataclass(frozen=True, slots=True)
class PerStep:
    """`Auto` or a number of samples."""

    samples: int | None = None

    @classmethod
    def from_json(cls, value: object, path: str) -> "PerStep":
        if value == "Auto":
            return cls(None)
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**31 - 1:
            return cls(value)
        raise FieldError(path, f"must be Auto or a number from 1 to {2**31 - 1}; got {value!r}")

    def to_json(self) -> object:
        return "Auto" if self.samples is None else self.samples


@dataclass(frozen=True, slots=True)
class Optimize:
    mode: OptimizeMode = OptimizeMode.AUTO
    precision: Precision = Precision.AUTO
    batch_size: BatchSize = field(default_factory=BatchSize)
    activation_checkpointing: Toggle = Toggle.AUTO
    compile: Toggle = Toggle.AUTO
    data_loading: Toggle = Toggle.AUTO


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and how often state is kept. Without a claim the job keeps it on the node only."""

    volume_claim_name: str | None = None
    interval: str = "Auto"
    keep: int = 3

    def __post_init__(self) -> None:
        if _INTERVAL.match(self.interval) is None:
            raise FieldError(
                "interval", f"must be Auto or such as 30s, 10m, 2h; got {self.interval!r}"
            )

    @property
    def interval_seconds(self) -> int | None:
        match = _INTERVAL.match(self.interval)
        if match is None or match[1] is None:
            return None
        return int(match[1]) * _INTERVAL_SECONDS[match[2]]


@dataclass(frozen=True, slots=True)
class Spot:
    policy: SpotPolicy = SpotPolicy.PREFER
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed attempt is repeated, and after how long without progress it is hung."""

    limit: int = 3
    hang_timeout_seconds: int = 600


@dataclass(frozen=True, slots=True)
class GPUJobSpec:
    template: Mapping[str, Any]
    queue: str = "default"
    priority: int = 0
    workers: int = 1
    gpus_per_worker: int = 1
    gpu: GPURequest = field(default_factory=GPURequest)
    sharing: Sharing = field(default_factory=Sharing)
    optimize: Optimize = field(default_factory=Optimize)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    spot: Spot = field(default_factory=Spot)
    retry: Retry = field(default_factory=Retry)
    suspend: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= WORKERS_MAX:
            raise FieldError("workers", f"must be from 1 to {WORKERS_MAX}; got {self.workers}")
        if not 1 <= self.gpus_per_worker <= GPUS_PER_WORKER_MAX:
            raise FieldError(
                "gpusPerWorker",
                f"must be from 1 to {GPUS_PER_WORKER_MAX}; got {self.gpus_per_worker}",
            )
        if self.sharing.mode is SharingMode.SHARED and self.gpus_per_worker > 1:
            raise FieldError("sharing.mode", "Shared needs gpusPerWorker: 1")
        if self.spot.policy is SpotPolicy.REQUIRE and self.checkpoint.volume_claim_name is None:
            raise FieldError("checkpoint.volumeClaimName", "is required by spot.policy: Require")
        self.worker_container()

    def worker_container(self) -> Mapping[str, Any]:
        """The container that gets the GPU. Raises `FieldError` when the template has none."""
        pod = self.template.get("spec")
        containers = pod.get("containers") if isinstance(pod, Mapping) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for container in containers or ():  # pyright: ignore[reportUnknownVariableType]
            if container.get("name") == WORKER_CONTAINER:  # pyright: ignore[reportUnknownMemberType]
                return container  # pyright: ignore[reportUnknownVariableType]
        raise FieldError("template.spec.containers", f"needs a container named {WORKER_CONTAINER}")


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where one worker runs: its rank in the gang, the node, and the cards by UUID."""

    rank: int
    node: str
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt runs. Written before its pods are created, so that a crash loses nothing."""

    workers: tuple[WorkerPlacement, ...]
    spot: bool = False
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt holds on each of its cards until it is proven finished."""

    memory_bytes: int
    utilization_percent: float
    source: ReservationSource
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the job was seen to use per card, and how fast it goes."""

    memory_bytes: int
    utilization_percent: float
    samples: int
    step: int = 0
    steps_total: int | None = None
    loss: float | None = None
    baseline: Timing | None = None
    current: Timing | None = None
    data_wait_percent: float | None = None
    device: str = ""
    torch_version: str = ""


@dataclass(frozen=True, slots=True)
class Counters:
    """What happened to earlier attempts. Interruptions are not the job's fault and not retries."""

    out_of_memory: int = 0
    errors: int = 0
    hung: int = 0
    node_lost: int = 0
    interruptions: int = 0


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a running attempt is being stopped, and when its grace ends."""

    reason: str
    message: str
    deadline: datetime


@dataclass(frozen=True, slots=True)
class JobFailure:
    failure_class: FailureClass
    message: str


@dataclass(frozen=True, slots=True)
class Summary:
    """The printer columns, ready to read."""

    where: str = ""
    speed: str = ""
    memory: str = ""
    cost: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GPUJobStatus:
    phase: JobPhase = JobPhase.PENDING
    observed_generation: int = 0
    attempt: int = 0
    placement: Placement | None = None
    reservation: Reservation | None = None
    measurement: Measurement | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: float | None = None
    checkpoint: CheckpointReport | None = None
    resumed_from_step: int | None = None
    counters: Counters = field(default_factory=Counters)
    stop: StopReason | None = None
    failure: JobFailure | None = None
    profile: str | None = None
    next_attempt_at: datetime | None = None
    attempt_started_at: datetime | None = None
    progressed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    # When the figures of this status were last written; bounds the rate of writes.
    observed_at: datetime | None = None
    explain: tuple[str, ...] = ()
    summary: Summary = field(default_factory=Summary)
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GPUJob:
    metadata: Metadata
    spec: GPUJobSpec
    status: GPUJobStatus = field(default_factory=GPUJobStatus)

    @property
    def finished(self) -> bool:
        return self.status.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
