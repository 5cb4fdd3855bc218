"""One optimizer step over a batch in pieces, with the gradients of the whole batch.

A mean is weighted by each piece's samples, and a sum is not weighted. For a token loss, the sums of
losses are differentiated and the gradients divided once by the number of all tokens.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.utils import _pytree as pytree

from gpujob_worker.inject.guards import batch_statistics
from gpujob_worker.run.session import Session

LossReduction = Literal["mean", "sum", "token"]


class SplitStep:
    """Runs zero_grad, forward and backward piece by piece, clipping, and the optimizer step."""

    def __init__(
        self,
        session: Session,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        reduction: LossReduction,
        clip_norm: float | None,
    ) -> None:
        if reduction not in ("mean", "sum", "token"):
            raise ValueError(f"loss_reduction must be mean, sum or token; got {reduction!r}")
        self._session = session
        self._model = model
        self._optimizer = optimizer
        self._reduction = reduction
        self._clip_norm = clip_norm

    def step(self, batch: Any, loss_of: Callable[[Any], Any]) -> torch.Tensor:
        self._optimizer.zero_grad(set_to_none=True)
        pieces, rows = self._pieces(batch)
        self._session.takes_samples(sum(rows))
        if self._reduction == "token":
            loss = self._backward_tokens(pieces, loss_of)
        else:
            loss = self._backward(pieces, rows, loss_of)
        self._session.state.saw_loss(loss)
        if self._clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip_norm)
        self._optimizer.step()
        return loss

    def _pieces(self, batch: Any) -> tuple[list[Any], list[int]]:
        leaves, spec = pytree.tree_flatten(batch)
        sizes = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        rows = sizes[0] if sizes else 1
        per_step = self._rows_per_step(rows)
        if per_step >= rows:
            return [batch], [rows]
        if any(size != rows for size in sizes):
            text = f"the batch's tensors have {sorted(set(sizes))} rows"
            self._session.log.skipped("batch split", text)
            return [batch], [rows]
        columns = [
            leaf.split(per_step) if isinstance(leaf, torch.Tensor) and leaf.dim() else None
            for leaf in leaves
        ]
        starts = range(0, rows, per_step)
        pieces = [
            pytree.tree_unflatten(
                [leaf if c is None else c[n] for leaf, c in zip(leaves, columns, strict=True)], spec
            )
            for n in range(len(starts))
        ]
        return pieces, [min(per_step, rows - start) for start in starts]

    def _rows_per_step(self, rows: int) -> int:
        """Returns the user's number of rows, or the one that memory requires, unless the model
        needs the whole batch.
        """
        session = self._session
        asked = session.environment.settings.batch_per_step
        tuned = session.state.tuned.batch_per_step if session.state.tuned is not None else None
        per_step = asked or tuned
        if per_step is None or not session.optimizes or not session.features.allows("batch_split"):
            return rows
        reason = batch_statistics(self._model)
        if reason is not None:
            session.log.skipped("batch split", reason)
            return rows
        if per_step < rows:
            session.log.applied("batch split", f"{rows} samples in steps of {per_step}")
        return per_step

    def _backward(
        self, pieces: list[Any], rows: list[int], loss_of: Callable[[Any], Any]
    ) -> torch.Tensor:
        total = torch.zeros(())
        for piece, count in zip(pieces, rows, strict=True):
            loss = loss_of(piece)
            if len(pieces) > 1 and self._reduction == "mean":
                loss = loss * (count / sum(rows))
            loss.backward()
            total = loss.detach() if len(pieces) == 1 else total.to(loss.device) + loss.detach()
        return total

    def _backward_tokens(self, pieces: list[Any], loss_of: Callable[[Any], Any]) -> torch.Tensor:
        total: torch.Tensor | None = None
        tokens: Any = 0
        for piece in pieces:
            loss, count = loss_of(piece)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
            tokens = tokens + count
        assert total is not None
        divisor = torch.as_tensor(tokens, device=total.device).clamp(min=1)
        gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
        for gradient in gradients:
            gradient.div_(divisor.to(gradient.dtype))
        return total / divisor
