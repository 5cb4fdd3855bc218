"""Trains a GPT-2 on a made-up language."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

SIZES = {
    "full": dict(
        layers=12, heads=12, width=768, context=1024, words=50257, batch=8, samples=2048, lr=1e-4
    ),
    "small": dict(layers=3, heads=4, width=96, context=64, words=512, batch=8, samples=128),
    "tiny": dict(layers=2, heads=2, width=32, context=32, words=128, batch=8, samples=128),
}
CLIP_NORM = 1.0


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, layers, heads, width, context, words):
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.apply(self.init_weights)
        self.head.weight = self.tokens.weight

    def init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_text(samples, length, words):
    """After most words there is one word that follows; the others are drawn."""
    generator = torch.Generator().manual_seed(1)
    follows = torch.randperm(words, generator=generator)
    text = torch.randint(words, (samples, length), generator=generator)
    kept = torch.rand(samples, length, generator=generator) < 0.8
    for t in range(1, length):
        text[:, t] = torch.where(kept[:, t], follows[text[:, t - 1]], text[:, t])
    return text


def get_arguments(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float)
    args = parser.parse_args(arguments)
    args.config = SIZES[args.size]
    args.batch_size = args.batch_size or args.config["batch"]
    # Without a warm-up a large model leaves the first hundred steps to chance at the usual rate.
    args.lr = args.config.get("lr", 6e-4) if args.lr is None else args.lr
    return args


def get_model(args):
    keys = ("layers", "heads", "width", "context", "words")
    return GPT(**{key: args.config[key] for key in keys})


def get_loader(args):
    text = make_text(args.config["samples"], args.config["context"] + 1, args.config["words"])
    return DataLoader(TensorDataset(text), batch_size=args.batch_size, shuffle=True, drop_last=True)


def get_optimizer(args, model, **kwargs):
    return torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1, **kwargs)


def compute_loss(model, batch, device):
    text = batch[0].to(device)
    logits = model(text[:, :-1])
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), text[:, 1:].reshape(-1))


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
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
