"""What the worker tells the operator, and what it is answered.

A report is POSTed as JSON to GPUJOB_REPORT_URL; the last one is also the container's termination
message, so that nothing depends on the network at the end.
"""

import json
from dataclasses import dataclass, replace
from enum import Enum

from gpujob_api.codec import decode, encode
from gpujob_api.settings import TunedSettings

TERMINATION_MESSAGE_BYTES_MAX = 4096


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
    DATA = "Data"
    USER_ERROR = "UserError"
    CHECKPOINT = "Checkpoint"
    NODE_LOST = "NodeLost"
    HUNG = "Hung"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Failure:
    failure_class: FailureClass
    message: str
    needed_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One measured way to run a step: plain (baseline) or with the settings in force."""

    step_seconds: float
    peak_memory_bytes: int
    samples_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """The newest committed checkpoint of this attempt's directory."""

    step: int
    bytes: int = 0
    write_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one worker. `sequence` only grows within an attempt."""

    attempt: int
    phase: WorkerPhase
    rank: int = 0
    sequence: int = 0
    step: int = 0
    steps_total: int | None = None
    loss: float | None = None
    baseline: Timing | None = None
    current: Timing | None = None
    data_wait_percent: float | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: float | None = None
    resumed_from_step: int | None = None
    checkpoint: CheckpointReport | None = None
    failure: Failure | None = None
    device: str = ""
    torch_version: str = ""
    explain: tuple[str, ...] = ()

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Report":
        return decode(cls, json.loads(text), "report")

    def termination_message(self) -> str:
        """The report in at most 4,096 bytes: explanations go first, then the message's tail."""
        report = self
        for shorter in (report, replace(report, explain=())):
            if len(shorter.to_text().encode()) <= TERMINATION_MESSAGE_BYTES_MAX:
                return shorter.to_text()
        if self.failure is None:
            return replace(self, explain=()).to_text()
        failure = replace(self.failure, message=self.failure.message[:500])
        return replace(self, explain=(), failure=failure).to_text()


@dataclass(frozen=True, slots=True)
class StopRequest:
    reason: str
    deadline_seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """The operator's answer to a report."""

    interval_seconds: float = 2.0
    stop: StopRequest | None = None

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "Reply":
        return decode(cls, json.loads(text), "reply")
