"""Reads a Muri trace: what each job needs and how long its iterations take on each resource."""

import csv
import gzip
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

NODES = 8
GPUS_PER_NODE = 8
# The published simulator lengthens every measured iteration time by this factor.
ALONE_FACTOR = 1.015

# Seconds without progress which a model pays at 1, 2, 4, 8, 16 and 32 GPUs (published constants).
_RESTART_SIZES = (1, 2, 4, 8, 16, 32)
_RESTART_SECONDS = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
_RESTART_SECONDS_DEFAULT = 10


@dataclass(slots=True, eq=False)
class TraceJob:
    """One row. `stage_seconds` is per iteration on data loading, GPU and network."""

    index: int
    gpus: int
    submit_seconds: float
    iterations: float
    iteration_seconds: float
    stage_seconds: tuple[float, float, float]
    restart_seconds: float
    model: str
    priority: int
    # What a simulation writes.
    remaining_iterations: float = 0.0
    checked_seconds: float = 0.0
    running: bool = False
    end_seconds: float | None = None
    moves: int = 0
    attained_seconds: float = 0.0
    queue: int = field(default=0)

    @property
    def remaining_seconds(self) -> float:
        """Time left when alone on its GPUs."""
        return self.remaining_iterations * self.iteration_seconds


def restart_seconds(model: str, gpus: int) -> float:
    """What a restart of `model` on `gpus` GPUs costs; between two sizes, the larger one's."""
    row = _RESTART_SECONDS.get(model)
    if row is None:
        return _RESTART_SECONDS_DEFAULT
    return row[min(bisect_left(_RESTART_SIZES, gpus), len(row) - 1)]


def read_trace(path: Path) -> list[TraceJob]:
    """The jobs of a trace in order of submission, ready for one simulation.

    Raises ValueError for a gang of more than a node that is not a number of whole nodes.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as file:
        jobs = [_job(index, row) for index, row in enumerate(csv.DictReader(file))]
    return sorted(jobs, key=lambda job: job.submit_seconds)


def _job(index: int, row: dict[str, str]) -> TraceJob:
    gpus = int(row["num_gpu"])
    if gpus > GPUS_PER_NODE and gpus % GPUS_PER_NODE:
        raise ValueError(f"num_gpu of job {index}: {gpus} is not a number of whole nodes")
    iterations = float(row["iterations"])
    return TraceJob(
        index=index,
        gpus=gpus,
        submit_seconds=int(row["submit_time"]) / 1000,
        iterations=iterations,
        iteration_seconds=int(row["iteration_time"]) * ALONE_FACTOR / 1000,
        stage_seconds=(
            float(row["resource_time_0"]) / 1000,
            float(row["resource_time_1"]) / 1000,
            float(row["resource_time_2"]) / 1000,
        ),
        restart_seconds=restart_seconds(row["model_name"], gpus),
        model=row["model_name"],
        priority=int(row["priority"]),
        remaining_iterations=iterations,
    )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy achieved on a trace. Seconds."""

    average_jct_seconds: float
    makespan_seconds: float
    p99_jct_seconds: float
    restarts: int = 0


def outcome(jobs: list[TraceJob]) -> Outcome:
    """Averages as published: p99 is the sorted completion times' element at int(0.99 n)."""
    unfinished = sum(job.end_seconds is None for job in jobs)
    if unfinished:
        raise ValueError(f"{unfinished} of {len(jobs)} jobs never finished")
    ends = [(job.end_seconds or 0.0, job.submit_seconds) for job in jobs]
    times = sorted(end - submit for end, submit in ends)
    return Outcome(
        average_jct_seconds=sum(end - submit for end, submit in ends) / len(jobs),
        makespan_seconds=max(end for end, _ in ends),
        p99_jct_seconds=times[int(len(times) * 0.99)],
        restarts=sum(job.moves for job in jobs),
    )
