"""Chooses, repeats and pads the samples of a batch."""

from collections.abc import Sequence

import torch

from gpujob_worker.serving.backend import Tensors


def count(tensors: Tensors) -> int:
    """Returns the number of samples."""
    return len(next(iter(tensors.values())))


def rows_of(tensors: Tensors, rows: Sequence[int]) -> dict[str, torch.Tensor]:
    """Returns a copy of the rows, in their order. Numbers beyond the last one begin anew."""
    index = torch.tensor(rows) % count(tensors)
    return {name: tensor.index_select(0, index) for name, tensor in tensors.items()}


def first_rows(tensors: Tensors, size: int) -> dict[str, torch.Tensor]:
    """Returns a copy of the first `size` rows. They are repeated if there are fewer."""
    return rows_of(tensors, range(size))


def padded(tensors: Tensors, size: int) -> Tensors:
    """Returns a batch of `size` rows by repeating the last one, as the batcher pads."""
    missing = size - count(tensors)
    if missing <= 0:
        return tensors
    return {
        name: torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])])
        for name, tensor in tensors.items()
    }
