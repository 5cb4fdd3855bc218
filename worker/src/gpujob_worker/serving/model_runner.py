"""Executes the requests of one batch together, and finds those that fail.

A batch is padded by repeating its last sample. Zeros may be an input that the model never had in
training: an attention mask of zeros gives NaN, and an index of zero may be out of range. A repeated
sample is a valid input.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpujob_worker.run.failure import is_out_of_memory
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.batching import padded_size


class OutputError(RuntimeError):
    """Outputs that cannot be split into those of the requests."""


@dataclass(frozen=True, slots=True)
class Executed:
    """The outputs or the error of each request, in their order.

    `size` is the number of samples executed, padding included, or None if the batch failed and was
    executed in pieces.
    """

    outcomes: tuple[Tensors | Exception, ...]
    size: int | None


class ModelRunner:
    """Executes batches on one backend.

    A failing batch is executed again in halves, down to single requests, so that only the
    requests at fault fail: at most twice as many executions as requests. If memory runs out, the
    halves go down to single samples, and `size_max` is lowered.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.size_max: int | None = None

    def run(self, requests: Sequence[Tensors]) -> Executed:
        """Inputs must have the types and shapes of the model's signature: `torch.cat` would
        convert a request's type to that of its neighbour. NaN in outputs is the model's answer.
        """
        counts = [_samples(request) for request in requests]
        size: int | None = None
        try:
            if self.size_max is not None and sum(counts) > self.size_max:
                outcomes = self._in_halves(requests)
            else:
                size = padded_size(sum(counts), self._backend.sizes)
                outcomes = self._together(requests, counts)
        except OutputError as error:
            outcomes = [error] * len(requests)
            size = None
        except Exception as error:
            size = None
            outcomes = self._after_failure(requests, counts, error)
        return Executed(tuple(outcomes), size)

    def _together(
        self, requests: Sequence[Tensors], counts: Sequence[int]
    ) -> list[Tensors | Exception]:
        samples = sum(counts)
        size = padded_size(samples, self._backend.sizes)
        outputs = self._backend.run(concatenated(requests, size - samples))
        for name, tensor in outputs.items():
            if not tensor.dim() or len(tensor) != size:
                shape = list(tensor.shape)
                raise OutputError(
                    f"output {name}: the first dimension must be that of the samples, {size}; "
                    f"got {shape}"
                )
        if len(counts) == 1 and samples == size:
            return [outputs]
        found: list[Tensors | Exception] = []
        start = 0
        for count in counts:
            part = {name: tensor[start : start + count] for name, tensor in outputs.items()}
            found.append(part)
            start += count
        return found

    def _after_failure(
        self, requests: Sequence[Tensors], counts: Sequence[int], error: Exception
    ) -> list[Tensors | Exception]:
        if is_out_of_memory(error):
            if not self._lower_size(sum(counts)):
                return [error] * len(requests)
        elif len(requests) == 1:
            return [error]
        return self._in_halves(requests)

    def _in_halves(self, requests: Sequence[Tensors]) -> list[Tensors | Exception]:
        if len(requests) > 1:
            middle = len(requests) // 2
            first, second = self.run(requests[:middle]), self.run(requests[middle:])
            return [*first.outcomes, *second.outcomes]
        (request,) = requests
        middle = _samples(request) // 2
        parts: list[Tensors] = []
        for start, count in ((0, middle), (middle, _samples(request) - middle)):
            (outcome,) = self.run([rows(request, start, count)]).outcomes
            if isinstance(outcome, Exception):
                return [outcome]
            parts.append(outcome)
        return [concatenated(parts, 0)]

    def _lower_size(self, samples: int) -> bool:
        """Lowers the largest size, and releases the cached memory of the failed attempt.

        Returns False if there is no smaller size.
        """
        if torch.cuda.is_initialized():
            with contextlib.suppress(RuntimeError):
                torch.cuda.empty_cache()
        sizes = self._backend.sizes
        failed = padded_size(samples, sizes)
        lower = failed // 2 if sizes is None else max((s for s in sizes if s < failed), default=0)
        if lower == 0:
            return False
        self.size_max = lower if self.size_max is None else min(self.size_max, lower)
        return True


def concatenated(requests: Sequence[Tensors], padding: int) -> dict[str, torch.Tensor]:
    """Returns the samples of all requests, and the last sample `padding` times more."""
    found: dict[str, torch.Tensor] = {}
    for name in requests[0]:
        tensors = [request[name] for request in requests]
        if padding:
            last = tensors[-1][-1:]
            tensors.append(last.expand(padding, *last.shape[1:]))
        found[name] = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return found


def rows(inputs: Tensors, start: int, count: int) -> dict[str, torch.Tensor]:
    return {name: tensor[start : start + count] for name, tensor in inputs.items()}


def _samples(inputs: Tensors) -> int:
    return len(next(iter(inputs.values())))
