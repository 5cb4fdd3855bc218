"""The worker's reports to the operator, and the operator's replies.

A report is POSTed as JSON to GPUJOB_REPORT_URL. The last one is also the container's termination
message, so that nothing depends on the network at the end.
"""

import json
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated

from gpujob_api.bounds import (
    FRACTION_MAX,
    INT32_MAX,
    INTEGER_MAX,
    Count,
    GPUMemoryBytes,
    Items,
    Message,
    Model,
    Percent,
    Range,
    Text,
    Version,
)
from gpujob_api.codec import decode, encode, parse_json
from gpujob_api.serving import ServingReport
from gpujob_api.settings import Task, TunedSettings

TERMINATION_MESSAGE_BYTES_MAX = 4096
# JSON writes one character in up to 12 bytes, so the length in characters is found by trying.
_MESSAGE_CHARACTERS = (1024, 512, 256, 128, 64, 0)

Seconds = Annotated[float, Range(0, 10_000_000)]
# Clamped instead of rejected, because a diverging loss or rounding must not cost the report about
# it.
Loss = Annotated[float, Range(-FRACTION_MAX, FRACTION_MAX, clamp=True)]
WaitPercent = Annotated[float, Range(0, 100, clamp=True)]
Milliseconds = Annotated[float, Range(0, 10**9)]
Flop = Annotated[float, Range(0, 10**21)]
Joules = Annotated[float, Range(0, 10**9)]
Factor = Annotated[float, Range(0, 1_000_000)]
ProtectionReason = Annotated[str, Text(512, clip=True)]
Explanations = Annotated[tuple[Annotated[str, Text(512, clip=True)], ...], Items(64, clip=True)]


class WorkerPhase(Enum):
    STARTING = "starting"
    MEASURING = "measuring"
    TUNING = "tuning"
    TRAINING = "training"
    EVALUATING = "evaluating"
    CHECKPOINTING = "checkpointing"
    # It answers requests.
    SERVING = "serving"
    DRAINING = "draining"
    FINISHED = "finished"


class FailureClass(Enum):
    OUT_OF_MEMORY = "OutOfMemory"
    # The node's memory, for which a container has a limit too. Another GPU would not help.
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    DATA = "Data"
    USER_ERROR = "UserError"
    CHECKPOINT = "Checkpoint"
    NODE_LOST = "NodeLost"
    HUNG = "Hung"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    failure_class: FailureClass
    message: Message
    # A broken size calculation may request any number, which must not cost the report either.
    needed_bytes: Annotated[int, Range(0, INTEGER_MAX, clamp=True)] | None = None


@dataclass(frozen=True, slots=True)
class Latency:
    """How long calls of the model take, by the device's clock if it has one. Data loading is not
    included.
    """

    p50_milliseconds: Milliseconds
    p95_milliseconds: Milliseconds
    p99_milliseconds: Milliseconds
    # Calls behind the percentiles.
    calls: Count


@dataclass(frozen=True, slots=True)
class Timing:
    """Timing of one way to run a step: plain (baseline) or with the applied settings."""

    step_seconds: Annotated[float, Range(0, 1_000_000)]
    peak_memory_bytes: GPUMemoryBytes
    samples_per_second: Annotated[float, Range(0, 10**12)] | None = None
    # None in training.
    latency: Latency | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times faster the applied settings are, with the 95 % interval of the ratio.

    It covers forward and backward on one batch of the script, and the optimizer's step if its
    kernel was chosen. Data loading and communication with other processes are not included. The
    script's own way and the applied settings alternated, so they ran on the same GPU next to the
    same co-tenants. Their number was fixed before the first. If a memory limit binds, both sides
    keep it.
    """

    ratio: Factor
    low: Factor
    high: Factor
    # Runs of each side.
    pairs: Count


@dataclass(frozen=True, slots=True)
class MemoryPeaks:
    """Peaks of allocated memory in the two parts of a step. A GPU must hold either."""

    forward_backward_bytes: GPUMemoryBytes
    optimizer_bytes: GPUMemoryBytes


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How well a step uses its GPU with the applied settings.

    FLOP are those of the model's products, forward and backward, without recomputation. Utilization
    and joules are the GPU's, including other processes.
    """

    step_flop: Flop | None = None
    flop_per_second: Flop | None = None
    gpu_flop_per_second: Flop | None = None
    gpu_utilization_percent: Percent | None = None
    joules_per_step: Joules | None = None


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The newest committed checkpoint of this attempt's directory."""

    step: Count
    bytes: Count = 0
    write_seconds: Seconds = 0.0


