"""The memory of tensors and arrays: shared by views, hashed, and viewed again with
another layout.
"""

import marshal
from typing import Any

import numpy as np
import torch
import xxhash

Parts = list[tuple[str, torch.nn.Module]]


def parts_of(module: torch.nn.Module) -> Parts:
    return list(module.named_modules())


def tensors_of(parts: Parts) -> list[tuple[str, torch.Tensor]]:
    """Returns parameters, then buffers, each under its first name."""
    found = {id(tensor): (name, tensor) for name, tensor in reversed(_all_tensors(parts))}
    return list(found.values())[::-1]


# pyright: reportPrivateUsage=false
def _all_tensors(parts: Parts) -> list[tuple[str, torch.Tensor]]:
    """Returns tensors under all their names. Torch's own lists walk through all parts for each
    kind.
    """
    kinds = ([part._parameters for _, part in parts], [part._buffers for _, part in parts])
    return [
        (f"{prefix}.{name}" if prefix else name, tensor)
        for tensors in kinds
        for (prefix, _), own in zip(parts, tensors, strict=True)
        for name, tensor in own.items()
        if tensor is not None
    ]


def unsaved_buffers(module: torch.nn.Module, parts: Parts) -> dict[str, torch.Tensor]:
    if not any(part._buffers for _, part in parts):
        return {}
    saved = module.state_dict(keep_vars=True)
    return {name: value for name, value in module.named_buffers() if name not in saved}


def structure_of(made: Any, parts: Parts) -> Any:
    """Returns the facts of a module with these parts, or of an optimizer, that must be equal for a
    state to fit.
    """
    if isinstance(made, torch.optim.Optimizer):
        return [len(group["params"]) for group in made.param_groups]
    if not isinstance(made, torch.nn.Module):
        return None
    first: dict[int, str] = {}
    unsaved = unsaved_buffers(made, parts)
    return [name for name, _ in parts], [
        (name, tensor.dtype, tensor.shape, first.setdefault(id(tensor), name))
        for name, tensor in _all_tensors(parts)
        if name not in unsaved
    ]


def address_key(address: int, size: int, device: str) -> int:
    return hash((address, size, device))


def storage_key_of(storage: Any, device: torch.device) -> int:
    return address_key(storage.data_ptr(), storage.nbytes(), str(device))


def storage_key(tensor: torch.Tensor) -> int:
    """Returns the key of a tensor's memory, if that is not empty."""
    return storage_key_of(tensor.untyped_storage(), tensor.device)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory itself as bytes."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())  # pyright: ignore[reportArgumentType]


def view_of(storage: Any, device: torch.device, node: Any) -> torch.Tensor:
    dtype = getattr(torch, node["dtype"])
    found = torch.empty(0, dtype=dtype, device=device)
    found = found.set_(storage, node["offset"], node["size"], node["stride"])
    found = found.conj() if node["conjugated"] else found
    return torch._neg_view(found) if node["negated"] else found  # pyright: ignore


def owner_of(array: Any) -> Any:
    """Returns the owner of an array's memory: an array, or a tensor."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array.base if isinstance(array.base, torch.Tensor) else array


def bytes_of_array(owner: Any) -> Any:
    """Returns the memory itself of an array without gaps, as bytes."""
    flat = owner if owner.flags.c_contiguous else owner.T
    return flat.reshape(-1).view(np.uint8)


def array_at(memory: torch.Tensor, node: Any) -> Any:
    """Returns an array that views the memory and keeps it alive."""
    dtype = np.lib.format.descr_to_dtype(node["dtype"])
    plain: Any = memory.numpy()
    found: Any = np.ndarray(node["size"], dtype, plain, node["offset"], node["stride"])
    found.flags.writeable = node["writeable"]
    return found


def array_layout(array: Any) -> tuple[Any, ...]:
    """Returns the layout without the position in the memory."""
    return (array.dtype, array.shape, array.strides, array.flags.writeable)


def layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    name = str(tensor.dtype).removeprefix("torch.")
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (name, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), lazy)


def layout_of(node: Any) -> tuple[Any, ...]:
    lazy = (node["conjugated"], node["negated"])
    return (node["dtype"], tuple(node["size"]), tuple(node["stride"]), node["offset"], lazy)


def digest_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).view(np.uint8).data)


def plain_digest(value: Any) -> str | None:
    """Returns a digest of containers of plain values. None for others, and for sets, which have no
    order.
    """
    try:
        # Version 2 writes shared values once per occurrence, so equal values have equal bytes.
        return xxhash.xxh3_128_hexdigest(marshal.dumps(value, 2))
    except ValueError:
        return None


# Maximum number of nodes of a graph that are checked for an earlier backward pass.
_GRAPH_MAX = 10_000


def may_go_backward(grad_fn: Any) -> bool:
    """Returns whether a backward pass through the graph is still possible. A pass frees the nodes
    it went through.
    """
    waiting, seen = [grad_fn], {grad_fn}
    while waiting and len(seen) < _GRAPH_MAX:
        node = waiting.pop()
        try:
            for name in dir(node):
                if name.startswith("_saved_") or name == "saved_tensors":
                    getattr(node, name)
        except RuntimeError:
            return False
        inner = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= inner
        waiting += inner
    return True
