"""Puts the imitated device in the place of `torch.cuda`'s own in this process, and removes it."""

import importlib
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional
from torch.optim.optimizer import (
    _foreach_supported_types as foreach_types,  # pyright: ignore[reportUnknownVariableType]
)

from tests.harness.imitated_gpu.attention import attend
from tests.harness.imitated_gpu.gpu import GpuModel, ImitatedGpu
from tests.harness.imitated_gpu.streams import Capturing, Event, Graph, OnStream, Stream
from tests.harness.imitated_gpu.tensor import DeviceTensor, parse_to, to_device

# Modules ask it whether a parameter can be moved in place.
_ALIKE = "_has_compatible_shallow_copy_type"


def ignoring(function: Callable[[], Any]) -> Callable[..., Any]:
    """Whatever it is asked with, there is one device."""

    def call(*_: Any, **__: Any) -> Any:
        return function()

    return call


class _Patches:
    """Attributes set for a while, and how each was before."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, **values: Any) -> None:
        for name, value in values.items():
            had = name in vars(owner)
            before = getattr(owner, name, None)
            setattr(owner, name, value)
            put_back = partial(setattr, owner, name, before)
            self._undo.append(put_back if had else partial(delattr, owner, name))

    def on_undo(self, function: Callable[[], None]) -> None:
        self._undo.append(function)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def install(model: GpuModel | None = None) -> tuple[ImitatedGpu, Callable[[], None]]:
    """The device, and a function that takes it out. For the rest of a process: leave it in."""
    # Every optimizer imports it, and it looks at what is replaced here.
    importlib.import_module("torch._dynamo")
    gpu, patches = ImitatedGpu(model or GpuModel()), _Patches()
    patches.set(DeviceTensor, gpu=gpu, patches=patches)
    _time(gpu, patches)
    _factories(gpu, patches)
    _moves(patches)
    _device(gpu, patches)
    _memory(gpu, patches)
    _random(gpu, patches)
    _streams(gpu, patches)
    _pinning(gpu, patches)
    _autocast(patches)
    _kernels(patches)
    return gpu, patches.undo


@contextmanager
def installed(model: GpuModel | None = None) -> Generator[ImitatedGpu]:
    """For tests in the same process."""
    gpu, undo = install(model)
    try:
        yield gpu
    finally:
        undo()


def _time(gpu: ImitatedGpu, patches: _Patches) -> None:
    clock = gpu.clock
    patches.set(time, perf_counter=clock.now, monotonic=clock.now, sleep=clock.host_works)


def _factories(gpu: ImitatedGpu, patches: _Patches) -> None:
    """Where torch would ask the driver for memory. Whatever makes a tensor calls one of these."""

    def empty(size: Any, dtype: Any = None, memory_format: Any = None, **_: Any) -> torch.Tensor:
        layout = memory_format or torch.contiguous_format
        return DeviceTensor.on(gpu, torch.empty(size, dtype=dtype, memory_format=layout))

    def empty_strided(size: Any, stride: Any, dtype: Any = None, **_: Any) -> torch.Tensor:
        return DeviceTensor.on(gpu, torch.empty_strided(size, stride, dtype=dtype))

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch says that its own kernel is replaced, which is what this is for.
        warnings.simplefilter("ignore")
        library.impl("empty.memory_format", empty, "CUDA")
        library.impl("empty_strided", empty_strided, "CUDA")
    patches.on_undo(library._destroy)


def _moves(patches: _Patches) -> None:
    """From the host to the device, where torch's C++ code would look for a driver."""
    plain_to, plain_tensor, plain_as = torch.Tensor.to, torch.tensor, torch.as_tensor

    def to(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        given = args
        if args and isinstance(args[0], torch.Tensor):
            given = (args[0].device, args[0].dtype, *args[1:])
        options = {name: value for name, value in kwargs.items() if name != "copy"}
        device, dtype, non_blocking, layout = parse_to(*given, **options)
        if device is None or device.type != "cuda":
            return plain_to(tensor, *args, **kwargs)
        typed = plain_to(tensor, dtype=dtype or tensor.dtype)
        moved = to_device(typed, non_blocking=non_blocking)
        return moved if layout is None else moved.contiguous(memory_format=layout)

    def cuda(tensor: torch.Tensor, *_: Any, non_blocking: bool = False, **__: Any) -> torch.Tensor:
        return to(tensor, "cuda", non_blocking=non_blocking)

    def on(plain: Any) -> Any:
        def make(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
            if device is None or torch.device(device).type != "cuda":
                return plain(data, *args, device=device, **kwargs)
            if isinstance(data, DeviceTensor):
                return data
            learns = kwargs.pop("requires_grad", False)
            return to(plain(data, *args, **kwargs), device).requires_grad_(learns)

        return make

    plain_alike: Any = vars(torch)[_ALIKE]

    def alike(one: torch.Tensor, other: torch.Tensor) -> bool:
        """Modules move parameters into the same object only where these are of one kind."""
        same = isinstance(one, DeviceTensor) == isinstance(other, DeviceTensor)
        return same and plain_alike(one, other)

    patches.set(torch.Tensor, to=to, cuda=cuda)
    patches.set(torch, tensor=on(plain_tensor), as_tensor=on(plain_as))
    patches.set(torch, **{_ALIKE: alike})


def _device(gpu: ImitatedGpu, patches: _Patches) -> None:
    model = gpu.model
    properties = SimpleNamespace(
        name=model.name,
        total_memory=model.memory_bytes,
        major=model.capability[0],
        minor=model.capability[1],
        multi_processor_count=132,
        uuid="00000000-0000-0000-0000-000000000000",
    )

    patches.set(
        torch.cuda,
        _initialized=False,
        _lazy_init=gpu.begin,
        _exchange_device=ignoring(lambda: 0),
        _maybe_exchange_device=ignoring(lambda: 0),
        init=gpu.begin,
        is_available=lambda: True,
        is_initialized=lambda: gpu.initialized,
        device_count=lambda: 1,
        current_device=lambda: 0,
        set_device=ignoring(lambda: None),
        get_device_name=ignoring(lambda: model.name),
        get_device_capability=ignoring(lambda: model.capability),
        get_device_properties=ignoring(lambda: properties),
        is_bf16_supported=ignoring(lambda: model.capability >= (8, 0)),
        synchronize=ignoring(gpu.synchronize),
    )
    patches.set(
        torch.accelerator,
        is_available=lambda: True,
        current_accelerator=ignoring(lambda: torch.device("cuda")),
        current_device_index=lambda: 0,
        device_count=lambda: 1,
        current_stream=ignoring(lambda: Stream(gpu, gpu.stream)),
        synchronize=ignoring(gpu.synchronize),
    )


def _memory(gpu: ImitatedGpu, patches: _Patches) -> None:
    allocator = gpu.allocator

    def set_fraction(fraction: float, *_: Any) -> None:
        allocator.fraction = fraction

    def free_and_total(*_: Any) -> tuple[int, int]:
        return allocator.total_bytes - allocator.reserved, allocator.total_bytes

    patches.set(
        torch.cuda,
        memory_allocated=ignoring(lambda: allocator.allocated),
        max_memory_allocated=ignoring(lambda: allocator.allocated_peak),
        memory_reserved=ignoring(lambda: allocator.reserved),
        max_memory_reserved=ignoring(lambda: allocator.reserved_peak),
        reset_peak_memory_stats=ignoring(allocator.reset_peaks),
        memory_stats=ignoring(allocator.statistics),
        empty_cache=allocator.empty_cache,
        set_per_process_memory_fraction=set_fraction,
        mem_get_info=free_and_total,
    )


def _random(gpu: ImitatedGpu, patches: _Patches) -> None:
    def set_state(state: torch.Tensor, *_: Any) -> None:
        gpu.set_random_state(state)

    def set_states(states: list[torch.Tensor]) -> None:
        gpu.set_random_state(states[0])

    patches.set(
        torch.cuda,
        manual_seed=gpu.seed,
        manual_seed_all=gpu.seed,
        get_rng_state=ignoring(gpu.random_state),
        set_rng_state=set_state,
        get_rng_state_all=lambda: [gpu.random_state()],
        set_rng_state_all=set_states,
    )


def _streams(gpu: ImitatedGpu, patches: _Patches) -> None:
    def event(enable_timing: bool = False, **_: Any) -> Event:
        return Event(gpu, enable_timing=enable_timing)

    def on_stream(stream: Stream | None) -> OnStream:
        return OnStream(gpu, stream)

    patches.set(
        torch.cuda,
        Event=event,
        Stream=ignoring(lambda: Stream(gpu)),
        stream=on_stream,
        current_stream=ignoring(lambda: Stream(gpu, gpu.stream)),
        default_stream=ignoring(lambda: Stream(gpu, 0)),
        CUDAGraph=ignoring(lambda: Graph(gpu)),
        graph=Capturing,
        is_current_stream_capturing=lambda: gpu.capture is not None,
    )


def _pinning(gpu: ImitatedGpu, patches: _Patches) -> None:
    plain_empty = torch.empty

    def empty(*args: Any, pin_memory: bool = False, **kwargs: Any) -> torch.Tensor:
        made = plain_empty(*args, **kwargs)
        return gpu.pin(made) if pin_memory else made

    def pin(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return gpu.pin(tensor)

    def is_pinned(tensor: torch.Tensor, *_: Any, **__: Any) -> bool:
        return gpu.is_pinned(tensor)

    patches.set(torch, empty=empty)
    patches.set(torch.Tensor, pin_memory=pin, is_pinned=is_pinned)


def _autocast(patches: _Patches) -> None:
    """To torch's C++ code these are CPU tensors: autocast of "cuda" is that of the CPU."""
    for name in (
        "is_autocast_enabled",
        "set_autocast_enabled",
        "get_autocast_dtype",
        "set_autocast_dtype",
    ):
        plain = getattr(torch, name)

        def aliased(*args: Any, _plain: Any = plain) -> Any:
            given = ["cpu" if value == "cuda" else value for value in args]
            return _plain(*given) if given else _plain("cpu")

        patches.set(torch, **{name: aliased})


def _kernels(patches: _Patches) -> None:
    """Where a CUDA tensor goes another way than a CPU's before any kernel is chosen."""
    plain_dropout, plain_attention = torch._VF.dropout, functional.scaled_dot_product_attention

    def dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if isinstance(x, DeviceTensor) and train and 0 < p < 1:
            return torch.native_dropout(x, p, train)[0]
        return plain_dropout(x, p, train)

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        of = attend if isinstance(query, DeviceTensor) else plain_attention
        options: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
        return of(query, key, value, attn_mask, dropout_p, is_causal, **options)

    patches.set(torch._VF, dropout=dropout)
    patches.set(functional, scaled_dot_product_attention=attention)
    types: list[Any] = foreach_types
    types.append(DeviceTensor)
    patches.on_undo(partial(types.remove, DeviceTensor))
