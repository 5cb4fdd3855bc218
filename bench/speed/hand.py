"""What somebody with time would find: every combination of settings, tried on the real workload.

    python -m bench.speed.hand gpt2 --size small --seconds 30

Runs inside a race only. Precision, memory format, optimizer kernel, torch.compile, parts of a batch
and loader workers, in all combinations that make sense, timed in turns; then the best of the three
fastest, which are timed again, trains from the start. The model is one and the same for all, so
that memory is not the limit.
"""

import argparse
import itertools
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from bench.speed.ways import workload_module
from bench.turns.participant import participant

ROUNDS_MIN, ROUNDS_MAX = 3, 5
# So many of the fastest points are timed a second time.
CONFIRMED = 3
WORKERS = (0, 4)


@dataclass(frozen=True, slots=True)
class Point:
    """One combination. `parts`: how many steps of accumulation make up the batch."""

    precision: str = "float32"
    channels_last: bool = False
    fused: bool = False
    compiled: bool = False
    parts: int = 1
    workers: int = 0

    def __str__(self) -> str:
        chosen = [self.precision]
        chosen += [n for n in ("channels_last", "fused", "compiled") if getattr(self, n)]
        chosen += [f"{self.parts} parts"] if self.parts > 1 else []
        chosen += [f"{self.workers} workers"] if self.workers else []
        return " + ".join(chosen)


class Bench:
    """One workload with its parts, to be stepped under any point."""

    def __init__(self, name: str, size: str) -> None:
        self._workload = workload_module(name)
        self._args = self._workload.get_arguments(["--size", size])
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        torch.manual_seed(0)
        self._loaders = {0: self._workload.get_loader(self._args)}
        self.model: nn.Module = self._workload.get_model(self._args).to(self.device)
        self._start = {name: value.clone() for name, value in self.model.state_dict().items()}
        self._random = torch.get_rng_state()
        self._optimizers: dict[bool, Any] = {}
        self._compiled: Any = None
        self._channels_last = False
        self._clip_norm: float | None = getattr(self._workload, "CLIP_NORM", None)

    def points(self, *, compiled: bool) -> list[Point]:
        """All combinations that make sense here."""
        kinds = [type(module) for module in self.model.modules()]
        cuda = self.device == "cuda"
        choices = itertools.product(
            ("float32", "tf32", "bfloat16") if cuda else ("float32", "bfloat16"),
            (False, True) if nn.Conv2d in kinds else (False,),
            (False, True),
            (False, True) if compiled else (False,),
            (1,) if nn.BatchNorm2d in kinds else (1, 2),
            sorted({min(count, len(os.sched_getaffinity(0)) - 1) for count in WORKERS}),
        )
        return [point for point in (Point(*c) for c in choices) if self._sensible(point)]

    def _sensible(self, point: Point) -> bool:
        """Leaves out what nobody would try, above all where it costs another compilation."""
        if point.compiled and (point.parts > 1 or point.precision == "tf32"):
            return False
        if self.device == "cpu":
            return True
        if point.compiled and (point.precision != "bfloat16" or not self._last_if_images(point)):
            return False
        if point.precision == "tf32" and (point.fused or point.channels_last):
            return False
        return point.parts == 1 or (point.precision == "bfloat16" and point.fused)

    def _last_if_images(self, point: Point) -> bool:
        return point.channels_last or nn.Conv2d not in map(type, self.model.modules())

    def seconds(self, point: Point, steps: int) -> float:
        """Time of `steps` steps, each with the batch it takes, from the second one of a pass on.

        The first batch comes before: waiting for it is mostly waiting for workers to start, which
        is no part of a step. It is in no step, so that as many batches as steps are timed.
        """
        # On a busy machine the processor's time says more; on a GPU it would say nothing.
        clock = time.perf_counter if self.device == "cuda" else time.process_time
        batches = self.batches(point)
        next(batches)
        self._synchronize()
        start = clock()
        for _ in range(steps):
            self.step(point, next(batches))
        self._synchronize()
        return clock() - start

    def batches(self, point: Point) -> Iterator[Any]:
        while True:
            yield from self._loader(point.workers)

    def step(self, point: Point, batch: Any) -> float:
        optimizer = self._optimizer(point.fused)
        optimizer.zero_grad()
        torch.set_float32_matmul_precision("high" if point.precision == "tf32" else "highest")
        loss = self._backward(point, batch)
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self._clip_norm)
        optimizer.step()
        return loss.item()

    def restart(self) -> None:
        """Back to the first step: weights, random numbers, optimizers."""
        self.model.load_state_dict(self._start)
        self._optimizers.clear()
        torch.set_rng_state(self._random)

    def _backward(self, point: Point, batch: Any) -> torch.Tensor:
        model = self._prepared(point)
        total = torch.zeros(())
        for part in _parts(batch, point.parts):
            with self._autocast(point):
                loss = self._workload.compute_loss(model, part, self.device) / point.parts
            loss.backward()
            total = total + loss.detach().cpu()
        return total

    def _prepared(self, point: Point) -> Any:
        if point.channels_last != self._channels_last:
            self._channels_last = last = point.channels_last
            self.model.to(memory_format=torch.channels_last if last else torch.contiguous_format)
        if not point.compiled:
            return self.model
        if self._compiled is None:
            self._compiled = torch.compile(self.model)
        return self._compiled

    def _autocast(self, point: Point) -> Any:
        if point.precision != "bfloat16":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)

    def _optimizer(self, fused: bool) -> Any:
        if fused not in self._optimizers:
            kernel = {"fused": True} if fused else {}
            optimizer = self._workload.get_optimizer(self._args, self.model, **kernel)
            self._optimizers[fused] = optimizer
        return self._optimizers[fused]

    def _loader(self, workers: int) -> Any:
        if workers not in self._loaders:
            first = self._loaders[0]
            self._loaders[workers] = torch.utils.data.DataLoader(
                first.dataset,
                batch_size=first.batch_size,
                shuffle=True,
                drop_last=True,
                collate_fn=first.collate_fn,
                num_workers=workers,
                persistent_workers=True,
                pin_memory=self.device == "cuda",
            )
        return self._loaders[workers]

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _parts(batch: Any, count: int) -> list[Any]:
    if count == 1:
        return [batch]
    chunks = [tensor.chunk(count) for tensor in batch]
    return [list(part) for part in zip(*chunks, strict=True)]


