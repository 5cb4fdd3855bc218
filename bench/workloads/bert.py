"""Trains a BERT to fill in masked words of made-up sentences of different lengths."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SIZES = {
    "full": dict(layers=12, heads=12, width=768, longest=256, words=30522, batch=32, samples=8192),
    "small": dict(layers=3, heads=4, width=128, longest=96, words=1024, batch=16, samples=256),
    "tiny": dict(layers=2, heads=2, width=32, longest=24, words=128, batch=8, samples=128),
}
PAD, MASK, FIRST_WORD = 0, 1, 2
IGNORED = -100


class BERT(nn.Module):
    def __init__(self, layers, heads, width, longest, words):
        super().__init__()
        self.tokens = nn.Embedding(words, width, padding_idx=PAD)
        self.positions = nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.1, activation="gelu", batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.tokens(tokens) + self.positions(positions))
        return self.head(self.encoder(x, src_key_padding_mask=tokens == PAD))


class Sentences(Dataset):
    """Words count up from the first one; 15 % of them are masked."""

    def __init__(self, samples, longest, words):
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(longest // 4, longest + 1, (samples,), generator=generator)
        self.items = []
        for length in lengths.tolist():
            first = torch.randint(words, (1,), generator=generator)
            sentence = FIRST_WORD + (first + torch.arange(length)) % (words - FIRST_WORD)
            masked = torch.rand(length, generator=generator) < 0.15
            masked[0] = True
            self.items.append((sentence.masked_fill(masked, MASK), sentence, masked))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        tokens, sentence, masked = self.items[index]
        return tokens, sentence.masked_fill(~masked, IGNORED)


def pad(items):
    tokens = nn.utils.rnn.pad_sequence([t for t, _ in items], True, PAD)
    labels = nn.utils.rnn.pad_sequence([y for _, y in items], True, IGNORED)
    return tokens, labels


def get_arguments(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=1e-4)
    args = parser.parse_args(arguments)
    args.config = SIZES[args.size]
    args.batch_size = args.batch_size or args.config["batch"]
    return args


def get_model(args):
    keys = ("layers", "heads", "width", "longest", "words")
    return BERT(**{key: args.config[key] for key in keys})


def get_loader(args):
    sentences = Sentences(args.config["samples"], args.config["longest"], args.config["words"])
    return DataLoader(
        sentences, batch_size=args.batch_size, shuffle=True, drop_last=True, collate_fn=pad
    )


def get_optimizer(args, model, **kwargs):
    return torch.optim.AdamW(model.parameters(), lr=args.lr, **kwargs)


def compute_loss(model, batch, device):
    tokens, labels = batch[0].to(device), batch[1].to(device)
    logits = model(tokens)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def main():
    args = get_arguments()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = get_loader(args)
    model = get_model(args).to(device)
    optimizer = get_optimizer(args, model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=10)

    step = 0
    while step < args.steps:
        for batch in loader:
            loss = compute_loss(model, batch, device)
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
