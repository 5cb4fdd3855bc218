"""A tensor on the imitated device, and how an operation on it is carried out in host memory."""

from collections.abc import Callable
from typing import Any, ClassVar

import torch

from tests.harness.imitated_gpu.gpu import ImitatedGpu
from tests.harness.imitated_gpu.kernels import KERNELS

DEVICE = torch.device("cuda", 0)
_aten = torch.ops.aten
parse_to: Any = torch._C._nn._parse_to  # pyright: ignore[reportAttributeAccessIssue]
# They read a value, or find a shape by one: the host has to wait.
_WAITING = frozenset(
    ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")
)
_MIXED = (
    "Expected all tensors to be on the same device, but found at least two devices, "
    "cuda:0 and cpu! (when checking all arguments of {})"
)


class DeviceTensor(torch.Tensor):
    """Lies in host memory and says that it is on `cuda:0`."""

    gpu: ClassVar[ImitatedGpu | None] = None
    patches: ClassVar[object] = None  # kept for as long as the device is there
    __torch_function__: Any = torch._C._disabled_torch_function_impl
    # Of a sparse tensor, whose parts have storages and itself none.
    sparse: torch.Tensor

    @staticmethod
    def on(gpu: ImitatedGpu, host: torch.Tensor) -> "DeviceTensor":
        """Stands for the host tensor on the device; its memory is counted there."""
        for part in parts_of(host):
            gpu.hold(part)
        made = torch.Tensor._make_subclass(DeviceTensor, host, host.requires_grad)
        if host.layout is not torch.strided:
            made.sparse = host
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        assert cls.gpu is not None, "the imitated GPU is gone"
        return _carry_out(cls.gpu, func, args, kwargs or {})

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return DEVICE

    @property
    def is_cuda(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return True

    @property
    def is_cpu(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return False

    def get_device(self) -> int:
        return 0

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        copies = bool(kwargs.pop("copy", False))
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        device, dtype, non_blocking, layout = parse_to(*args, **kwargs)
        result: torch.Tensor = self
        if dtype is not None and dtype is not self.dtype:
            result = _aten._to_copy(result, dtype=dtype)
        elif copies:
            result = result.clone()
        if layout is not None:
            result = result.contiguous(memory_format=layout)
        if device is not None and device.type == "cpu":
            return _ToHost.apply(result, non_blocking)  # pyright: ignore[reportReturnType]
        return result

    def cpu(self, *_: Any, **__: Any) -> torch.Tensor:
        return self.to("cpu")

    def cuda(self, *_: Any, **__: Any) -> torch.Tensor:
        return self

    def type(self, dtype: Any = None, *_: Any, **__: Any) -> Any:
        return self.to(dtype) if dtype is not None else f"torch.cuda.{self.dtype}"

    def numpy(self, *_: Any, **__: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()

    def pin_memory(self, *_: Any, **__: Any) -> torch.Tensor:
        kind = f"torch.cuda.{self.dtype}".replace("torch.float32", "FloatTensor")
        raise RuntimeError(f"cannot pin '{kind}' only dense CPU tensors can be pinned")

    def is_pinned(self, *_: Any, **__: Any) -> bool:
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeviceTensor":
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            copy: Any = self.detach().clone()
        copy.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False):
            copy._is_param = True
        memo[id(self)] = copy
        return copy

    def __format__(self, specification: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), specification)

    def __repr__(self, **_: Any) -> str:
        return f"{self.detach().cpu()!r} on cuda:0"


class _ToHost(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, non_blocking: bool) -> torch.Tensor:
        del ctx
        gpu = DeviceTensor.gpu
        assert gpu is not None
        copy = host_of(tensor).clone()
        for part in parts_of(copy):
            gpu.copy(part.numel() * part.element_size(), part, non_blocking=non_blocking)
        return copy

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0].to(DEVICE), None


