"""kubectl gpujob why --sooner: changes of a pending job that make it start earlier.

Each change is tried: the planner runs forward without and with it. A change that does not help is
not offered.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, GPUJobSpec, SpotPolicy
from gpujob_api.quantities import GIB, MIB, Memory, format_memory
from gpujob_operator.cycle import find_job
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.model.starts import may_start
from gpujob_operator.decide.simulation.run import Limits, simulate
from kubectl_gpujob import text
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.observations import Observation

Row = tuple[str, str]
LIMITS = Limits()
# A smaller gain is not worth an edit.
GAIN_SECONDS_MIN = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """A field of the spec with another value, in words."""

    words: str
    spec: GPUJobSpec


@dataclass(frozen=True, slots=True)
class Sooner:
    """The simulated start in seconds, and those of the changes. None: not within the horizon."""

    job: GPUJob
    starts_seconds: float | None
    tried: tuple[tuple[Change, float | None], ...]

    @property
    def better(self) -> list[tuple[Change, float]]:
        """The changes with an earlier start, the earliest first."""
        before = self.starts_seconds
        found = [
            (change, after)
            for change, after in self.tried
            if after is not None and (before is None or after <= before - GAIN_SECONDS_MIN)
        ]
        return sorted(found, key=lambda one: one[1])


def found(observation: Observation, name: str) -> Sooner:
    """Tries the changes of NAMESPACE/NAME. Raises `UserError` if the job is not pending."""
    snapshot = observation.snapshot
    try:
        job = find_job(snapshot.jobs, name)
    except FieldError as error:
        raise UserError(error.problem) from None
    if not may_start(job, job.status):
        raise UserError(f"--sooner is for pending jobs that may start; {name} is not one")
    before = _starts_seconds(observation, job, job.spec)
    changes = list(changes_of(job, snapshot)) if before is None or before > 0 else []
    tried = tuple((one, _starts_seconds(observation, job, one.spec)) for one in changes)
    return Sooner(job, before, tried)


def changes_of(job: GPUJob, snapshot: Snapshot) -> Iterator[Change]:
    """Yields the changes that are worth a try. Priority is not among them."""
    spec = job.spec
    yield from _less_memory(spec, snapshot)
    if spec.spot.policy is not SpotPolicy.PREFER:
        policy = replace(spec.spot, policy=SpotPolicy.PREFER)
        yield Change("spec.spot.policy Prefer", replace(spec, spot=policy))


def _less_memory(spec: GPUJobSpec, snapshot: Snapshot) -> Iterator[Change]:
    """Yields half of the hint, and the largest hints for which a GPU has room."""
    hint = spec.gpu.memory
    if hint is None:
        # The job takes a GPU of any size.
        return
    sizes = {hint.bytes // 2, *_largest_free_bytes(snapshot)}
    for size in sorted({_rounded(one) for one in sizes}, reverse=True):
        if MIB <= size < hint.bytes:
            changed = replace(spec, gpu=replace(spec.gpu, memory=Memory(size)))
            yield Change(f"spec.gpu.memory {format_memory(size)}", changed)


def _rounded(size_bytes: int) -> int:
    unit = GIB if size_bytes >= GIB else MIB
    return size_bytes // unit * unit


def _largest_free_bytes(snapshot: Snapshot) -> tuple[int, int]:
    """Returns the largest memory that no attempt reserves, of all GPUs and of idle ones."""
    reserved = Counter[str]()
    for job in snapshot.jobs:
        placement, held = job.status.placement, job.status.reservation
        if placement is None or held is None or job.finished:
            continue
        for worker in placement.workers:
            for uuid in worker.gpus:
                reserved[uuid] += held.memory_bytes
    gpus = [gpu for node in snapshot.gpu_nodes for gpu in node.status.gpus if gpu.healthy]
    free = [
        (gpu.memory_total_bytes - max(reserved[gpu.uuid], gpu.memory_used_bytes), gpu.uuid)
        for gpu in gpus
    ]
    idle = [size for size, uuid in free if uuid not in reserved]
    return max(free, default=(0, ""))[0], max(idle, default=0)


def _starts_seconds(observation: Observation, job: GPUJob, spec: GPUJobSpec) -> float | None:
    uid, snapshot = job.metadata.uid, observation.snapshot
    generation = job.metadata.generation + (spec is not job.spec)
    edited = replace(job, metadata=replace(job.metadata, generation=generation), spec=spec)
    jobs = tuple(edited if one.metadata.uid == uid else one for one in snapshot.jobs)
    timeline = simulate(replace(snapshot, jobs=jobs), observation.now, LIMITS)
    return timeline.jobs[uid].starts_seconds


def headline(one: Sooner, observation: Observation) -> str:
    when = f"{observation.now:%Y-%m-%d %H:%M:%S} UTC"
    start = _start(one.starts_seconds)
    name = one.job.metadata.key
    return f"{name} starts {start}, simulated from {observation.source} of {when}"


def rows(one: Sooner) -> list[Row]:
    better = [("Sooner", f"{change.words}: {_start(after)}") for change, after in one.better]
    if better:
        return better
    if one.starts_seconds == 0:
        return [("Sooner", "nothing to change")]
    tried = ", ".join(change.words for change, _ in one.tried)
    return [("Sooner", f"no change helps; tried: {tried}" if tried else "no change to try")]


def as_json(one: Sooner) -> dict[str, Any]:
    return {
        "namespace": one.job.metadata.namespace,
        "name": one.job.metadata.name,
        "startsSeconds": one.starts_seconds,
        "sooner": [
            {"change": change.words, "startsSeconds": after} for change, after in one.better
        ],
        "tried": [change.words for change, _ in one.tried],
    }


def _start(seconds: float | None) -> str:
    if seconds is None:
        return f"not within {text.duration(LIMITS.horizon_seconds)}"
    return "at once" if seconds < 1 else f"in about {text.duration(seconds)}"
