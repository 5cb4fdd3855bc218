"""GPUJob: the user's request (`spec`) and its state (`status`)."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, cast

from gpujob_api.bounds import (
    GPUUUID,
    INT32_MAX,
    LABEL_PATTERN,
    Count,
    GPUMemoryBytes,
    Items,
    Label,
    Message,
    Model,
    Percent,
    Range,
    SmallCount,
    Subdomain,
    Text,
    Version,
)
from gpujob_api.codec import FieldError, check
from gpujob_api.meta import Conditions, Metadata
from gpujob_api.optimize import Optimize
from gpujob_api.quantities import MIB, Memory, format_count
from gpujob_api.report import (
    CheckpointReport,
    Explanations,
    FailureClass,
    Joules,
    Loss,
    Protection,
    Seconds,
    Speedup,
    Timing,
    WaitPercent,
)
from gpujob_api.settings import ResumeMode, Task, TunedSettings
from gpujob_api.start_range import StartRange
from gpujob_api.start_refusal import START_REFUSALS_MAX, OthersStopped, StartRefusal
from gpujob_api.summary import Summary

WORKERS_MAX = 1024
GPUS_PER_WORKER_MAX = 16
WORKER_CONTAINER = "worker"
# Names of pods have at most 63 characters and end with attempt and rank: -99999-1023.
JOB_NAME_CHARACTERS_MAX = 52
ATTEMPT_MAX = 99_999
PRIORITY_MAX = 1_000_000
GPU_MEMORY_BYTES_MIN = MIB
INTERVAL_PATTERN = r"^(Auto|[1-9][0-9]{0,5}[smh])$"
_JOB_NAME = Text(JOB_NAME_CHARACTERS_MAX, LABEL_PATTERN, 1)
_INTERVAL = re.compile(r"([1-9][0-9]{0,5})([smh])")
_INTERVAL_SECONDS = {"s": 1, "m": 60, "h": 3600}


class SharingMode(Enum):
    AUTO = "Auto"
    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"


class SpotPolicy(Enum):
    PREFER = "Prefer"
    REQUIRE = "Require"
    NEVER = "Never"


class DisruptionPolicy(Enum):
    """Avoid makes node autoscalers keep the nodes of a job's running pods."""

    AVOID = "Avoid"
    ALLOW = "Allow"


class JobPhase(Enum):
    """The phase of a job. Succeeded and Failed are final."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class ReservationSource(Enum):
    """The source of a reservation, from least to best known. `Parked`: what a replica of a service
    still uses while its weights are in the memory of the host.
    """

    WHOLE_GPU = "WholeGPU"
    HINT = "Hint"
    PROFILE = "Profile"
    MEASURED = "Measured"
    PARKED = "Parked"


@dataclass(frozen=True, slots=True)
class GPURequest:
    """The GPU that a worker needs. `memory` is a hint until a measurement exists."""

    memory: Memory | None = None
    models: Annotated[
        tuple[Annotated[str, Text(128, characters_min=1)], ...], Items(16, unique=True)
    ] = ()

    def __post_init__(self) -> None:
        check(self)
        if self.memory is not None and self.memory.bytes < GPU_MEMORY_BYTES_MIN:
            raise FieldError(
                "memory",
                f"must be at least 1Mi; got {self.memory.bytes} bytes (is a unit missing?)",
            )


@dataclass(frozen=True, slots=True)
class Sharing:
    mode: SharingMode = SharingMode.AUTO
    max_slowdown_percent: Annotated[int, Range(0, 100)] = 10

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where and how often state is saved. Without a claim it is lost with the pod."""

    volume_claim_name: Subdomain | None = None
    interval: Annotated[str, Text(7, INTERVAL_PATTERN)] = "Auto"
    keep: Annotated[int, Range(2, 100)] = 3
    # Checkpoints that the script writes itself, and the arguments that make it resume from one.
    path: Annotated[str, Text(1024, characters_min=1)] | None = None
    resume_arguments: Annotated[
        tuple[Annotated[str, Text(1024, characters_min=1)], ...], Items(16)
    ] = ()
    resume: ResumeMode = ResumeMode.EXACT

    def __post_init__(self) -> None:
        check(self)
        if self.path is not None and ".." in self.path.split("/"):
            raise FieldError("path", "must not have .. in it; begin with / for another folder")
        if self.resume_arguments and self.path is None:
            raise FieldError("resumeArguments", "needs path: where the script's checkpoints lie")

    @property
    def interval_seconds(self) -> int | None:
        """The interval, or None for Auto."""
        match = _INTERVAL.fullmatch(self.interval)
        return int(match[1]) * _INTERVAL_SECONDS[match[2]] if match else None


