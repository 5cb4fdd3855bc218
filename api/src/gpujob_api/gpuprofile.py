"""GPUProfile: measurements of a workload from earlier runs, one entry for each GPU model."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

from gpujob_api.bounds import (
    Count,
    GPUMemoryBytes,
    Items,
    Label,
    Model,
    Percent,
    Range,
    Text,
    Version,
)
from gpujob_api.codec import check
from gpujob_api.gpujob import GPUS_PER_WORKER_MAX, WORKERS_MAX
from gpujob_api.meta import Conditions, Metadata
from gpujob_api.report import Joules, Seconds, Timing
from gpujob_api.settings import TunedSettings

SLOWDOWN_PERCENT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SharedPace:
    """How much longer a step took beside others than alone, on GPUs whose tenants' utilizations
    summed up to less than `up_to_percent`."""

    up_to_percent: Annotated[int, Range(1, 10_000)]
    slowdown_percent: Annotated[float, Range(0, SLOWDOWN_PERCENT_MAX, clamp=True)]


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """Measured on one GPU model with one torch version."""

    gpu_model: Model
    torch_version: Version
    memory_bytes: GPUMemoryBytes
    utilization_percent: Percent
    samples: Count
    updated_at: datetime
    baseline: Timing | None = None
    current: Timing | None = None
    tuned: TunedSettings | None = None
    tuning_seconds: Seconds | None = None
    # With GPUs to itself: the fastest step, and what one of its GPUs drew for it.
    alone_step_seconds: Seconds | None = None
    alone_joules_per_step: Joules | None = None
    shared: Annotated[tuple[SharedPace, ...], Items(8, keys=("up_to_percent",))] = ()


@dataclass(frozen=True, slots=True)
class GPUProfileSpec:
    """What the workload is: the fingerprint's inputs, for people to recognise it."""

    fingerprint: Annotated[str, Text(128, characters_min=1)]
    image: Annotated[str, Text(1024)]
    command: Annotated[tuple[Annotated[str, Text(1024, clip=True)], ...], Items(64, clip=True)] = ()
    gpus_per_worker: Annotated[int, Range(1, GPUS_PER_WORKER_MAX)] = 1
    workers: Annotated[int, Range(1, WORKERS_MAX)] = 1
    # The name that jobs give it, if they do: image and command are then those of the first one.
    workload: Label | None = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GPUProfileStatus:
    observed_generation: Count = 0
    entries: Annotated[
        tuple[ProfileEntry, ...], Items(64, keys=("gpu_model", "torch_version"))
    ] = ()
    conditions: Conditions = ()


@dataclass(frozen=True, slots=True)
class GPUProfile:
    metadata: Metadata
    spec: GPUProfileSpec
    status: GPUProfileStatus = field(default_factory=GPUProfileStatus)