class _ToDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any, non_blocking: bool) -> torch.Tensor:
        del ctx
        gpu = DeviceTensor.gpu
        assert gpu is not None
        for part in parts_of(tensor):
            gpu.copy(part.numel() * part.element_size(), part, non_blocking=non_blocking)
        return DeviceTensor.on(gpu, tensor.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        del ctx
        return gradients[0].cpu(), None


def to_device(tensor: torch.Tensor, *, non_blocking: bool) -> torch.Tensor:
    """A copy on the device, with gradients that come back."""
    return _ToDevice.apply(tensor, non_blocking)  # pyright: ignore[reportReturnType]


def host_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as a plain tensor, by its storage: setting `.data` changes that too."""
    if tensor.layout is not torch.strided:
        return tensor.sparse if isinstance(tensor, DeviceTensor) else tensor
    plain = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    return plain.set_(storage, tensor.storage_offset(), tensor.size(), tensor.stride())


def parts_of(host: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What has a storage of its own."""
    if host.layout is torch.sparse_coo:
        return host._indices(), host._values()
    if host.layout is torch.sparse_csr:
        return host.crow_indices(), host.col_indices(), host.values()
    if host.layout is torch.sparse_csc:
        return host.ccol_indices(), host.row_indices(), host.values()
    return (host,)


def _memory_of(host: torch.Tensor) -> set[int]:
    return {part.untyped_storage().data_ptr() for part in parts_of(host)}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _carry_out(gpu: ImitatedGpu, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func is _aten.copy_.default and isinstance(args[0], DeviceTensor) != isinstance(
        args[1], DeviceTensor
    ):
        return _copy_between(gpu, *args, **kwargs)
    if kwargs.get("pin_memory"):
        return _made_in_pinned_memory(gpu, func, args, kwargs)
    _refuse_mixed(func, [*_leaves(args), *_leaves([*kwargs.values()])])
    host_args, host_kwargs = _mapped(_as_host, args), _mapped(_as_host, kwargs)
    pairs = list(zip(_leaves(host_args), _leaves(args), strict=True))
    pairs += zip(_leaves([*host_kwargs.values()]), _leaves([*kwargs.values()]), strict=True)
    own = {id(host): value for host, value in pairs if _is_tensor(host)}
    inputs = [host for host, _ in pairs if _is_tensor(host)]
    run = _runner(gpu, func, host_args, host_kwargs)
    if func._schema.name in _WAITING:
        gpu.wait_for_stream()
        return _wrapped(gpu, run(), own)
    result = run()
    for host, value in pairs:
        if isinstance(value, DeviceTensor) and host.shape != value.shape:
            value.data = DeviceTensor.on(gpu, host)  # changed in place, as by `out=`
    outputs = [out for out in _leaves(result) if _is_tensor(out)]
    held = set[int]().union(*map(_memory_of, inputs))
    fresh = [out for out in outputs if not held & _memory_of(out)]
    if fresh or func._schema.is_mutable:
        gpu.launch(func, inputs, fresh)
        if gpu.capture is not None:
            gpu.capture.append(_again(run, fresh))
    return _wrapped(gpu, result, own)


def _made_in_pinned_memory(
    gpu: ImitatedGpu, func: Any, args: Any, kwargs: dict[str, Any]
) -> torch.Tensor:
    """As `empty_like(..., device="cpu", pin_memory=True)` of a tensor on the device.

    Without the latter nothing tells it from torch's own C++ code, for which all of these tensors
    are on the CPU.
    """
    plain = {**kwargs, "pin_memory": False}
    made: torch.Tensor = func(*_mapped(_as_host, args), **_mapped(_as_host, plain))
    gpu.pinned(made)
    return made


def _leaves(value: Any) -> list[Any]:
    """An operation takes and returns values, and lists of them."""
    if not isinstance(value, list | tuple):
        return [value]
    each: list[Any] = [*value]
    return [leaf for one in each for leaf in _leaves(one)]


def _mapped(function: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, dict):
        named: dict[str, Any] = value
        return {name: _mapped(function, one) for name, one in named.items()}
    if not isinstance(value, list | tuple):
        return function(value)
    each: list[Any] = [_mapped(function, one) for one in value]
    return tuple(each) if isinstance(value, tuple) else each


def _runner(gpu: ImitatedGpu, func: Any, args: Any, kwargs: Any) -> Callable[[], Any]:
    kernel = KERNELS.get(func)
    if kernel is not None:
        return lambda: kernel(gpu, *args, **kwargs)
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return lambda: func(*args, **kwargs)

    def run() -> Any:
        with gpu.drawing():
            return func(*args, **kwargs)

    return run


def _again(run: Callable[[], Any], fresh: list[torch.Tensor]) -> Callable[[], None]:
    """What a replay does: the same kernel into the same memory."""

    def replay() -> None:
        held = set[int]().union(*map(_memory_of, fresh))
        found = [out for out in _leaves(run()) if _is_tensor(out)]
        made = [out for out in found if not held & _memory_of(out)]
        for old, new in zip(fresh, made, strict=False):
            old.copy_(new)

    return replay


def _as_host(value: Any) -> Any:
    if isinstance(value, DeviceTensor):
        return host_of(value)
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _wrapped(gpu: ImitatedGpu, result: Any, own: dict[int, Any]) -> Any:
    def wrap(out: Any) -> Any:
        if not _is_tensor(out):
            return out
        return own[id(out)] if id(out) in own else DeviceTensor.on(gpu, out)

    return _mapped(wrap, result)


def _refuse_mixed(func: Any, flat: list[Any]) -> None:
    """Numbers without a dimension may come from the host."""
    others = [t for t in flat if _is_tensor(t) and not isinstance(t, DeviceTensor) and t.dim() > 0]
    if others and any(isinstance(value, DeviceTensor) for value in flat):
        raise RuntimeError(_MIXED.format(func))


def _copy_between(
    gpu: ImitatedGpu, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
) -> torch.Tensor:
    to_device = isinstance(target, DeviceTensor)
    host = source if to_device else target
    gpu.copy(source.numel() * source.element_size(), host, non_blocking=non_blocking)
    _as_host(target).copy_(_as_host(source))
    return target
