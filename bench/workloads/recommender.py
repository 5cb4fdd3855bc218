"""Trains a recommendation model (embeddings, interactions, a small MLP) on made-up clicks."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIZES = {
    "full": dict(
        tables=26, rows=40_000, width=64, dense=13, hidden=512, batch=4096, samples=1048576
    ),
    "small": dict(tables=8, rows=2_000, width=16, dense=8, hidden=128, batch=256, samples=4096),
    "tiny": dict(tables=4, rows=50, width=8, dense=4, hidden=16, batch=16, samples=256),
}


class Recommender(nn.Module):
    def __init__(self, tables, rows, width, dense, hidden):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(
            nn.Linear(dense, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU()
        )
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, hidden), nn.ReLU(),
            nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1),
        )  # fmt: skip
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense, ids):
        x = self.bottom(dense)
        vectors = [x] + [table(ids[:, index]) for index, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, dim=1)
        dots = stacked @ stacked.transpose(1, 2)
        return self.top(torch.cat([x, dots[:, self.pairs[0], self.pairs[1]]], dim=1)).squeeze(1)


class Clicks(Dataset):
    def __init__(self, samples, tables, rows, dense):
        generator = torch.Generator().manual_seed(1)
        self.dense = torch.randn(samples, dense, generator=generator)
        self.ids = torch.randint(rows, (samples, tables), generator=generator)
        liking = torch.randn(rows, generator=generator)[self.ids].sum(1) + self.dense.sum(1)
        self.clicked = (liking > 0).float()

    def __len__(self):
        return len(self.clicked)

    def __getitem__(self, index):
        return self.dense[index], self.ids[index], self.clicked[index]


def get_arguments(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=1e-3)
    args = parser.parse_args(arguments)
    args.config = SIZES[args.size]
    args.batch_size = args.batch_size or args.config["batch"]
    return args


def get_model(args):
    keys = ("tables", "rows", "width", "dense", "hidden")
    return Recommender(**{key: args.config[key] for key in keys})


def get_loader(args):
    keys = ("samples", "tables", "rows", "dense")
    clicks = Clicks(**{key: args.config[key] for key in keys})
    return DataLoader(clicks, batch_size=args.batch_size, shuffle=True, drop_last=True)


def get_optimizer(args, model, **kwargs):
    return torch.optim.Adam(model.parameters(), lr=args.lr, **kwargs)


def compute_loss(model, batch, device):
    dense, ids, clicked = (part.to(device) for part in batch)
    return F.binary_cross_entropy_with_logits(model(dense, ids), clicked)


def main():
    args = get_arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = get_loader(args)
    model = get_model(args).to(device)
    optimizer = get_optimizer(args, model)

    step = 0
    while step < args.steps:
        for batch in loader:
            optimizer.zero_grad()
            loss = compute_loss(model, batch, device)
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
