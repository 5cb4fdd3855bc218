"""Tensors and arrays, and the memories that several of them may view.

A tensor's node has its layout and the place of its memory: a node with the bytes, or a tensor of a
module. A large memory that did not change is not saved; its hash is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.values.baseline import LARGE_BYTES, digest_of
from gpujob_worker.resume.values.family import KIND, Encoded, Family, Node
from gpujob_worker.resume.values.kinds import TENSORS, name_of
from gpujob_worker.resume.values.made_objects import (
    address_key,
    part_of_made,
    storage_key,
    storage_key_of,
)
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer

# Maximum number of nodes of a graph that are checked for an earlier backward pass.
_GRAPH_MAX = 10_000


def read_tensor(reader: Reader, value: torch.Tensor, path: str) -> Node:
    if type(value) not in TENSORS:
        raise UnsavableError(f"{path} is a {name_of(type(value))}")
    part = reader.made.part_of(value)
    if part is not None:
        return {KIND: "part", "of": part}
    if value.layout is not torch.strided or value.device.type == "meta" or value.is_quantized:
        raise UnsavableError(f"{path} is a tensor of {value.dtype} in {value.layout}")
    dtype, size, stride, offset, (conjugated, negated) = _layout(value)
    node: Node = {
        KIND: "tensor",
        "dtype": dtype,
        "size": size,
        "stride": stride,
        "offset": offset,
        "conjugated": conjugated,
        "negated": negated,
        "learns": value.is_leaf and value.requires_grad,
        "parameter": isinstance(value, torch.nn.Parameter),
    }
    if value.grad_fn is not None and _may_go_backward(value.grad_fn):
        raise UnsavableError(
            f"{path} is a tensor through which a backward pass may still go: its graph cannot"
            " be saved; keep .detach() or .item() of it"
        )
    if value.is_leaf and value.grad is not None and not reader.made.is_stepped(value):
        node["grad"] = reader.encode(value.grad, f"{path}.grad")
    return {**node, **_read_memory_of_tensor(reader, value, path)}


def restore_part(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del existing
    restorer.bind(index, part_of_made(restorer.made, node["of"], path))


def restore_tensor(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    kind = torch.nn.Parameter if node["parameter"] else torch.Tensor
    fits = (
        restorer.fits(existing, kind)
        and existing.layout is torch.strided
        and _layout(existing) == _layout_of(node)
        and existing.is_leaf
        and existing.untyped_storage().nbytes() > 0
    )
    memory = _restored_memory(restorer, node, _bytes_of(existing) if fits else None, path)
    storage = memory.untyped_storage()
    if fits and storage_key(existing) == storage_key_of(storage, memory.device):
        found = existing
    else:
        found = _view_of(storage, memory.device, node)
        found = torch.nn.Parameter(found, False) if node["parameter"] else found
    restorer.bind(index, found)
    if found.is_floating_point() or found.is_complex():
        found.requires_grad_(bool(node["learns"]))
    if "grad" in node:
        found.grad = restorer.value(node["grad"], found.grad, f"{path}.grad")
    elif not restorer.is_stepped(found):
        found.grad = None


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    name = str(tensor.dtype).removeprefix("torch.")
    lazy = (bool(tensor.is_conj()), bool(tensor.is_neg()))
    return (name, tuple(tensor.size()), tensor.stride(), tensor.storage_offset(), lazy)


def _layout_of(node: Node) -> tuple[Any, ...]:
    lazy = (node["conjugated"], node["negated"])
    return (node["dtype"], tuple(node["size"]), tuple(node["stride"]), node["offset"], lazy)


def _view_of(storage: Any, device: torch.device, node: Node) -> torch.Tensor:
    dtype = getattr(torch, node["dtype"])
    found = torch.empty(0, dtype=dtype, device=device)
    found = found.set_(storage, node["offset"], node["size"], node["stride"])
    found = found.conj() if node["conjugated"] else found
    return torch._neg_view(found) if node["negated"] else found  # pyright: ignore


def _may_go_backward(grad_fn: Any) -> bool:
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


def read_array(reader: Reader, value: Any, path: str) -> Node:
    descr = np.lib.format.dtype_to_descr(value.dtype) if not value.dtype.hasobject else None
    if descr is None or np.lib.format.descr_to_dtype(descr) != value.dtype:
        raise UnsavableError(f"{path} is an array of {value.dtype}")
    owner = _owner_of(value)
    node: Node = {
        KIND: "array",
        "dtype": descr,
        "size": value.shape,
        "stride": value.strides,
        "writeable": bool(value.flags.writeable),
    }
    if isinstance(owner, torch.Tensor):
        start = owner.untyped_storage().data_ptr()
        where = _read_memory_of_tensor(reader, owner, path)
    elif _has_no_gaps(owner):
        start = owner.ctypes.data
        key = address_key(start, owner.nbytes, "cpu")
        where = {"memory": _read_memory(reader, key, _bytes_of_array(owner), path)}
    else:
        raise UnsavableError(f"{path} is an array of a memory with gaps")
    return {**node, **where, "offset": value.ctypes.data - start if value.size else 0}


def restore_array(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    owner = _owner_of(existing) if restorer.fits(existing, np.ndarray) else None
    before = _bytes_of_owner(owner)
    memory = _restored_memory(restorer, node, before, path)
    if owner is not None and before is not None and memory.data_ptr() == before.data_ptr():
        made = _array_at(memory, node)
        place = made.ctypes.data == existing.ctypes.data or not made.size
        if place and _array_layout(made) == _array_layout(existing):
            restorer.bind(index, existing)
            return
    restorer.bind(index, _array_at(memory, node))


def _owner_of(array: Any) -> Any:
    """Returns the owner of an array's memory: an array, or a tensor."""
    while type(array.base) is np.ndarray:
        array = array.base
    return array.base if isinstance(array.base, torch.Tensor) else array


