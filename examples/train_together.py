"""Trains one model in several processes that share the gradients: ordinary torch.distributed.

python examples/train_together.py --steps 20
torchrun --nproc-per-node 2 examples/train_together.py --steps 20

Every worker sees its own part of each batch, and all end with the same weights.
"""

import argparse
import hashlib
import os

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def hash_weights(model):
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    args = parser.parse_args()

    for name, alone in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")):
        os.environ.setdefault(name, alone)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    rank, workers = torch.distributed.get_rank(), torch.distributed.get_world_size()

    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(32, args.width), nn.ReLU(), nn.Linear(args.width, 1)).to(device)
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate)
    truth = torch.randn(32, 1, device=device)
    mine = args.batch_size // workers
    for step in range(args.steps):
        # The same batch on every worker, of which each takes its part.
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(mine * workers, 32, generator=generator)[rank * mine :][:mine].to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), (x @ truth).sin())
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"worker {rank} of {workers}: step {step + 1} loss {loss.item():.6f}", flush=True)
    print(f"worker {rank} of {workers}: weights sha256 {hash_weights(plain)}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
