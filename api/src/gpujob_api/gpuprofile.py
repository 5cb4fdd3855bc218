"""GPUProfile: measurements of a workload from earlier runs, one entry for each GPU model."""

from collections.abc import Sequence
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
from gpujob_api.quantities import format_memory, format_seconds
from gpujob_api.report import Joules, Seconds, Timing
from gpujob_api.settings import TunedSettings

SLOWDOWN_PERCENT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class SharedPace:
    """How much longer a step took next to co-tenants than alone, on shared GPUs.

    It was measured while the tenants' utilizations added up to less than `up_to_percent`.
    """

    up_to_percent: Annotated[int, Range(1, 10_000)]
    slowdown_percent: Annotated[float, Range(0, SLOWDOWN_PERCENT_MAX, clamp=True)]


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """Measurements on one GPU model with one torch version."""

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
    # Measured without co-tenants: the fastest step, and the energy of one GPU for it.
    alone_step_seconds: Seconds | None = None
    alone_joules_per_step: Joules | None = None
    shared: Annotated[tuple[SharedPace, ...], Items(8, keys=("up_to_percent",))] = ()


@dataclass(frozen=True, slots=True)
class GPUProfileSpec:
    """The workload: the fingerprint's inputs, by which people recognize it."""

    fingerprint: Annotated[str, Text(128, characters_min=1)]
    image: Annotated[str, Text(1024)]
    command: Annotated[tuple[Annotated[str, Text(1024, clip=True)], ...], Items(64, clip=True)] = ()
    gpus_per_worker: Annotated[int, Range(1, GPUS_PER_WORKER_MAX)] = 1
    workers: Annotated[int, Range(1, WORKERS_MAX)] = 1
    # The name that jobs give the workload, if they do. Image and command are then those of the
    # first job.
    workload: Label | None = None

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class GPUProfileSummary:
    """The texts of the printer columns."""

    workload: Annotated[str, Text(128, clip=True)] = ""
    step: Annotated[str, Text(64, clip=True)] = ""
    memory: Annotated[str, Text(64, clip=True)] = ""


@dataclass(frozen=True, slots=True)
class GPUProfileStatus:
    observed_generation: Count = 0
    entries: Annotated[
        tuple[ProfileEntry, ...], Items(64, keys=("gpu_model", "torch_version"))
    ] = ()
    summary: GPUProfileSummary = field(default_factory=GPUProfileSummary)
    conditions: Conditions = ()


def summarize(spec: GPUProfileSpec, entries: Sequence[ProfileEntry]) -> GPUProfileSummary:
    """Returns the workload and its newest measurement for people: `train.py`, `1.4 s`."""
    workload = spec.workload or _program(spec.command) or spec.image
    if not entries:
        return GPUProfileSummary(workload)
    newest = entries[0]
    timing = newest.current or newest.baseline
    step = format_seconds(timing.step_seconds) if timing is not None else ""
    return GPUProfileSummary(workload, step, format_memory(newest.memory_bytes))


def _program(command: Sequence[str]) -> str:
    """Returns the script, the module of `python -m`, or the command's first word, without
    folders.
    """
    # Kubernetes passes a shell's command as one word.
    words = [word.rsplit("/", 1)[-1] for part in command for word in part.split()]
    script = next((word for word in words if word.endswith(".py")), "")
    if not script and "-m" in words[:-1]:
        script = words[words.index("-m") + 1]
    return script or next(iter(words), "")


@dataclass(frozen=True, slots=True)
class GPUProfile:
    metadata: Metadata
    spec: GPUProfileSpec
    status: GPUProfileStatus = field(default_factory=GPUProfileStatus)
