"""GPUService: replicas of a model that answer requests within a latency objective.

A replica is a GPUJob that the operator creates from the service's spec, so it is admitted, packed,
measured and moved like every other job.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from gpujob_api.bounds import (
    INT32_MAX,
    LABEL_PATTERN,
    Count,
    Items,
    Label,
    Message,
    Range,
    SmallCount,
    Subdomain,
    Text,
)
from gpujob_api.codec import FieldError, check
from gpujob_api.gpujob import (
    PRIORITY_MAX,
    GPUJobSpec,
    GPURequest,
    Sharing,
    Spot,
)
from gpujob_api.meta import Conditions, Metadata
from gpujob_api.serving import (
    SERVING_PORT,
    Accuracy,
    BackendName,
    Batching,
    Choice,
    MeasuredPercent,
    Objective,
    Quantization,
    Rate,
    RequestLatency,
)
from gpujob_api.settings import Precision

# Names of replicas have two parts more: <service>-<revision>-<ordinal>, and a job's name at most 52
# characters.
SERVICE_NAME_CHARACTERS_MAX = 40
REPLICAS_MAX = 64
LEFT_AS_IT_IS = "backend External, which is left as it is"
STOP_AFTER_SECONDS_MAX = 604_800
COLD_START_SECONDS_MAX = 3600
_NAME = Text(SERVICE_NAME_CHARACTERS_MAX, LABEL_PATTERN, 1)


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many replicas there are. Their number follows the load between the two bounds.

    With a minimum of 0, requests go through a gate, which holds them while no replica is ready.
    """

    minimum: Annotated[int, Range(0, REPLICAS_MAX)] = 1
    # None means as many as `minimum`, and at least one.
    maximum: Annotated[int, Range(1, REPLICAS_MAX)] | None = None
    # The last replica stops after this time without requests. It counts from Ready.
    stop_after_seconds: Annotated[int, Range(1, STOP_AFTER_SECONDS_MAX)] = 600
    # Before that, replicas give their GPU memory back after this time without requests, and keep
    # their processes. None: never.
    park_after_seconds: Annotated[int, Range(1, STOP_AFTER_SECONDS_MAX)] | None = None
    # How long a request waits for a replica.
    cold_start_seconds: Annotated[int, Range(1, COLD_START_SECONDS_MAX)] = 60

    def __post_init__(self) -> None:
        check(self)
        if self.maximum is not None and self.maximum < self.minimum:
            raise FieldError(
                "maximum", f"must not be below minimum, {self.minimum}; got {self.maximum}"
            )
        parks = self.park_after_seconds
        if parks is None:
            return
        if not self.may_be_none:
            raise FieldError(
                "parkAfterSeconds",
                "needs minimum 0: a gate holds the requests that wake a replica; "
                f"got minimum {self.minimum}",
            )
        if parks > self.stop_after_seconds:
            raise FieldError(
                "parkAfterSeconds",
                f"must not be above stopAfterSeconds, {self.stop_after_seconds}; got {parks}",
            )

    @property
    def most(self) -> int:
        return max(1, self.minimum) if self.maximum is None else self.maximum

    @property
    def may_be_none(self) -> bool:
        """Whether the last replica stops without requests, so that the service needs a gate."""
        return self.minimum == 0


@dataclass(frozen=True, slots=True)
class ServiceOptimize:
    """What executes the model. Auto: the operator measures backends once, and takes the cheapest
    that keeps objective and accuracy.
    """

    backend: BackendName = BackendName.AUTO
    precision: Precision = Precision.AUTO
    quantization: Quantization = Quantization.OFF
    batching: Batching = field(default_factory=Batching)
    accuracy: Accuracy = field(default_factory=Accuracy)

    def __post_init__(self) -> None:
        """Refuses settings that an engine of the user's own would not get.

        The rules of the CRD cannot read `quantization` and `batching.policy`, which may be `false`.
        The operator refuses those (`decide/services/refusal.py`).
        """
        if self.backend is not BackendName.EXTERNAL:
            return
        if self.precision is not Precision.AUTO:
            got = self.precision.value
            raise FieldError("precision", f"must be Auto with {LEFT_AS_IT_IS}; got {got}")
        if self.batching.max_size is not None:
            got = self.batching.max_size
            raise FieldError("batching.maxSize", f"must be absent with {LEFT_AS_IT_IS}; got {got}")

    @property
    def measures(self) -> bool:
        """Whether the choice of a backend needs a measurement."""
        return self.backend is BackendName.AUTO


