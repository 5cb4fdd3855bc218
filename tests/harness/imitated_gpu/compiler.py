"""Stands in for `torch.compile`, which has no backend for the imitated device."""

from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo.callback import callback_handler

Shapes = tuple[tuple[int, ...], ...]


class ImitatedCompiler:
    """What it compiles runs as written. It tells, as torch does, when code is made: for each shape,
    or for any size where the code is `dynamic` and does not depend on a size by its value.
    """

    def __init__(self, *, by_value: bool = False) -> None:
        self.made: list[Shapes] = []
        self._by_value = by_value

    def __call__(self, call: Any, *, dynamic: bool, **_: Any) -> Callable[..., Any]:
        known = set[Shapes]()
        # Torch makes code of its own for dimensions of 0 and 1.
        kept = 2 if dynamic and not self._by_value else None

        def run(*args: Any, **kwargs: Any) -> Any:
            leaves = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            shapes = tuple(tuple(min(n, kept or n) for n in leaf.shape) for leaf in leaves)
            if shapes not in known:
                known.add(shapes)
                self.made.append(shapes)
                for begins in callback_handler.start_callbacks:
                    begins(None)  # pyright: ignore[reportArgumentType]
            return call(*args, **kwargs)

        return run
