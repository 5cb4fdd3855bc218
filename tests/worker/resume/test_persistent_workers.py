"""Loaders whose worker processes live on, in trainers: their first checkpoint tells."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpujob_api.report import Protection
from gpujob_api.settings import ResumeMode, Settings
from gpujob_worker.checkpoint.errors import UnsavableError
from gpujob_worker.resume.persistent_workers import memory_refusal
from gpujob_worker.resume.unmodified import Unmodified
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session


class Drawing(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, n: int) -> torch.Tensor:
        return torch.randn(2)


def loader(data: Any, *, lives: bool = True) -> Any:
    return DataLoader(data, batch_size=2, num_workers=1, persistent_workers=lives)


def saves(made: Any, resume: ResumeMode) -> Session:
    session = Session(Environment(settings=Settings(resume=resume)))
    unmodified = Unmodified(session)
    unmodified._boundary = made
    unmodified._refuse_what_workers_keep()
    return session


def test_what_keeps_nothing_is_saved() -> None:
    assert memory_refusal(loader(TensorDataset(torch.arange(8)))) is None
    assert memory_refusal(loader(Drawing(), lives=False)) is None


def test_what_draws_is_refused_and_named() -> None:
    with pytest.raises(UnsavableError, match=r"persistent_workers=False .* draw random numbers"):
        saves(loader(Drawing()), ResumeMode.EXACT)


def test_who_asks_for_best_effort_is_saved_all_the_same() -> None:
    session = saves(loader(Drawing()), ResumeMode.BEST_EFFORT)
    assert session.state.protection is Protection.BEST_EFFORT
    assert "draw random numbers" in str(session.state.protection_reason)
