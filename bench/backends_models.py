"""Five small models with answers that have margins, for the choice of a backend.

The last layer of each classifier is fitted to clusters, because the largest entries of random
weights are decided by rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

CLASSES, SAMPLES, SPREAD = 10, 256, 0.5
_RIDGE = 1e-3


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in evaluation mode, and its calibration samples."""

    model: nn.Module
    inputs: dict[str, torch.Tensor]


class Classifier(nn.Module):
    """A body with flat features, and a linear layer on them."""

    def __init__(self, body: nn.Module, features: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(features, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


class EncoderBlock(nn.Module):
    """One layer of a transformer on 32 positions, and the mean over them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(dim=1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(y)))


def _mlp() -> tuple[Classifier, tuple[int, ...]]:
    body = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())
    return Classifier(body, 256), (128,)


def _cnn() -> tuple[Classifier, tuple[int, ...]]:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    )
    return Classifier(body, 512), (3, 32, 32)


def _encoder() -> tuple[Classifier, tuple[int, ...]]:
    return Classifier(EncoderBlock(), 128), (32, 128)


def _wide() -> tuple[Classifier, tuple[int, ...]]:
    return Classifier(nn.Sequential(nn.Linear(1024, 2048), nn.Tanh()), 2048), (1024,)


def _resnet() -> tuple[Classifier, tuple[int, ...]]:
    body = nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Residual(16),
        Residual(16),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
    )
    return Classifier(body, 256), (3, 32, 32)


MODELS: dict[str, Callable[[], tuple[Classifier, tuple[int, ...]]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "encoder": _encoder,
    "wide": _wide,
    "resnet": _resnet,
}


def subject(name: str) -> Subject:
    """Returns the same model and samples in every process."""
    torch.manual_seed(0)
    model, shape = MODELS[name]()
    centres = torch.randn(CLASSES, *shape)
    classes = torch.arange(SAMPLES) % CLASSES
    inputs = centres[classes] + SPREAD * torch.randn(SAMPLES, *shape)
    # Statistics for BatchNorm that differ from those of a batch.
    model.train()
    with torch.no_grad():
        for _ in range(8):
            model(centres[torch.randint(CLASSES, (64,))] + SPREAD * torch.randn(64, *shape))
    model.eval()
    _fit(model, inputs, classes)
    return Subject(model, {"x": inputs})


def _fit(model: Classifier, inputs: torch.Tensor, classes: torch.Tensor) -> None:
    """Sets the last layer to the least squares solution for the classes (ridge regression)."""
    with torch.no_grad():
        features = model.body(inputs).double()
        ones = torch.ones(len(features), 1, dtype=torch.float64)
        design = torch.cat([features, ones], dim=1)
        wanted = nn.functional.one_hot(classes, CLASSES).double()
        ridge = _RIDGE * len(features) * torch.eye(design.shape[1], dtype=torch.float64)
        solved = torch.linalg.solve(design.T @ design + ridge, design.T @ wanted)
        model.head.weight.copy_(solved[:-1].T)
        model.head.bias.copy_(solved[-1])
