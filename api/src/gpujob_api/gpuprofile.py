"""GPUProfile: what is known about a workload from earlier runs, one entry a card model."""

from dataclasses import dataclass, field
from datetime import datetime

from gpujob_api.meta import Condition, Metadata
from gpujob_api.report import Timing
from gpujob_api.settings import TunedSettings


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """Measured on one card model with one torch version."""

    gpu_model: str
    torch_version: str
    memory_bytes: int
    utilization_percent: float
    samples: int
    updated_at: datetime
    baseline: Timing | None = None
    current: Timing | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class GPUProfileSpec:
    """What the workload is: the fingerprint's inputs, for people to recognise it."""

    fingerprint: str
    image: str
    command: tuple[str, ...] = ()
    gpus_per_worker: int = 1
    workers: int = 1


@dataclass(frozen=True, slots=True)
class GPUProfileStatus:
    observed_generation: int = 0
    entries: tuple[ProfileEntry, ...] = ()
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class GPUProfile:
    metadata: Metadata
    spec: GPUProfileSpec
    status: GPUProfileStatus = field(default_factory=GPUProfileStatus)
