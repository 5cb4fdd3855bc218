"""Flattens module calls into lists of leaves, to take rows out of a batch and to reassemble
outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Tensor = torch.Tensor

# Why a batch that is not `divisible` is not split.
INDIVISIBLE = "samples cannot be taken out of a sparse or nested batch"


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Arguments of one module call, flattened. `detached` copies share storage but no graph."""

    leaves: tuple[Any, ...]
    spec: Any
    # The original inputs, for the call itself. A forward may write into a dict that the script
    # reads.
    given: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "CallInputs":
        leaves, spec = pytree.tree_flatten((args, kwargs))
        return cls(tuple(leaves), spec, (args, kwargs))

    def detached(self) -> "CallInputs":
        def detach(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return leaf.detach().requires_grad_(leaf.requires_grad)

        return CallInputs(tuple(detach(leaf) for leaf in self.leaves), self.spec)

    def with_leaves(self, leaves: tuple[Any, ...]) -> "CallInputs":
        return CallInputs(leaves, self.spec)

    def call(self, function: Callable[..., Any]) -> Any:
        args, kwargs = self.given or pytree.tree_unflatten(list(self.leaves), self.spec)
        return function(*args, **kwargs)

    @property
    def rows(self) -> int | None:
        """The number of samples: the first dimension of the first tensor that has one. None without
        such a tensor.
        """
        for leaf in self.leaves:
            if isinstance(leaf, Tensor) and leaf.dim() > 0:
                return int(leaf.size(0))
        return None

    @property
    def divisible(self) -> bool:
        """True if rows can be taken out. Sparse matrices and nested tensors do not permit that."""
        carriers = zip(self.leaves, self.batched(), strict=True)
        return all(_is_plain(leaf) for leaf, is_batched in carriers if is_batched)

    def batched(self) -> tuple[bool, ...]:
        """Returns which leaves have samples: tensors whose first dimension is the number
        of rows.
        """
        rows = self.rows
        return tuple(
            isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.size(0) == rows
            for leaf in self.leaves
        )

    def narrow(self, start: int, length: int, batched: tuple[bool, ...]) -> "CallInputs":
        leaves = (
            leaf.narrow(0, start, length) if is_batched else leaf
            for leaf, is_batched in zip(self.leaves, batched, strict=True)
        )
        return self.with_leaves(tuple(leaves))

    def first(self, rows: int) -> "CallInputs":
        """Returns the first samples, or all if there are fewer."""
        return self.narrow(0, min(self.rows or 1, rows), self.batched())

    @property
    def signature(self) -> tuple[Any, ...]:
        """Shapes and types. Calls with equal signatures run the same compiled graph."""
        return tuple(
            (_shape(leaf), leaf.dtype) if isinstance(leaf, Tensor) else type(leaf)
            for leaf in self.leaves
        )


def _is_plain(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _shape(tensor: Tensor) -> tuple[int, ...]:
    """Returns the shape. For a nested tensor, it is the number of parts, because their
    sizes vary.
    """
    return (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)


def tensor_leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


def differentiable_leaves(output: Any) -> list[Tensor]:
    return [leaf for leaf in tensor_leaves(output) if leaf.requires_grad]


def map_tensors(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    def apply(leaf: Any) -> Any:
        return function(leaf) if isinstance(leaf, Tensor) else leaf

    return pytree.tree_map(apply, tree)


def trainable(module: torch.nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]
