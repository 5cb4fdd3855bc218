"""Settings of a serving process, and its report: what a GPUService and its replicas exchange.

The settings are the JSON in GPUJOB_SERVING. A process without them serves with the defaults.
"""

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Annotated

from gpujob_api.bounds import Count, Items, Message, Percent, Range, Text
from gpujob_api.codec import FieldError, check, decode, encode, parse_json
from gpujob_api.settings import Precision

ENV_SERVING = "GPUJOB_SERVING"
# The address to listen on. All addresses of the host by default.
ENV_SERVING_HOST = "GPUJOB_SERVING_HOST"
# A folder that keeps compiled models from one start to the next. None are kept without it.
ENV_SERVING_CACHE = "GPUJOB_SERVING_CACHE"
SERVING_PORT = 8000
CANDIDATES_MAX = 24
# Of a text that is to be shortened, for each candidate that is kept.
_CHARACTERS_PER_CANDIDATE = 64

Milliseconds = Annotated[float, Range(0, 10**9)]
# Clamped instead of rejected, because a figure out of range must not cost the report.
MillisecondsMeasured = Annotated[float, Range(0, 10**9, clamp=True)]
Rate = Annotated[float, Range(0, 10**12, clamp=True)]
MeasuredPercent = Annotated[float, Range(0, 100, clamp=True)]
NeededPercent = Annotated[float, Range(0, 10_000, clamp=True)]
Name = Annotated[str, Text(63, clip=True)]


class BatchingPolicy(Enum):
    """When queued requests are dispatched as one batch.

    Immediate: as soon as the device is free. Deadline: as late as the objective allows. Auto:
    Immediate alone on a GPU, Deadline beside others. Off: each request alone.
    """

    AUTO = "Auto"
    IMMEDIATE = "Immediate"
    DEADLINE = "Deadline"
    OFF = "Off"


class BackendName(Enum):
    """What executes the model. Auto is the one that a measurement chose, or Eager before it."""

    AUTO = "Auto"
    EAGER = "Eager"
    COMPILE = "Compile"
    CUDA_GRAPH = "CudaGraph"
    AOT_INDUCTOR = "AOTInductor"
    ONNX_RUNTIME = "OnnxRuntime"
    TENSOR_RT = "TensorRT"
    # An engine of the user's own, which is left as it is.
    EXTERNAL = "External"


# Those whose compiled model is a file, which a claim can keep.
WITH_A_FILE = frozenset({BackendName.AOT_INDUCTOR, BackendName.ONNX_RUNTIME, BackendName.TENSOR_RT})


class Quantization(Enum):
    """Number formats that may replace weights. Never used unless it is requested."""

    OFF = "Off"
    AUTO = "Auto"
    INT8 = "int8"
    FLOAT8 = "float8"


