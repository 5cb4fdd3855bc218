"""Recorded functions read what they were called with, at any recorded size and from any thread.

The recorder here calls the function again; that of CUDA is tested in `tests/gpu`.
"""

import functools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from gpujob_api.serving import BackendName
from gpujob_api.settings import Precision
from gpujob_worker.serving.backends.answering import answering
from gpujob_worker.serving.backends.compiled import compiled
from gpujob_worker.serving.backends.cuda_graphs import Graphs, Replay
from gpujob_worker.serving.backends.torch_backend import Function, SizeError
from gpujob_worker.serving.rows import first_rows
from gpujob_worker.serving.signature import signature
from gpujob_worker.serving.weights import Weights


@dataclass(slots=True)
class PlayedRecorder:
    """Keeps which sizes were recorded. A replay reads the held inputs, whatever they are then."""

    sizes: list[int] = field(default_factory=list[int])
    replays: int = 0
    # There is memory for so many.
    sizes_max: int = 100

    def record(
        self, function: Function, inputs: Sequence[torch.Tensor]
    ) -> tuple[Replay, Sequence[torch.Tensor]]:
        if len(self.sizes) == self.sizes_max:
            raise torch.OutOfMemoryError("CUDA out of memory")
        outputs = [tensor.clone() for tensor in function(*inputs)]
        self.sizes.append(len(inputs[0]))

        def replay() -> None:
            self.replays += 1
            for output, new in zip(outputs, function(*inputs), strict=True):
                output.copy_(new)

        return replay, outputs

    def reset(self) -> None:
        self.sizes.clear()


def doubled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (2 * x, x.sum(dim=1))


def recorded(*sizes: int) -> tuple[Graphs, PlayedRecorder]:
    recorder = PlayedRecorder()
    graphs = Graphs(doubled, recorder)
    for size in sizes:
        graphs.record(torch.zeros(size, 3))
    return graphs, recorder


def test_answers_are_of_the_present_inputs() -> None:
    graphs, _ = recorded(1, 4)
    for size in (4, 1, 4):
        x = torch.randn(size, 3)
        twice, total = graphs(x)
        assert torch.equal(twice, 2 * x)
        assert torch.equal(total, x.sum(dim=1))


def test_the_first_answers_are_of_the_recorded_inputs() -> None:
    graphs = Graphs(doubled, PlayedRecorder())
    x = torch.randn(2, 3)
    assert torch.equal(graphs.record(x)[0], 2 * x)


def test_inputs_stay_as_they_are() -> None:
    graphs, _ = recorded(2)
    x = torch.randn(2, 3)
    kept = x.clone()
    graphs(x)
    graphs(torch.randn(2, 3))
    assert torch.equal(x, kept)


def test_a_size_that_was_not_recorded_is_an_error() -> None:
    graphs, _ = recorded(2)
    with pytest.raises(KeyError):
        graphs(torch.zeros(3, 3))


def test_the_compiled_model_is_recorded_once_a_size_and_replayed_by_another_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Without a C++ compiler: that of torch 2.8 links no library from a path with spaces.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh()).eval()
    examples = {"x": torch.randn(4, 6)}
    shape = signature(model, examples)
    ready = answering(model, shape, Precision.FLOAT32, examples)
    recorder = PlayedRecorder()
    weights = Weights(model)
    backend = compiled(
        BackendName.CUDA_GRAPH,
        ready,
        shape,
        Precision.FLOAT32,
        examples,
        (1, 2, 4),
        weights,
        recorder,
    )
    assert recorder.sizes == [4, 2, 1]
    before = recorder.replays
    found: list[torch.Tensor] = []
    inputs = first_rows({"x": torch.randn(2, 6)}, 2)
    thread = threading.Thread(target=lambda: found.extend(backend.run(inputs).values()))
    thread.start()
    thread.join()
    with torch.inference_mode():
        torch.testing.assert_close(found[0], model(inputs["x"]))
    assert recorder.replays == before + 1
    assert recorder.sizes == [4, 2, 1]
    with pytest.raises(SizeError, match="built for 1, 2, 4 samples; got 3"):
        backend.run(first_rows(examples, 3))
    parking = backend.parking
    assert parking is not None
    parking.park()
    assert recorder.sizes == []
    assert all(one.untyped_storage().nbytes() == 0 for one in model.parameters())
    parking.wake()
    assert recorder.sizes == [4, 2, 1]
    assert torch.equal(next(iter(backend.run(inputs).values())), found[0])


def test_graphs_that_cannot_all_be_recorded_again_are_all_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    model = nn.Linear(6, 5).eval()
    examples = {"x": torch.randn(4, 6)}
    shape = signature(model, examples)
    ready = answering(model, shape, Precision.FLOAT32, examples)
    recorder = PlayedRecorder()
    backend = compiled(
        BackendName.CUDA_GRAPH,
        ready,
        shape,
        Precision.FLOAT32,
        examples,
        (1, 4),
        Weights(model),
        recorder,
    )
    parking = backend.parking
    assert parking is not None
    parking.park()
    recorder.sizes_max = 1
    with pytest.raises(torch.OutOfMemoryError):
        parking.wake()
    assert recorder.sizes == []
    assert model.weight.untyped_storage().nbytes() == 0
    recorder.sizes_max = 2
    parking.wake()
    assert recorder.sizes == [4, 1]
    with torch.inference_mode():
        expected = model(examples["x"])
    torch.testing.assert_close(next(iter(backend.run(examples).values())), expected)
