"""A small model of repeated blocks for tests of the worker, and a root with a recorded call."""

from typing import Any

import torch
from torch import nn

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root


class Block(nn.Module):
    def __init__(self, width: int = 16, normalize: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.norm = nn.BatchNorm1d(width) if normalize else nn.LayerNorm(width)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return x + self.dropout(torch.tanh(self.layer(self.norm(x))))


class Model(nn.Module):
    def __init__(self, normalize: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(normalize=normalize) for _ in range(3))
        self.head = nn.Linear(16, 2)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def root_and_call(model: nn.Module, rows: int = 12) -> tuple[Root, RecordedCall]:
    root = Root(model, lambda _: None)
    root.install()
    batch = torch.randn(rows, 16).to(root.device)
    return root, RecordedCall(CallInputs.of((batch,), {}))
