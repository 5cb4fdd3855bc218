"""Serves a small classifier of 8x8 images. Ordinary PyTorch, and one line that serves it.

python examples/serve_digits.py
gpujob-run -- python examples/serve_digits.py

curl localhost:8000/v2/models/digits/infer -d '{"inputs": [
    {"name": "image", "datatype": "UINT8", "shape": [1, 1, 8, 8], "data": [...64 numbers...]}]}'

The weights are those of a fixed seed. `--weights` loads trained ones.
"""

import argparse

import torch
from torch import nn

import gpujob_worker as gpujob


class Digits(nn.Module):
    """Takes bytes, so that a request carries a quarter of what floats need."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def forward(self, image):
        scores = self.layers(image.float() / 255)
        return {"probabilities": scores.softmax(dim=1), "digit": scores.argmax(dim=1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", help="a state dict; without one, the weights are random")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Digits()
    if args.weights:
        model.load_state_dict(torch.load(args.weights, weights_only=True))
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    images = torch.randint(0, 256, (256, 1, 8, 8), dtype=torch.uint8)
    gpujob.serve(model, {"image": images}, name="digits")


if __name__ == "__main__":
    main()
