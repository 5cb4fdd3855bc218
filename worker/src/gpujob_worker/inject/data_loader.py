"""Hooks into the data loader: the loop's waiting time, and which batches can be pinned."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,  # pyright: ignore[reportPrivateUsage]
)


def watch_loaders(
    before_pass: Callable[[Any], None],
    begun: Callable[[Any, Any], None],
    waits: Callable[[Any], None],
    received: Callable[[Any], Any],
    waited: Callable[[Any, float], None],
) -> Callable[[], None]:
    """Calls `before_pass(loader)` and `begun(loader, iterator)` at the start of a pass.

    Around each batch, `waits(iterator)` and `waited(iterator, seconds)` are called. The script gets
    the result of `received(batch)`. Returns a function that restores the class.
    """
    plain_iter = DataLoader.__iter__
    plain_next = _BaseDataLoaderIter.__next__

    def __iter__(self: Any) -> Any:  # noqa: N807
        before_pass(self)
        iterator = plain_iter(self)
        begun(self, iterator)
        return iterator

    def __next__(self: Any) -> Any:  # noqa: N807
        waits(self)
        start = time.perf_counter()
        try:
            return received(plain_next(self))
        finally:
            waited(self, time.perf_counter() - start)

    DataLoader.__iter__ = __iter__
    _BaseDataLoaderIter.__next__ = __next__

    def undo() -> None:
        DataLoader.__iter__ = plain_iter
        _BaseDataLoaderIter.__next__ = plain_next

    return undo


def pin_refusal(batch: Any) -> str | None:
    """Returns why a batch must not be copied into pinned memory, or None if all its
    tensors can be.
    """
    leaves = pytree.tree_leaves(batch)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors:
        return "a batch has no tensors"
    for leaf in leaves:
        reason = _pin_refusal_of(leaf)
        if reason is not None:
            return reason
    return None


def _pin_refusal_of(leaf: Any) -> str | None:
    if isinstance(leaf, (str, bytes, int, float)) or leaf is None:
        return None
    if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu":
        return f"batches lie on {leaf.device.type} already"
    if type(leaf) is not torch.Tensor or leaf.layout is not torch.strided:
        return f"a batch has a {type(leaf).__name__} that is no dense tensor"
    return "the script does it itself" if leaf.is_pinned() else None