def search(bench: Bench, points: Sequence[Point], seconds: float, steps: int) -> tuple[Point, int]:
    """The fastest point, and how many points could be run at all.

    All are timed for `seconds`, three rounds at least; the best three are then timed anew, and the
    one with the least median is taken: one that was lucky among many is not.
    """
    usable = [point for point in points if _runs(bench, point)]
    taken = _timed(bench, usable, steps, time.monotonic() + seconds)
    best = sorted(usable, key=lambda point: taken[point])[:CONFIRMED]
    again = _timed(bench, best, steps, time.monotonic())
    return min(best, key=lambda point: again[point]), len(usable)


def _timed(bench: Bench, points: Sequence[Point], steps: int, ends: float) -> dict[Point, float]:
    """The median of each point's rounds, in which all take turns."""
    taken: dict[Point, list[float]] = {point: [] for point in points}
    for number in range(1, ROUNDS_MAX + 1):
        for point in points:
            taken[point].append(bench.seconds(point, steps))
        if number >= ROUNDS_MIN and time.monotonic() > ends:
            break
    return {point: statistics.median(seconds) for point, seconds in taken.items()}


def _runs(bench: Bench, point: Point) -> bool:
    """Also the warm-up: libraries set themselves up, and compilation happens."""
    try:
        bench.seconds(point, 2)
    except Exception as error:
        sys.stderr.write(f"{point}: {type(error).__name__}: {error}\n")
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.speed.hand", description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--size", default="small")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    start = time.perf_counter()
    bench = Bench(options.workload, options.size)
    points = bench.points(compiled=options.compile)
    best, tried = search(bench, points, options.seconds, options.steps)
    seconds = time.perf_counter() - start
    bench.restart()
    batches = bench.batches(best)
    bench.step(best, next(batches))
    said = {"found_seconds": seconds, "compiles": options.compile, **asdict(best)}
    participant().begin(best=str(best), tried=tried, **said)
    for step in itertools.count(2):
        print(f"step {step} loss {bench.step(best, next(batches)):.6f}", flush=True)


if __name__ == "__main__":
    main()
