"""Trains a small image classifier on images that it draws itself. Ordinary PyTorch, nothing else.

python examples/train_classifier.py --steps 60
gpujob-run --explain -- python examples/train_classifier.py --steps 60
"""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        return x + self.second(torch.relu(self.first(self.norm(x))))


class Classifier(nn.Module):
    def __init__(self, width, depth, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=(2, 3)))


def draw_images(count, size, classes):
    """Each class is a wave of its own direction and colour, under noise."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(classes, (count,), generator=generator)
    angles = labels.float() * (3.14159 / classes)
    grid = torch.linspace(-3.0, 3.0, size)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    waves = torch.sin(4.0 * (x * angles.cos()[:, None, None] + y * angles.sin()[:, None, None]))
    colours = torch.stack((labels % 2, labels % 3, labels % 5), dim=1).float() / 4 + 0.5
    images = waves[:, None] * colours[:, :, None, None]
    return images + 0.5 * torch.randn(images.shape, generator=generator), labels


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--result", help="write the final loss here, as JSON")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, labels = draw_images(4 * args.batch_size, args.image_size, args.classes)
    loader = DataLoader(TensorDataset(images, labels), batch_size=args.batch_size, shuffle=True)
    model = Classifier(args.width, args.depth, args.classes).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    criterion = nn.CrossEntropyLoss()

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
