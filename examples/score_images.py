"""Scores images that it draws itself with a small classifier. Ordinary PyTorch, nothing else.

python examples/score_images.py --images 4096 --result scores.csv
gpujob-run --explain -- python examples/score_images.py --images 4096 --result scores.csv

Stopped by SIGTERM and started again with GPUJOB_CHECKPOINT_DIR, it goes on at the next batch.
"""

import argparse
import csv
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    """Each image is noise of its own seed."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        generator = torch.Generator().manual_seed(number)
        return number, torch.randn(3, self.size, self.size, generator=generator)


def classifier(width, classes):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--weights", help="a state dict; without one, the weights are random")
    parser.add_argument("--result", default="scores.csv")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = classifier(args.width, args.classes)
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    model.to(device).eval()
    loader = DataLoader(Images(args.images, args.image_size), batch_size=args.batch_size)

    start = time.time()
    with torch.inference_mode(), open(args.result, "w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["image", "class", "probability"])
        for numbers, images in loader:
            probabilities = model(images.to(device)).softmax(dim=1)
            best, classes = probabilities.max(dim=1)
            for at, number in enumerate(numbers.tolist()):
                table.writerow([number, classes[at].item(), best[at].item()])
            if numbers[-1] % 1024 == 1023:
                print(f"{numbers[-1] + 1} images", flush=True)
    print(f"{args.images} images in {time.time() - start:.1f} s")


if __name__ == "__main__":
    main()
