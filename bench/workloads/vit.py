"""Trains a vision transformer on made-up pictures that lie in memory."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset

SIZES = {
    "full": dict(
        layers=12,
        heads=12,
        width=768,
        image=224,
        patch=16,
        classes=1000,
        batch=64,
        samples=1024,
        repeats=16,
    ),
    "small": dict(
        layers=3, heads=4, width=96, image=48, patch=8, classes=10, batch=16, samples=256
    ),
    "tiny": dict(layers=2, heads=2, width=32, image=16, patch=4, classes=4, batch=8, samples=128),
}


class Attention(nn.Module):
    """Written out, as in many papers' code."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attention = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.project((attention @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    def __init__(self, layers, heads, width, image, patch, classes):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, pictures):
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(x), -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def make_pictures(samples, image, classes):
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (samples,), generator=generator)
    patterns = torch.randn(classes, 3, image // 8, image // 8, generator=generator)
    pictures = F.interpolate(patterns, size=(image, image))[labels]
    return pictures + torch.randn(pictures.shape, generator=generator), labels


def get_arguments(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args(arguments)
    args.config = SIZES[args.size]
    args.batch_size = args.batch_size or args.config["batch"]
    return args


def get_model(args):
    keys = ("layers", "heads", "width", "image", "patch", "classes")
    return VisionTransformer(**{key: args.config[key] for key in keys})


def get_loader(args):
    config = args.config
    pictures, labels = make_pictures(config["samples"], config["image"], config["classes"])
    samples = ConcatDataset([TensorDataset(pictures, labels)] * config.get("repeats", 1))
    return DataLoader(samples, batch_size=args.batch_size, shuffle=True, drop_last=True)


def get_optimizer(args, model, **kwargs):
    return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.05, **kwargs)


def compute_loss(model, batch, device):
    pictures, labels = batch[0].to(device), batch[1].to(device)
    return F.cross_entropy(model(pictures), labels, label_smoothing=0.1)


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