class Protection(Enum):
    """What the next attempt continues from.

    It is this attempt's state, the beginning, or a checkpoint of the script that nothing verified.
    """

    EXACT = "Exact"
    FROM_BEGINNING = "FromBeginning"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """The checkpoint of `step` did not restore the run, so the attempt starts from the
    beginning.
    """

    step: Count
    reason: Message


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one worker. `sequence` only grows within an attempt."""

    attempt: Annotated[int, Range(0, INT32_MAX)]
    phase: WorkerPhase
    rank: Annotated[int, Range(0, INT32_MAX)] = 0
    sequence: Count = 0
    # `Inference` if steps are calls of the model, `Serving` if they are batches of requests. None
    # otherwise.
    task: Task | None = None
    step: Count = 0
    steps_total: Count | None = None
    loss: Loss | None = None
    baseline: Timing | None = None
    current: Timing | None = None
    serving: ServingReport | None = None
    peaks: MemoryPeaks | None = None
    efficiency: Efficiency | None = None
    data_wait_percent: WaitPercent | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: Seconds | None = None
    # Of the applied settings. None if it was not measured, and in modes other than Auto.
    speedup: Speedup | None = None
    # Steps that changed nothing because a float16 gradient overflowed.
    skipped_steps: Count | None = None
    # For how long the process left its GPU idle for a service, which no step time includes. None if
    # it cannot do this.
    yielded_seconds: Seconds | None = None
    # The time since the process last finished a step, a backward pass or a batch, evaluations
    # included. None before the first of them.
    idle_seconds: Seconds | None = None
    resumed_from_step: Count | None = None
    checkpoint: CheckpointReport | None = None
    # None until the worker has determined it, which it does before its first checkpoint.
    protection: Protection | None = None
    protection_reason: ProtectionReason | None = None
    resume_refused: ResumeRefused | None = None
    failure: Failure | None = None
    device: Model = ""
    torch_version: Version = ""
    explain: Explanations = ()

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Report":
        return decode(cls, parse_json(text, "report"), "report")

    def termination_message(self) -> str:
        """Returns the report in at most 4,096 bytes. Explanations are cut first, then the texts'
        tails.
        """
        text = self.to_text()
        for characters in _MESSAGE_CHARACTERS:
            if len(text.encode()) <= TERMINATION_MESSAGE_BYTES_MAX:
                break
            text = self._without_explanations(characters).to_text()
        return text

    def _without_explanations(self, characters: int) -> "Report":
        failure, refused, why = self.failure, self.resume_refused, self.protection_reason
        if failure is not None:
            failure = replace(failure, message=failure.message[:characters])
        if refused is not None:
            refused = replace(refused, reason=refused.reason[:characters])
        return replace(
            self,
            serving=self.serving and self.serving.shortened(characters),
            explain=(),
            failure=failure,
            resume_refused=refused,
            protection_reason=why[:characters] if why is not None else None,
        )


@dataclass(frozen=True, slots=True)
class StopRequest:
    reason: str
    deadline_seconds: float


# The reason of a stop request to a worker whose attempt was given up before it began.
STOP_ATTEMPT_OVER = "AttemptOver"

# A training keeps half of its time, whatever a service on its GPU needs.
YIELD_PERCENT_MAX = 50
YIELD_INTERVALS = 3


@dataclass(frozen=True, slots=True)
class Reply:
    """The operator's answer to a report."""

    interval_seconds: float = 2.0
    stop: StopRequest | None = None
    # Whether other jobs hold a part of the worker's GPU. None if the operator does not state it.
    shared: bool | None = None
    # The share of its time for which a training leaves its GPU idle. It holds for
    # `YIELD_INTERVALS` intervals, so it ends by itself if replies stop.
    yield_percent: Annotated[int, Range(0, YIELD_PERCENT_MAX, clamp=True)] = 0
    # A serving process has to park, or to wake, once it can. None: it stays as it is.
    park: bool | None = None

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Reply":
        return decode(cls, parse_json(text, "reply"), "reply")
