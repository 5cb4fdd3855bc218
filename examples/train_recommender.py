"""Trains a small recommender on clicks that it makes up. Ordinary PyTorch, nothing else.

python examples/train_recommender.py --steps 60
gpujob-run --explain -- python examples/train_recommender.py --steps 60
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Recommender(nn.Module):
    def __init__(self, users, items, width):
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.score = nn.Sequential(nn.Linear(2 * width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, pairs):
        both = torch.cat((self.users(pairs[:, 0]), self.items(pairs[:, 1])), dim=1)
        return self.score(both).squeeze(1)


def draw_clicks(count, users, items):
    """Pairs of a user and an item; whether it was clicked follows from what kinds they are of."""
    generator = torch.Generator().manual_seed(1)
    user = torch.randint(users, (count,), generator=generator)
    item = torch.randint(items, (count,), generator=generator)
    return torch.stack((user, item), dim=1), (user % 7 + item % 5 > 5).float()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--users", type=int, default=30_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--result", help="write the final loss here, as JSON")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    pairs, clicked = draw_clicks(64 * args.batch_size, args.users, args.items)
    loader = DataLoader(TensorDataset(pairs, clicked), batch_size=args.batch_size, shuffle=True)
    model = Recommender(args.users, args.items, args.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    criterion = nn.BCEWithLogitsLoss()

    step, start = 0, time.time()
    while step < args.steps:
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x.to(device)), y.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0 or step == args.steps:
                print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == args.steps:
                break
    print(f"{args.steps} steps in {time.time() - start:.1f} s")
    if args.result:
        with open(args.result, "w") as stream:
            json.dump({"steps": args.steps, "loss": loss.item()}, stream)


if __name__ == "__main__":
    main()
