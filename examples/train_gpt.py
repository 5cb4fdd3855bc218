"""Trains a small GPT on text that it makes up. The lines marked with (1) to (4) make it resumable.

python examples/train_gpt.py --steps 60
gpujob-run -- python examples/train_gpt.py --steps 60 --result result.json
"""

import argparse
import hashlib
import json
import random
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from gpujob_worker import prepare  # (1)


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm_2(x)))))


class GPT(nn.Module):
    def __init__(self, vocabulary, length, width, depth, heads, dropout):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Sentences(Dataset):
    """Pieces of a made-up text: small sentences of subject, verb and object."""

    def __init__(self, count, length):
        rng = random.Random(1)
        subjects = ["the cat", "a dog", "my friend", "the model", "this GPU"]
        verbs = ["sees", "likes", "trains", "moves", "packs"]
        objects = ["a tree", "the data", "two jobs", "its tail", "the node"]
        words = []
        while sum(map(len, words)) < count * length + 1:
            words += [
                f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(objects)}. "
                for _ in range(1000)
            ]
        self.text = torch.tensor(list("".join(words).encode()))[: count * length + 1]
        self.count, self.length = count, length

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        at = index * self.length
        piece = self.text[at : at + self.length + 1]
        return piece[:-1], piece[1:]


def hash_weights(model):
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--result", help="write loss and hash of the weights here, as JSON")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    per_epoch = -(-args.steps // args.epochs)
    data = Sentences(per_epoch * args.batch_size, args.length)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    model = GPT(256, args.length, args.width, args.depth, args.heads, args.dropout).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, per_epoch * args.epochs)
    losses = []
    job = prepare(model, optimizer, loader, scheduler, steps_total=per_epoch * args.epochs)  # (2)
    loader = job.loader  # (3)
    job.state("losses", losses)  # (4)

    start = time.time()
    for _ in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            logits = model(x.to(device))
            loss = functional.cross_entropy(logits.flatten(0, 1), y.to(device).flatten())
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if len(losses) % 10 == 0:
                print(f"step {len(losses)} loss {losses[-1]:.6f}", flush=True)

    result = {"steps": len(losses), "loss": losses[-1], "weights": hash_weights(model)}
    print(f"final loss {result['loss']:.9f} weights sha256 {result['weights']}")
    print(f"{time.time() - start:.1f} s in this process")
    if args.result:
        with open(args.result, "w") as stream:
            json.dump(result, stream)


if __name__ == "__main__":
    main()
