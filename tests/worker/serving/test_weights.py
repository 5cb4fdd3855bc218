"""Weights leave the memory of the process and come back bit for bit, wherever they are referred
to.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.device.memory import CpuMemory
from gpujob_worker.serving import weights as module
from gpujob_worker.serving.weights import PART_BYTES, Weights

MEBIBYTE = 1024**2


class Pair(torch.Tensor):
    """A wrapped tensor, as quantized weights are: it has no memory of its own."""

    numbers: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls: type["Pair"], values: torch.Tensor, scale: torch.Tensor) -> "Pair":
        made: Any = torch.Tensor._make_wrapper_subclass  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
        found = made(cls, values.shape, dtype=torch.float32)
        found.numbers, found.scale = values, scale
        return found

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], *_: Any) -> "Pair":
        return Pair(parts["numbers"], parts["scale"])

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return Pair(args[0].numbers, args[0].scale)
        plain = [one.numbers * one.scale if isinstance(one, Pair) else one for one in args]
        return function(*plain, **(kwargs or {}))


def sizes(*tensors: torch.Tensor) -> list[int]:
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


def test_parameters_and_buffers_move_and_return_in_place() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    weights = Weights(model)
    # 48 and 16 B, four vectors of 16 B, and a number of batches.
    assert weights.host_bytes == 64 + 16 + 4 * 16 + 8
    weights.park()
    assert sizes(*tensors) == [0] * 7
    assert [tensor.shape for tensor in tensors] == [tensor.shape for tensor in before]
    assert weights.host_bytes == 0
    weights.wake()
    assert all(map(torch.equal, tensors, before))
    weights.wake()
    assert all(map(torch.equal, tensors, before)), "a second call changes nothing"


def test_tied_tensors_and_views_stay_tied_and_move_once() -> None:
    model = nn.ModuleDict({"a": nn.Linear(8, 8, bias=False), "b": nn.Linear(8, 8, bias=False)})
    model["b"].register_parameter("weight", model["a"].get_parameter("weight"))
    weight = model["a"].get_parameter("weight")
    view = weight.detach()[2:4].t()
    before = view.clone()
    # The model as written and the one made of it share weights, too.
    weights = Weights(model, nn.Sequential(model["a"]))
    assert weights.host_bytes == 256
    weights.park()
    assert sizes(weight, view) == [0, 0]
    weights.wake()
    assert torch.equal(view, before)
    with torch.no_grad():
        weight.fill_(7.0)
    assert view.unique().tolist() == [7.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool])
def test_a_channels_last_tensor_of_any_type_keeps_its_layout(dtype: torch.dtype) -> None:
    model = nn.Module()
    values = torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last).to(dtype)
    model.register_buffer("values", values)
    before, strides = values.clone(), values.stride()
    weights = Weights(model)
    weights.park()
    weights.wake()
    assert torch.equal(values, before)
    assert values.stride() == strides


def test_wrapped_weights_move() -> None:
    model = nn.Linear(4, 2, bias=False)
    values = torch.randint(-8, 8, (2, 4), dtype=torch.int8)
    pair = Pair(values, torch.tensor([[0.5], [0.25]]))
    model.weight = nn.Parameter(pair, requires_grad=False)
    x = torch.randn(3, 4)
    before = model(x)
    weights = Weights(model)
    assert weights.host_bytes == 8 + 8
    weights.park()
    assert sizes(pair.numbers, pair.scale) == [0, 0]
    weights.wake()
    assert torch.equal(model(x), before)


def test_what_cannot_be_freed_stays() -> None:
    model = nn.Module()
    shared = torch.frombuffer(bytearray(16), dtype=torch.float32)
    model.register_buffer("shared", shared)
    model.register_buffer("empty", torch.empty(0))
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.register_buffer("nowhere", torch.empty(5, device="meta"))
    weights = Weights(model)
    assert weights.host_bytes == 0
    weights.park()
    assert sizes(shared) == [16]
    weights.wake()
    assert shared.tolist() == [0.0] * 4


def test_weights_that_other_processes_may_read_stay() -> None:
    """Emptied, they would end the process by a signal."""
    model = nn.Linear(64, 64)
    model.share_memory()
    batch = torch.randn(2, 64)
    before = model(batch)
    weights = Weights(model)
    weights.park()
    assert all(sizes(*model.parameters()))
    weights.wake()
    assert torch.equal(model(batch), before)


def test_the_memory_of_the_process_falls_and_none_is_taken_twice() -> None:
    """The weights have more than one part, the last one of an odd size."""
    model, memory = nn.Module(), CpuMemory()
    size = 2 * PART_BYTES + 12_345
    values = torch.randint(0, 256, (size,), dtype=torch.uint8)
    model.register_buffer("values", values)
    total = int(values.sum())
    weights = Weights(model)
    memory.trim()
    before = memory.current_bytes()
    memory.reset_peak()
    weights.park()
    # As after each park. Tests before this one may have made the heap keep large blocks.
    memory.trim()
    assert before - memory.current_bytes() > size - 16 * MEBIBYTE
    assert memory.peak_bytes() < before + 16 * MEBIBYTE
    weights.wake()
    assert memory.peak_bytes() < before + 16 * MEBIBYTE
    assert int(values.sum()) == total


def test_pinned_memory_is_restored_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, but that the memory is not pinned."""
    empty = torch.empty

    def pageable(*size: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        del pin_memory
        return empty(*size, **more)

    monkeypatch.setattr(torch, "empty", pageable)
    monkeypatch.setattr(module, "_File", module._Pinned)
    monkeypatch.setattr(module, "PART_BYTES", 64)
    model = nn.Sequential(nn.Linear(7, 9), nn.Linear(9, 5))
    tensors = [*model.parameters()]
    before = [tensor.detach().clone() for tensor in tensors]
    weights = Weights(model)
    # 252 B are three parts of 64 B and one of 60, 180 B two and one of 52, 36 and 20 B one each.
    assert weights.host_bytes == 4 * 64 + 64 + 3 * 64 + 32
    for fails in (True, False, False):
        weights.park()
        if fails:
            with monkeypatch.context() as patch:
                patch.setattr(module._Pinned, "restore", failing(5, module._Pinned.restore))
                with pytest.raises(torch.OutOfMemoryError):
                    weights.wake()
        assert sizes(*tensors) == [0] * 4
        weights.wake()
        assert all(map(torch.equal, tensors, before))


def failing(after: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `real`, which fails for lack of memory from the call of this number on."""
    calls = iter(range(after))

    def call(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return real(*arguments)

    return call


def test_a_lack_of_memory_leaves_all_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    tensors = [*model.parameters()]
    before = [tensor.detach().clone() for tensor in tensors]
    weights = Weights(model)
    with monkeypatch.context() as patch:
        patch.setattr(module._File, "keep", failing(2, module._File.keep))
        with pytest.raises(torch.OutOfMemoryError):
            weights.park()
    assert all(map(torch.equal, tensors, before))
    weights.park()
    for after in (0, 3):
        with monkeypatch.context() as patch:
            patch.setattr(module._File, "restore", failing(after, module._File.restore))
            with pytest.raises(torch.OutOfMemoryError):
                weights.wake()
        assert sizes(*tensors) == [0] * 4
    weights.wake()
    assert all(map(torch.equal, tensors, before))