@dataclass(frozen=True, slots=True)
class GPUServiceSpec:
    template: Mapping[str, Any]
    workload: Label | None = None
    queue: Label = "default"
    priority: Annotated[int, Range(-PRIORITY_MAX, PRIORITY_MAX)] = 0
    port: Annotated[int, Range(1, 65_535)] = SERVING_PORT
    objective: Objective = field(default_factory=Objective)
    replicas: Replicas = field(default_factory=Replicas)
    gpu: GPURequest = field(default_factory=GPURequest)
    sharing: Sharing = field(default_factory=Sharing)
    optimize: ServiceOptimize = field(default_factory=ServiceOptimize)
    spot: Spot = field(default_factory=Spot)
    # For compiled artifacts, so that a new replica does not compile again.
    artifacts_claim_name: Subdomain | None = None
    suspend: bool = False

    def __post_init__(self) -> None:
        check(self)
        if self.optimize.backend is BackendName.EXTERNAL and self.replicas.park_after_seconds:
            raise FieldError("replicas.parkAfterSeconds", f"must be absent with {LEFT_AS_IT_IS}")
        # The rules for containers and sharing are those of the replicas' jobs.
        self.job_spec()

    def job_spec(self) -> GPUJobSpec:
        """Returns the spec of a job with this template and these requests."""
        return GPUJobSpec(
            template=self.template,
            workload=self.workload,
            queue=self.queue,
            priority=self.priority,
            gpu=self.gpu,
            sharing=self.sharing,
            spot=self.spot,
        )


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """One replica. Its job has the same name."""

    name: Annotated[str, Text(63, LABEL_PATTERN, 1)]
    revision: Annotated[str, Text(16, clip=True)]
    ready: bool = False
    # Where it answers, once it is ready.
    address: Annotated[str, Text(64, clip=True)] = ""
    node: Annotated[str, Text(253, clip=True)] = ""
    # Why it is not ready.
    message: Annotated[str, Text(512, clip=True)] = ""
    # Whether its weights are in the memory of the host. It is not ready then.
    parked: bool = False
    # Since when a replica that has answered does not answer.
    unavailable_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class GateStatus:
    """The gate in front of the replicas. Its pod has the same name."""

    name: Annotated[str, Text(63, LABEL_PATTERN, 1)]
    ready: bool = False
    # Where it takes requests, once it is ready.
    address: Annotated[str, Text(64, clip=True)] = ""
    # Why it is not ready.
    message: Annotated[str, Text(512, clip=True)] = ""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the ready replicas answered in the last minute, together."""

    requests_per_second: Rate = 0.0
    # None without requests.
    within_objective_percent: MeasuredPercent | None = None
    # The slowest replica's.
    latency: RequestLatency | None = None
    # Average of the time in which a replica executed a batch.
    busy_percent: MeasuredPercent = 0.0
    refused: Count = 0
    failed: Count = 0
    # Seconds of execution for 1,000 requests.
    gpu_seconds_per_thousand: Rate | None = None


@dataclass(frozen=True, slots=True)
class ServiceSummary:
    """Texts for the columns of `kubectl get`."""

    ready: Annotated[str, Text(32, clip=True)] = ""
    backend: Annotated[str, Text(64, clip=True)] = ""
    latency: Annotated[str, Text(64, clip=True)] = ""
    reason: Annotated[str, Text(200, clip=True)] = ""


@dataclass(frozen=True, slots=True)
class GPUServiceStatus:
    observed_generation: Count = 0
    # The revision that new replicas get.
    revision: Annotated[str, Text(16, clip=True)] = ""
    wanted_replicas: SmallCount = 0
    ready_replicas: SmallCount = 0
    # Ready replicas of `revision`.
    updated_replicas: SmallCount = 0
    replicas: Annotated[tuple[ReplicaStatus, ...], Items(2 * REPLICAS_MAX, clip=True)] = ()
    # None if the spec needs none, or before one is created.
    gate: GateStatus | None = None
    traffic: Traffic | None = None
    # The result of the measurement of backends, and what it was measured for.
    choice: Choice | None = None
    choice_key: Annotated[str, Text(64, clip=True)] = ""
    choice_problem: Message = ""
    # Consecutive replicas that ended by themselves, and when the next one is created.
    failures: Annotated[int, Range(0, INT32_MAX)] = 0
    last_failed: Annotated[str, Text(63, clip=True)] = ""
    next_replica_at: datetime | None = None
    # Until when a removed replica is expected to hold its GPU.
    draining_until: datetime | None = None
    # Since when fewer replicas would do, and the most that were needed since then.
    fewer_since: datetime | None = None
    fewer_replicas: SmallCount = 0
    # Since when the newest revision is not complete.
    rollout_since: datetime | None = None
    summary: ServiceSummary = field(default_factory=ServiceSummary)
    observed_at: datetime | None = None
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class GPUService:
    metadata: Metadata
    spec: GPUServiceSpec
    status: GPUServiceStatus = field(default_factory=GPUServiceStatus)

    def __post_init__(self) -> None:
        problem = _NAME.problem(self.metadata.name)
        if problem is not None:
            raise FieldError("metadata.name", problem)
