"""What was measured of one application: step times by placement, and progress by batch size."""

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.pollux.interpolation import Array, interpolate

Placement = tuple[int, ...]

# Passes over the data that make a job, and the largest batch of a GPU where a trace goes further
# than was used: constants of the published simulator.
EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_GPU_BATCH_MAX = {"yolov3": 8}
_NODES_MEASURED_MAX = 16


@dataclass(frozen=True, slots=True)
class Epochs:
    """One batch size's training run, a value an epoch."""

    progress: tuple[float, ...]
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """How a batch is spread: `gpu_batch` samples a GPU and pass, `accumulated` further passes."""

    gpu_batch: int
    accumulated: int


@dataclass(eq=False)
class Application:
    """Measured points and the published rules to interpolate between them."""

    name: str
    epochs: int
    runs: Mapping[int, Epochs]
    # placement as its digits -> (GPU batches ascending, (step, sync) seconds)
    recorded: Mapping[str, tuple[Array, Array]]
    # (nodes, GPUs, GPU batch) and (step, sync) seconds of everything measured
    points: Array
    point_seconds: Array
    gpu_batch_max: int
    _step: dict[tuple[Placement, int], tuple[float, float]] = field(
        default_factory=dict[tuple[Placement, int], tuple[float, float]]
    )

    @property
    def batch_min(self) -> int:
        return min(self.runs)

    @property
    def batch_max(self) -> int:
        return max(self.runs)

    def batch_plan(self, batch: int, gpus: int) -> BatchPlan:
        """Even parts, rounded up; a single GPU with more than the smallest batch accumulates."""
        per_gpu = math.ceil(batch / gpus - 1e-8)
        accumulated = math.ceil(per_gpu / self.gpu_batch_max - 1e-8) - 1
        if gpus == 1 and batch > self.batch_min:
            accumulated = max(1, accumulated)
        gpu_batch = math.ceil(per_gpu / (accumulated + 1) - 1e-8)
        most = int(self.batch_max / (gpus * (accumulated + 1)))
        return BatchPlan(min(gpu_batch, most), accumulated)

    def iteration_seconds(self, placement: Placement, plan: BatchPlan) -> float:
        """One optimizer step: the passes before the last one need no synchronisation."""
        step, sync = self.step_seconds(placement, plan.gpu_batch)
        return step + (step - sync) * plan.accumulated

    def step_seconds(self, placement: Placement, gpu_batch: int) -> tuple[float, float]:
        """(step, synchronisation) of one pass on GPUs spread over nodes as `placement` says."""
        key = canonical(placement), gpu_batch
        if key not in self._step:
            self._step[key] = self._interpolate(*key)
        return self._step[key]

    def _interpolate(self, placement: Placement, gpu_batch: int) -> tuple[float, float]:
        known = self.recorded.get("".join(map(str, placement)))
        if known is not None:
            batches, seconds = known
            if not batches[0] <= gpu_batch <= batches[-1]:
                raise ValueError(f"{self.name}: no step time for {gpu_batch} samples a GPU")
            step, sync = (np.interp(gpu_batch, batches, seconds[:, n]) for n in (0, 1))
        else:
            nodes = min(len(placement), _NODES_MEASURED_MAX)
            at = np.array([nodes, sum(placement), gpu_batch], dtype=float)
            step, sync = interpolate(self.points, self.point_seconds, at)
        return float(step), float(sync)

    def gain(self, batch: int, epoch: int) -> float:
        """Progress of one step with `batch`, in steps with the smallest batch."""
        sqr, var = self._gradients(batch, epoch)
        return (var + sqr) / (var / (batch / self.batch_min) + sqr)

    def _gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        low = max(size for size in self.runs if size <= batch)
        high = min(size for size in self.runs if size >= batch)
        below, above = self.runs[low], self.runs[high]
        part = (batch - low) / (high - low) if high > low else 0.0
        return (
            (1 - part) * below.grad_sqr[epoch] + part * above.grad_sqr[epoch],
            (1 - part) * below.grad_var[epoch] + part * above.grad_var[epoch],
        )

    def progress_after(self, epochs: int) -> float:
        """Progress at which this many epochs are over."""
        return min(run.progress[epochs - 1] for run in self.runs.values()) if epochs else 0.0


def canonical(placement: Placement) -> Placement:
    """The same ring of nodes, started where it reads smallest."""
    return min(placement[index:] + placement[:index] for index in range(len(placement)))


def read_applications(folder: Path) -> dict[str, Application]:
    """All applications under `folder` whose number of epochs is known."""
    return {
        path.name: _read(path)
        for path in sorted(folder.iterdir())
        if path.name in EPOCHS and (path / "placements.csv").exists()
    }


def _read(folder: Path) -> Application:
    recorded: dict[str, list[tuple[int, float, float]]] = {}
    for row in _rows(folder / "placements.csv"):
        recorded.setdefault(row["placement"], []).append(_timing(row))
    points, seconds = _all_points(recorded, _rows(folder / "scalability.csv"))
    batches = [timing[0] for timings in recorded.values() for timing in timings]
    return Application(
        name=folder.name,
        epochs=EPOCHS[folder.name],
        runs={int(path.stem.split("-")[1]): _run(path) for path in folder.glob("validation-*.csv")},
        recorded={placement: _sorted(timings) for placement, timings in recorded.items()},
        points=points,
        point_seconds=seconds,
        gpu_batch_max=_GPU_BATCH_MAX.get(folder.name, max(batches)),
    )


def _timing(row: Mapping[str, str]) -> tuple[int, float, float]:
    return int(float(row["local_bsz"])), float(row["step_time"]), float(row["sync_time"])


def _sorted(timings: list[tuple[int, float, float]]) -> tuple[Array, Array]:
    rows = np.array(sorted(timings), dtype=float)
    return rows[:, 0], rows[:, 1:]


def _all_points(
    recorded: Mapping[str, list[tuple[int, float, float]]], scalability: Iterable[Mapping[str, str]]
) -> tuple[Array, Array]:
    """Placements of equally many nodes and GPUs count as one point, their mean."""
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
    for placement, timings in recorded.items():
        for batch, step, sync in timings:
            key = len(placement), sum(map(int, placement)), batch
            found.setdefault(key, []).append((step, sync))
    points = [key for key in sorted(found)]
    seconds = [np.mean(found[key], axis=0) for key in points]
    for row in scalability:
        batch, step, sync = _timing(row)
        points.append((int(row["num_nodes"]), int(row["num_replicas"]), batch))
        seconds.append(np.array([step, sync]))
    return np.array(points, dtype=float), np.array(seconds)


def _run(path: Path) -> Epochs:
    rows = list(_rows(path))
    progress, sqr, var = (
        tuple(float(row[name]) for row in rows) for name in ("progress", "grad_sqr", "grad_var")
    )
    return Epochs(progress, sqr, var)


def _rows(path: Path) -> Iterable[Mapping[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)
