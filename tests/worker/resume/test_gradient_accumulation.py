"""job.step: the whole batch's gradients from pieces, for every reduction."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpujob_api.settings import Settings
from gpujob_worker.resume.gradient_accumulation import LossReduction, SplitStep
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


def gradients(
    model: nn.Module, reduction: LossReduction, batch: Any, loss_of: Any, per_step: int | None
) -> tuple[torch.Tensor, list[torch.Tensor], Session]:
    session = Session(Environment(Settings(batch_per_step=per_step)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loss = SplitStep(session, model, optimizer, reduction, None).step(batch, loss_of)
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return loss, found, session


def model_and_tokens(dtype: torch.dtype) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 11)).to(dtype)
    tokens = torch.randint(11, (10, 6))
    targets = torch.randint(11, (10, 6))
    targets[torch.rand(10, 6) < 0.5] = -100
    targets[:3] = -100
    return model, {"tokens": tokens, "targets": targets}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
@pytest.mark.parametrize("per_step", [1, 3, 4])
@pytest.mark.parametrize("reduction", ["mean", "sum", "token"])
def test_pieces_give_the_gradients_of_the_whole(
    reduction: LossReduction, per_step: int, dtype: torch.dtype, tolerance: float
) -> None:
    model, batch = model_and_tokens(dtype)

    def loss_of(piece: Any) -> Any:
        logits, targets = model(piece["tokens"]).flatten(0, 1), piece["targets"].flatten()
        total = functional.cross_entropy(logits, targets, reduction="sum")
        if reduction == "token":
            return total, (targets != -100).sum()
        return total if reduction == "sum" else total / piece["tokens"].shape[0]

    whole = gradients(model, reduction, batch, loss_of, None)
    parts = gradients(model, reduction, batch, loss_of, per_step)
    torch.testing.assert_close(parts[0], whole[0], rtol=tolerance, atol=tolerance)
    for ours, theirs in zip(parts[1], whole[1], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=10 * tolerance, atol=tolerance)
    assert parts[2].log.lines == (f"batch split applied: 10 samples in steps of {per_step}",)


def test_the_naive_mean_would_be_wrong() -> None:
    model, batch = model_and_tokens(torch.float64)

    def naive(piece: Any) -> Any:
        logits, targets = model(piece["tokens"]).flatten(0, 1), piece["targets"].flatten()
        return functional.cross_entropy(logits, targets, reduction="sum") / (
            (targets != -100).sum().clamp(min=1)
        )

    whole = gradients(model, "mean", batch, naive, None)[1][0]
    parts = gradients(model, "mean", batch, naive, 3)[1][0]
    assert float((whole - parts).norm() / whole.norm()) > 0.05


def test_batch_norm_is_never_split() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    seen: list[int] = []

    def loss_of(piece: Any) -> Any:
        seen.append(len(piece))
        return model(piece).square().mean()

    _, _, session = gradients(model, "mean", torch.randn(8, 4), loss_of, 2)
    assert seen == [8]
    assert "BatchNorm1d 1 learns from the whole batch" in session.log.lines[0]


def test_the_norm_is_clipped_over_the_whole_batch() -> None:
    model = nn.Linear(3, 1)
    session = Session(Environment(Settings(batch_per_step=2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    SplitStep(session, model, optimizer, "sum", 0.5).step(
        torch.randn(8, 3), lambda x: 100 * model(x).square().sum()
    )
    norm = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert float(norm) == pytest.approx(0.5, rel=1e-4)


def test_rows_that_do_not_fit_together_stay_whole() -> None:
    model = nn.Linear(3, 1)
    batch = (torch.randn(8, 3), torch.randn(5))

    def loss_of(piece: Any) -> Any:
        return model(piece[0]).mean()

    _, _, session = gradients(model, "mean", batch, loss_of, 2)
    assert "tensors have [5, 8] rows" in session.log.lines[-1]


def test_a_wrong_reduction_is_named() -> None:
    session = Session(Environment())
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="must be mean, sum or token; got 'avg'"):
        SplitStep(session, model, optimizer, "avg", None)  # pyright: ignore[reportArgumentType]
