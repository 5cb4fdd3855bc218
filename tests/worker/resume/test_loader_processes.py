"""Processes of a loader and the signals that a launcher sends to a rank's process group."""

import os

import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from gpujob_worker.resume.watch import keep_from_group_signals


class _Ids(Dataset[torch.Tensor]):
    """Each sample is the process that read it, and that process's group."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([os.getpid(), os.getpgid(0)])


def _groups() -> dict[int, int]:
    loader = DataLoader(_Ids(), batch_size=1, num_workers=2, multiprocessing_context="fork")
    return dict(batch[0].tolist() for batch in loader)


def test_loader_processes_are_groups_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_worker_loop", worker._worker_loop)  # put back afterwards
    before = _groups()
    assert len(before) == 2
    assert set(before.values()) == {os.getpgid(0)}, "a signal to the group reaches them"
    keep_from_group_signals(worker)
    after = _groups()
    assert len(after) == 2
    assert all(process == group for process, group in after.items())
