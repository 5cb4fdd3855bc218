"""The memory of tensors: shared by views, hashed, and seen again with another layout."""

import marshal
from typing import Any

import numpy as np
import torch
import xxhash


def tensors_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def unsaved_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    saved = module.state_dict(keep_vars=True)
    return {name: value for name, value in module.named_buffers() if name not in saved}


def storage_key_of(storage: Any, device: torch.device) -> int:
    return hash((storage.data_ptr(), str(device))) or 1


def storage_key(tensor: torch.Tensor) -> int:
    """Of the memory that a tensor of at least one element looks at."""
    return storage_key_of(tensor.untyped_storage(), tensor.device)


def version_of(tensor: torch.Tensor) -> int:
    """Grows with each write in place, as autograd counts them; inference tensors have none."""
    return -1 if tensor.is_inference() else tensor._version  # pyright: ignore[reportPrivateUsage]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory itself, as bytes."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())  # pyright: ignore[reportArgumentType]


def view_of(storage: Any, device: torch.device, node: Any) -> torch.Tensor:
    dtype = getattr(torch, node["dtype"])
    found = torch.empty(0, dtype=dtype, device=device)
    found = found.set_(storage, node["offset"], node["size"], node["stride"])
    found = found.conj() if node["conjugated"] else found
    return torch._neg_view(found) if node["negated"] else found  # pyright: ignore


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
    """Of containers of plain values; None for others, and for sets, which have no order."""
    try:
        # Version 2 writes what is shared as often as it is there, so equal values have equal bytes.
        return xxhash.xxh3_128_hexdigest(marshal.dumps(value, 2))
    except ValueError:
        return None