@dataclass(frozen=True, slots=True)
class Spot:
    policy: SpotPolicy = SpotPolicy.PREFER


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a failed attempt is repeated, and after how many seconds without progress it is
    hung.
    """

    limit: Annotated[int, Range(0, 100)] = 3
    hang_timeout_seconds: Annotated[int, Range(1, 604_800)] = 600

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GPUJobSpec:
    template: Mapping[str, Any]
    # Jobs of a namespace with the same name share measurements. If it is None, see `fingerprint`.
    workload: Label | None = None
    queue: Label = "default"
    priority: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] = 0
    workers: Annotated[int, Range(1, WORKERS_MAX)] = 1
    gpus_per_worker: Annotated[int, Range(1, GPUS_PER_WORKER_MAX)] = 1
    gpu: GPURequest = field(default_factory=GPURequest)
    sharing: Sharing = field(default_factory=Sharing)
    optimize: Optimize = field(default_factory=Optimize)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    spot: Spot = field(default_factory=Spot)
    disruption: DisruptionPolicy = DisruptionPolicy.AVOID
    retry: Retry = field(default_factory=Retry)
    suspend: bool = False
    ttl_seconds_after_finished: Annotated[int, Range(0, INT32_MAX)] | None = None

    def __post_init__(self) -> None:
        check(self)
        if self.sharing.mode is SharingMode.SHARED and self.gpus_per_worker > 1:
            raise FieldError(
                "sharing.mode", f"Shared needs gpusPerWorker: 1; got {self.gpus_per_worker}"
            )
        self.worker_container()

    @property
    def gpus(self) -> int:
        """The GPUs of all workers together."""
        return self.workers * self.gpus_per_worker

    def worker_container(self) -> Mapping[str, Any]:
        """Returns the container that gets the GPU: the only one, or the one named worker. Raises
        `FieldError` without one.
        """
        for container in (found := tuple(_containers(self.template))):
            if len(found) == 1 or container.get("name") == WORKER_CONTAINER:
                return container
        raise FieldError("template.spec.containers", f"needs a container named {WORKER_CONTAINER}")


def _containers(template: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the template's containers. Other values are skipped."""
    objects, lists = (dict, Mapping), (list, Sequence)  # JSON has dicts and lists.
    pod = template.get("spec")
    listed = cast("Mapping[str, Any]", pod).get("containers") if isinstance(pod, objects) else None
    if isinstance(listed, lists) and not isinstance(listed, str):
        for container in cast("Sequence[object]", listed):
            if isinstance(container, objects):
                yield cast("Mapping[str, Any]", container)


