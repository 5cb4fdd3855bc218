"""Datasets of numbers for tests of loaders."""

import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class Numbers(Dataset[Any]):
    def __init__(self) -> None:
        self.reads = self.start = 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(self.start + index)


class Long(Numbers):
    def __len__(self) -> int:
        return 60


class Noisy(Numbers):
    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index) + torch.rand(())


class OwnNoise(Numbers):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(1)
        self.transforms = [random.Random(2)]

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(index + self.generator.random() + self.transforms[0].random())
