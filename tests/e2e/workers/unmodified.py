"""A script that knows nothing of GPUJob: `unmodified.py STEPS PAUSE_SECONDS`, one plain loop.

It prints the digest of its final weights. Its optimizer names its kernel itself, so that nothing
but what a job asks for changes the run.
"""

import hashlib
import sys
import time

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.layers(inputs)


steps, pause_seconds = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 128), nn.Sequential(*(Block(128) for _ in range(4))))
model.append(nn.Linear(128, 1))
data = torch.utils.data.TensorDataset(torch.randn(steps * 16, 64), torch.randn(steps * 16, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print("loss", f"{loss.item():.6f}", flush=True)
    time.sleep(pause_seconds)
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
print("final", steps, digest.hexdigest(), flush=True)