@dataclass(frozen=True, slots=True)
class WorkerPlacement:
    """Where one worker runs: its rank in the gang, the node, and the GPUs by UUID."""

    rank: Annotated[int, Range(0, WORKERS_MAX - 1)]
    node: Subdomain
    gpus: Annotated[tuple[GPUUUID, ...], Items(GPUS_PER_WORKER_MAX)]
    # The UID of its pod, once that was seen. No other pod is this worker, whatever it claims.
    pod_uid: Annotated[str, Text(128)] | None = None
    # A gang's worker is done, whatever happens to its pod while others continue.
    done: bool | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an attempt runs.

    It is written before its pods are created, or on the only one of them, so that a crash loses
    nothing.
    """

    workers: Annotated[tuple[WorkerPlacement, ...], Items(WORKERS_MAX, keys=("rank",))]
    spot: bool = False
    gpu_model: Model = ""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What an attempt reserves on each of its GPUs until it is proven finished."""

    memory_bytes: GPUMemoryBytes
    utilization_percent: Percent
    source: ReservationSource
    exclusive: bool = False
    # Memory that the workers may use on each GPU in addition to contexts, if the attempt has a cap.
    cap_bytes: GPUMemoryBytes | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """The job's measured use per GPU, and its speed."""

    memory_bytes: GPUMemoryBytes
    utilization_percent: Percent
    samples: Count
    # `Inference` if steps are calls of the model. None otherwise.
    task: Task | None = None
    step: Count = 0
    steps_total: Count | None = None
    loss: Loss | None = None
    baseline: Timing | None = None
    current: Timing | None = None
    # Taken from the newest report. `baseline` and `current` were measured at different times.
    speedup: Speedup | None = None
    data_wait_percent: WaitPercent | None = None
    # The GPU's energy, including that of other processes.
    joules_per_step: Joules | None = None
    device: Model = ""
    torch_version: Version = ""
    # Memory that the contexts of its processes may take on a GPU, if there are several processes.
    context_bytes: GPUMemoryBytes | None = None

    @property
    def counts_calls(self) -> bool:
        """Whether a step is a call of the model, not a step of an optimizer."""
        return self.task is Task.INFERENCE

    @property
    def progress(self) -> str:
        """The steps so far, for people: `step 1200`, `1200 calls` in an inference run, `1200
        batches` of a serving process.
        """
        if self.task is Task.SERVING:
            return format_count(self.step, "batch", "batches")
        return format_count(self.step, "call") if self.counts_calls else f"step {self.step}"

    @property
    def remaining_seconds(self) -> float | None:
        """The time until the last step at the current step time, or None if it is not known."""
        if self.steps_total is None or self.current is None:
            return None
        return max(self.steps_total - self.step, 0) * self.current.step_seconds


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts of the outcomes of earlier attempts. Interruptions are not the job's fault and not
    retries.
    """

    out_of_memory: SmallCount = 0
    errors: SmallCount = 0
    hung: SmallCount = 0
    node_lost: SmallCount = 0
    interruptions: SmallCount = 0
    # Interruptions caused by another job or by a move.
    preemptions: SmallCount = 0
    # Consecutive GPUs that became unhealthy soon after an attempt had started on them.
    unhealthy_gpus: SmallCount = 0
    # Consecutive interruptions before the durable step grew.
    fruitless: SmallCount = 0


@dataclass(frozen=True, slots=True)
class StopReason:
    """Why a running attempt is being stopped, and when its grace period ends."""

    reason: Annotated[str, Text(256, clip=True)]
    message: Message
    deadline: datetime


@dataclass(frozen=True, slots=True)
class JobFailure:
    failure_class: FailureClass
    message: Message


@dataclass(frozen=True, slots=True)
class LastError:
    """The error of the latest failed attempt, and its step. An error that comes twice would come
    again.
    """

    step: Count
    # The text without times and addresses.
    text: Annotated[str, Text(512, clip=True)]


@dataclass(frozen=True, slots=True)
class GPUJobStatus:
    phase: JobPhase = JobPhase.PENDING
    observed_generation: Count = 0
    attempt: Annotated[int, Range(0, ATTEMPT_MAX)] = 0
    placement: Placement | None = None
    reservation: Reservation | None = None
    measurement: Measurement | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: Seconds | None = None
    # The newest checkpoint from which the next attempt can resume.
    checkpoint: CheckpointReport | None = None
    # The worker's last report of it.
    protection: Protection | None = None
    # 0 if the latest attempt started again from the beginning.
    resumed_from_step: Count | None = None
    counters: Counters = field(default_factory=Counters)
    stop: StopReason | None = None
    failure: JobFailure | None = None
    # None if the latest failure may be temporary.
    last_error: LastError | None = None
    profile: Annotated[str, Text(253)] | None = None
    # The queue that admitted the attempt. The attempt uses its quota.
    queue: Label | None = None
    next_attempt_at: datetime | None = None
    # When the pending job is expected to start.
    start: StartRange | None = None
    # The newest refusals.
    start_refusals: Annotated[tuple[StartRefusal, ...], Items(START_REFUSALS_MAX)] = ()
    # The time from which a job waits that was preempted, or that could not start for a while.
    requeued_at: datetime | None = None
    # The time since which the pending job could not start: suspended, not admitted, refused.
    held_back_since: datetime | None = None
    # Total seconds for which ended attempts held GPUs.
    held_seconds: Annotated[float, Range(0, 10**9, clamp=True)] | None = None
    # The price of the GPUs that they held, as far as prices are known.
    cost: Annotated[float, Range(0, 10**9, clamp=True)] | None = None
    # The durable step when an attempt was last interrupted.
    interrupted_at_step: Count | None = None
    # The furthest step at which an attempt ran out of GPU memory.
    out_of_memory_step: Count | None = None
    # Minimum of its utilization when GPUs are shared. It is raised when the job slowed a co-tenant
    # too much.
    utilization_floor_percent: Percent = 0.0
    # Stopped for this job, which has not run since.
    others_stopped: OthersStopped | None = None
    attempt_started_at: datetime | None = None
    progressed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    # When the figures of this status were last written. It limits the rate of writes.
    observed_at: datetime | None = None
    explain: Explanations = ()
    summary: Summary = field(default_factory=Summary)
    conditions: Conditions = ()

    @property
    def finished(self) -> bool:
        return self.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)


@dataclass(frozen=True, slots=True)
class GPUJob:
    metadata: Metadata
    spec: GPUJobSpec
    status: GPUJobStatus = field(default_factory=GPUJobStatus)

    def __post_init__(self) -> None:
        problem = _JOB_NAME.problem(self.metadata.name)
        if problem is not None:
            raise FieldError("metadata.name", problem)

    @property
    def finished(self) -> bool:
        return self.status.finished