@dataclass(frozen=True, slots=True)
class Objective:
    """The latency that `percentile` percent of the requests must keep, queueing included."""

    latency_milliseconds: Annotated[float, Range(1, 3_600_000)] = 100.0
    percentile: Annotated[float, Range(50, 100)] = 99.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Batching:
    policy: BatchingPolicy = BatchingPolicy.AUTO
    # Samples in a batch. None is Auto: as many as the objective and the memory permit.
    max_size: Annotated[int, Range(1, 65_536)] | None = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The difference from the model as written that a backend may have."""

    # The 2-norm of the difference, in percent of that of the reference.
    max_relative_error_percent: Annotated[float, Range(0, 100)] = 2.0
    # Rows whose largest entry is in the same place.
    min_agreement_percent: Percent = 99.5
    # How far the script's own metric may fall, in percent of that of the reference.
    max_drop_percent: Percent = 0.5

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """GPUJOB_SERVING. With `measure`, the process measures backends, reports its choice, and
    ends.
    """

    objective: Objective = field(default_factory=Objective)
    batching: Batching = field(default_factory=Batching)
    accuracy: Accuracy = field(default_factory=Accuracy)
    backend: BackendName = BackendName.AUTO
    precision: Precision = Precision.AUTO
    quantization: Quantization = Quantization.OFF
    port: Annotated[int, Range(0, 65_535)] = SERVING_PORT
    # Requests per second for which a measurement chooses.
    expected_rate: Annotated[float, Range(0, 10**9)] | None = None
    measure: bool = False
    # After a stop request, requests are still accepted for this long, because a Service sends
    # requests to a pod until all nodes have learned of its end.
    drain_delay_seconds: Annotated[float, Range(0, 600)] = 3.0

    def __post_init__(self) -> None:
        check(self)
        if self.backend is BackendName.EXTERNAL and self.measure:
            raise FieldError("measure", "needs a backend other than External")

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "ServingSettings":
        """Reads GPUJOB_SERVING. Raises `FieldError` with the variable and the field."""
        return decode(cls, parse_json(text, ENV_SERVING), ENV_SERVING)


@dataclass(frozen=True, slots=True)
class BatchTime:
    """How long a batch of b samples takes: `fixed + b * per_sample`."""

    fixed_milliseconds: MillisecondsMeasured
    per_sample_milliseconds: MillisecondsMeasured


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """From a request's arrival to its answer, without the network."""

    p50_milliseconds: MillisecondsMeasured
    p95_milliseconds: MillisecondsMeasured
    p99_milliseconds: MillisecondsMeasured


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to execute the model, and why it was refused if it was."""

    backend: Name
    precision: Precision
    accepted: bool
    reason: Annotated[str, Text(256, clip=True)] = ""
    samples_per_second: Rate | None = None
    time: BatchTime | None = None
    relative_error_percent: Annotated[float, Range(0, 10**6, clamp=True)] | None = None
    agreement_percent: MeasuredPercent | None = None
    memory_bytes: Count | None = None
    quantization: Quantization = Quantization.OFF


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a measurement of backends. The chosen one comes first in `candidates`."""

    backend: BackendName
    precision: Precision
    quantization: Quantization = Quantization.OFF
    device: Annotated[str, Text(128, clip=True)] = ""
    seconds: Annotated[float, Range(0, 10**7, clamp=True)] = 0.0
    reason: Message = ""
    candidates: Annotated[tuple[Candidate, ...], Items(CANDIDATES_MAX, clip=True)] = ()


@dataclass(frozen=True, slots=True)
class ServingReport:
    """What a serving process reports about itself. Rates, percents and recent figures are of the
    last minute.
    """

    ready: bool = False
    # Whether it can give its GPU memory back and keep its process.
    can_park: bool = False
    # For how long it has been parked: its weights are in the memory of the host, and requests are
    # refused. None if it is not.
    parked_seconds: Annotated[float, Range(0, 10**9, clamp=True)] | None = None
    # Since the process started.
    answered: Count = 0
    failed: Count = 0
    # Answered with 503 because the answer would have come too late, or while draining.
    refused: Count = 0
    queued: Count = 0
    # Requests that the model answered or failed for, and those that it failed for.
    recent_requests: Count = 0
    recent_failed: Count = 0
    # The first line of the newest failure. Empty if none is recent.
    recent_error: Annotated[str, Text(256, clip=True)] = ""
    requests_per_second: Rate = 0.0
    samples_per_second: Rate = 0.0
    # None without requests in the window.
    within_objective_percent: MeasuredPercent | None = None
    latency: RequestLatency | None = None
    # What requests of the last 10 s needed of the objective's latency, at its percentile: their
    # latency without the time for which a batch waited on purpose. A late request needed all of
    # its latency, and a refused one counts as 200.
    needed_percent: NeededPercent | None = None
    # Of the time, in which a batch was executed.
    busy_percent: MeasuredPercent = 0.0
    batch_samples: Rate | None = None
    time: BatchTime | None = None
    policy: BatchingPolicy = BatchingPolicy.IMMEDIATE
    backend: Name = BackendName.EAGER.value
    precision: Precision = Precision.FLOAT32
    choice: Choice | None = None

    def shortened(self, characters: int) -> "ServingReport":
        """Returns the report with at most about this many characters in each text, and fewer
        candidates the smaller the number is. The chosen one is the last to go.
        """
        error, choice = self.recent_error[: characters // 8], self.choice
        if choice is None:
            return replace(self, recent_error=error)
        kept = choice.candidates[: characters // _CHARACTERS_PER_CANDIDATE]
        candidates = tuple(replace(one, reason=one.reason[: characters // 8]) for one in kept)
        shorter = replace(choice, reason=choice.reason[:characters], candidates=candidates)
        return replace(self, recent_error=error, choice=shorter)
