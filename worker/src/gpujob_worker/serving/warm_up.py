"""Measures batches before the first request, so that their times are known from the start."""

import time
from collections.abc import Iterator

import torch

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.batch_time import Line, fit
from gpujob_worker.serving.model_runner import ModelRunner

WARM_UP_SECONDS = 10.0
# The first run of a size is not measured: it allocates, and may compile.
RUNS = 4
SIZE_MAX = 256


class WarmUp:
    """Executes batches of ascending size until one takes the whole objective."""

    def __init__(
        self, runner: ModelRunner, sizes: tuple[int, ...] | None, objective_seconds: float
    ) -> None:
        self._runner = runner
        self._sizes = sizes
        self._objective_seconds = objective_seconds

    def measure(self, examples: Tensors, seconds: float) -> Line:
        """Returns the line through the sizes measured within about `seconds`.

        Raises what the model raises for the smallest size. A larger size that fails ends the
        measurement.
        """
        end = time.monotonic() + seconds
        points: list[tuple[float, float, float]] = []
        for size in self._sizes_to_measure():
            inputs = repeated(examples, size)
            taken: list[float] = []
            for run in range(RUNS):
                start = time.monotonic()
                executed = self._runner.run([inputs])
                if executed.size is None:
                    if points:
                        return fit(points)
                    (outcome,) = executed.outcomes
                    if isinstance(outcome, Exception):
                        raise outcome
                if run:
                    taken.append(max(1e-7, time.monotonic() - start))
            median = sorted(taken)[len(taken) // 2]
            points.append((size, median, 1.0))
            if median > self._objective_seconds or time.monotonic() > end:
                break
        return fit(points)

    def _sizes_to_measure(self) -> Iterator[int]:
        if self._sizes is not None:
            yield from self._sizes
            return
        size = 1
        while size <= SIZE_MAX:
            yield size
            size *= 2


def repeated(examples: Tensors, size: int) -> dict[str, torch.Tensor]:
    """Returns a batch of `size` samples: the examples, again and again."""
    index = torch.arange(size) % len(next(iter(examples.values())))
    return {name: tensor[index] for name, tensor in examples.items()}
