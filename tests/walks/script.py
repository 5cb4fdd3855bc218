"""A plain training script, parts of whose run are counted (`tracer`)."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.walks import tracer


def main() -> None:
    tracer.begin()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    samples = TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1))
    loader = DataLoader(samples, batch_size=64, shuffle=True)
    for step, (inputs, targets) in enumerate(loader, 1):
        tracer.before_step(step)
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if tracer.is_over(step):
            break


if __name__ == "__main__":
    main()
