"""A small job that resumes: `resumable.py STEPS PAUSE_SECONDS`, the pause after every step.

It leaves its processor idle most of the time, so two share a GPU, and prints the digest of its
final weights: whoever was interrupted must print the same as who was not.
"""

import hashlib
import sys
import time

import torch
from torch import nn

from gpujob_worker import prepare

steps, pause_seconds = int(sys.argv[1]), float(sys.argv[2])
torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 1))
data = torch.utils.data.TensorDataset(torch.randn(steps * 16, 64), torch.randn(steps * 16, 1))
loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
optimizer = torch.optim.AdamW(model.parameters())
losses: list[float] = []
job = prepare(model, optimizer, loader, None, steps_total=steps)
loader = job.loader
job.state("losses", losses)
for inputs, targets in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    print("step", len(losses), f"{losses[-1]:.6f}", flush=True)
    time.sleep(pause_seconds)
digest = hashlib.sha256()
for tensor in model.state_dict().values():
    digest.update(tensor.numpy().tobytes())
print("final", len(losses), digest.hexdigest(), flush=True)