def _bytes_of_owner(owner: Any) -> torch.Tensor | None:
    if isinstance(owner, torch.Tensor):
        return _bytes_of(owner)
    if owner is None or not owner.flags.writeable:
        return None
    return torch.from_numpy(_bytes_of_array(owner)) if _has_no_gaps(owner) else None


def _has_no_gaps(array: Any) -> bool:
    return array.flags.c_contiguous or array.flags.f_contiguous


def _bytes_of_array(owner: Any) -> Any:
    """Returns the memory itself of an array without gaps, as bytes."""
    flat = owner if owner.flags.c_contiguous else owner.T
    return flat.reshape(-1).view(np.uint8)


def _array_at(memory: torch.Tensor, node: Node) -> Any:
    """Returns an array that views the memory and keeps it alive."""
    dtype = np.lib.format.descr_to_dtype(node["dtype"])
    plain: Any = memory.numpy()
    found: Any = np.ndarray(node["size"], dtype, plain, node["offset"], node["stride"])
    found.flags.writeable = node["writeable"]
    return found


def _array_layout(array: Any) -> tuple[Any, ...]:
    """Returns the layout without the position in the memory."""
    return (array.dtype, array.shape, array.strides, array.flags.writeable)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the memory itself as bytes."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return flat.set_(tensor.untyped_storage())  # pyright: ignore[reportArgumentType]


def _read_memory_of_tensor(reader: Reader, value: torch.Tensor, path: str) -> Node:
    """Returns the memory of a tensor: that of a module, or its own."""
    key = storage_key(value)
    of = reader.made.memory_of(key) if value.untyped_storage().nbytes() else None
    if of is not None:
        return {"of": of}
    return {"memory": _read_memory(reader, key, _bytes_of(value), path)}


def _read_memory(reader: Reader, key: int, content: Any, path: str) -> Encoded:
    """Returns the node of a memory, once for all that share it. `content` are its bytes, as a
    tensor or an array.
    """
    index = reader.memories.index_of(key, content)
    if index is None:
        index = reader.new_node(content)
        reader.memories.add(key, content, index)
        reader.nodes[index] = _describe_memory(reader, key, content, path)
    return ("r", index)


def _describe_memory(reader: Reader, key: int, content: Any, path: str) -> Node:
    if len(content) >= LARGE_BYTES:
        if reader.first:
            reader.baseline.sees_memory(key, path, content)
            return {}
        if reader.baseline.has_memory(key, path):
            digest = digest_of(content)
            if reader.baseline.is_unchanged_memory(key, digest):
                return {KIND: "unchanged memory", "bytes": len(content), "digest": digest}
    if isinstance(content, np.ndarray):
        content = torch.from_numpy(content if content.flags.writeable else content.copy())
    return {KIND: "memory", "data": content}


def _restored_memory(
    restorer: Restorer, node: Node, before: torch.Tensor | None, path: str
) -> torch.Tensor:
    """Returns the bytes of a tensor's or an array's memory. `before` are those of its present
    memory.
    """
    if "of" in node:
        return _bytes_of(part_of_made(restorer.made, node["of"], path))
    index = int(node["memory"][1])
    if not restorer.is_bound(index):
        restorer.bind(index, _filled_memory(restorer, restorer.node(index), before, path))
    return restorer.bound(index)


def _filled_memory(
    restorer: Restorer, node: Node, before: torch.Tensor | None, path: str
) -> torch.Tensor:
    """Returns the memory. The existing one is used if it has the same size and stands for no
    other one yet.
    """
    if node[KIND] == "unchanged memory":
        if before is None:
            raise MismatchError(f"{path} was not made again")
        if before.numel() != node["bytes"] or digest_of(before) != node["digest"]:
            raise MismatchError(f"{path} is not what it was: the script made it otherwise")
        return restorer.takes_memory(before)
    data: torch.Tensor = node["data"]
    if before is None or before.numel() != data.numel() or restorer.is_memory_taken(before):
        return restorer.takes_memory(data.clone())
    before.copy_(data)
    return restorer.takes_memory(before)


def check_overlaps(restorer: Restorer, saved: Sequence[Any]) -> None:
    """Raises `MismatchError` if memories from `ReadMemories.overlaps` do not overlap any more."""
    for one, other, distance in saved:
        first, second = restorer.bound(one), restorer.bound(other)
        if first is None or second is None:
            continue
        if second.data_ptr() - first.data_ptr() != distance:
            raise MismatchError("an array is no longer part of the memory of another one")


FAMILY = Family(
    restores={"part": restore_part, "tensor": restore_tensor, "array": restore_array},
    reads={
        **dict.fromkeys((torch.Tensor, torch.nn.Parameter), read_tensor),
        np.ndarray: read_array,
    },
    reads_of_bases=((torch.Tensor, read_tensor),),
)
