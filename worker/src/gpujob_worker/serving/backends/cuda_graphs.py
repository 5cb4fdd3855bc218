"""A function recorded as CUDA graphs, one a size: a batch is a copy, one launch, and a copy back.

torch.compile has graphs of its own ("reduce-overhead"), but they belong to the thread that recorded
them: the thread that answers requests would record all of them again, or fail. A graph that is
recorded here is replayed by any thread, by one at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from gpujob_worker.serving.backends.torch_backend import Function

# Libraries choose their algorithms and allocate in the first calls, which no graph may contain.
WARM_UP_CALLS = 3

# Reads what the recorded inputs contain, and writes the recorded outputs.
Replay = Callable[[], None]


class Recorder(Protocol):
    """Records one call on inputs whose memory stays the same."""

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor]
    ) -> tuple[Replay, Sequence[torch.Tensor]]: ...

    def reset(self) -> None:
        """Gives back the memory of its calls, which are not replayed any more."""
        ...


class CudaRecorder:
    """Records by the CUDA runtime. Its graphs share the memory of their intermediate results."""

    def __init__(self) -> None:
        self._pool: Any = None

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor]
    ) -> tuple[Replay, Sequence[torch.Tensor]]:
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                function(*inputs)
        current.wait_stream(stream)
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = function(*inputs)
        return graph.replay, outputs

    def reset(self) -> None:
        self._pool = None


@dataclass(frozen=True, slots=True)
class _Recorded:
    inputs: tuple[torch.Tensor, ...]
    replay: Replay
    outputs: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class Graphs:
    """Calls `function` by its graphs. The outputs are valid until the next call."""

    function: Function
    recorder: Recorder = field(default_factory=CudaRecorder)
    _recorded: dict[int, _Recorded] = field(default_factory=dict[int, _Recorded])

    def record(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Records the size of these inputs. Raises what the function or CUDA raises."""
        held = tuple(tensor.clone() for tensor in inputs)
        replay, outputs = self.recorder.record(self.function, held)
        self._recorded[len(inputs[0])] = _Recorded(held, replay, tuple(outputs))
        return self(*inputs)

    def drop(self) -> None:
        """Drops all graphs. No call is valid until they are recorded again."""
        self._recorded.clear()
        self.recorder.reset()

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Raises `KeyError` for a size that was not recorded."""
        recorded = self._recorded[len(inputs[0])]
        for held, tensor in zip(recorded.inputs, inputs, strict=True):
            held.copy_(tensor)
        recorded.replay()
        return recorded.outputs
