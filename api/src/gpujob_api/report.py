"""What the worker tells the operator, and what it is answered.

A report is POSTed as JSON to GPUJOB_REPORT_URL; the last one is also the container's termination
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
from gpujob_api.settings import TunedSettings

TERMINATION_MESSAGE_BYTES_MAX = 4096
# JSON writes one character in up to 12 bytes, so the length in characters is found by trying.
_MESSAGE_CHARACTERS = (1024, 512, 256, 128, 64, 0)

Seconds = Annotated[float, Range(0, 10_000_000)]
# Diverging training and rounding must not cost the report that tells of them: clamped, not refused.
Loss = Annotated[float, Range(-FRACTION_MAX, FRACTION_MAX, clamp=True)]
WaitPercent = Annotated[float, Range(0, 100, clamp=True)]
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
    DRAINING = "draining"
    FINISHED = "finished"


class FailureClass(Enum):
    OUT_OF_MEMORY = "OutOfMemory"
    # The node's memory, of which a container has a limit too: another GPU would not help.
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
    # A broken size calculation asks for any number; that must not cost the report either.
    needed_bytes: Annotated[int, Range(0, INTEGER_MAX, clamp=True)] | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured way to run a step: plain (baseline) or with the settings in force."""

    step_seconds: Annotated[float, Range(0, 1_000_000)]
    peak_memory_bytes: GPUMemoryBytes
    samples_per_second: Annotated[float, Range(0, 10**12)] | None = None


@dataclass(frozen=True, slots=True)
class Speedup:
    """How many times as fast the settings in force are, with the 95 % interval of the ratio.

    Forward and backward on one batch of the script, and the optimizer's step where its kernel was
    chosen; loading of data and exchange with other processes are not in it. The script's own way
    and the settings in force ran in turns, so on the same GPU beside the same co-tenants, and their
    number was fixed before the first. Where a memory limit binds, both sides keep it.
    """

    ratio: Factor
    low: Factor
    high: Factor
    # Runs of each side.
    pairs: Count


@dataclass(frozen=True, slots=True)
class MemoryPeaks:
    """Peaks of what was allocated, apart: each of them can be the one that a GPU must hold."""

    forward_backward_bytes: GPUMemoryBytes
    optimizer_bytes: GPUMemoryBytes


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What a step makes of its GPU, with the settings in force.

    FLOP are those of the model's products, forward and backward, without what is computed twice.
    Utilization and joules are the GPU's, whoever else runs on it.
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
    """What the next attempt continues from: the state of this one, the beginning, or a checkpoint
    that the script vouches for and nothing compared."""

    EXACT = "Exact"
    FROM_BEGINNING = "FromBeginning"
    BEST_EFFORT = "BestEffort"


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """The checkpoint of `step` did not bring the run back, so that the attempt starts from the
    beginning."""

    step: Count
    reason: Message


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one worker. `sequence` only grows within an attempt."""

    attempt: Annotated[int, Range(0, INT32_MAX)]
    phase: WorkerPhase
    rank: Annotated[int, Range(0, INT32_MAX)] = 0
    sequence: Count = 0
    step: Count = 0
    steps_total: Count | None = None
    loss: Loss | None = None
    baseline: Timing | None = None
    current: Timing | None = None
    peaks: MemoryPeaks | None = None
    efficiency: Efficiency | None = None
    data_wait_percent: WaitPercent | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: Seconds | None = None
    # Of the settings in force; None where that was not measured, and in other modes than Auto.
    speedup: Speedup | None = None
    # Steps that changed nothing because a float16 gradient overflowed.
    skipped_steps: Count | None = None
    resumed_from_step: Count | None = None
    checkpoint: CheckpointReport | None = None
    # None until the worker knows it, which is before its first checkpoint.
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
        """The report in at most 4,096 bytes: explanations go first, then the texts' tails."""
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


@dataclass(frozen=True, slots=True)
class Reply:
    """The operator's answer to a report."""

    interval_seconds: float = 2.0
    stop: StopRequest | None = None

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Reply":
        return decode(cls, parse_json(text, "reply"), "reply")
