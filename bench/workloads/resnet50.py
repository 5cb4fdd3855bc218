"""Trains a ResNet-50 on made-up pictures that are decoded one by one."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, Dataset

SIZES = {
    "full": dict(
        blocks=(3, 4, 6, 3), width=64, image=224, classes=1000, batch=64, samples=1024, repeats=16
    ),
    "small": dict(blocks=(1, 1, 1, 1), width=16, image=64, classes=10, batch=16, samples=256),
    "tiny": dict(blocks=(1, 1), width=8, image=16, classes=4, batch=8, samples=128),
}


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + identity)


class ResNet(nn.Module):
    def __init__(self, blocks, width, classes):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, inputs = [], width
        for stage, count in enumerate(blocks):
            for index in range(count):
                stride = 2 if index == 0 and stage > 0 else 1
                layers.append(Bottleneck(inputs, width * 2**stage, stride))
                inputs = 4 * width * 2**stage
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean(dim=(2, 3)))


class Pictures(Dataset):
    """Stripes of as many directions as there are classes, under noise; stored as bytes."""

    def __init__(self, samples, image, classes):
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(classes, (samples,), generator=generator)
        grid = torch.linspace(-8.0, 8.0, image)
        self.y, self.x = torch.meshgrid(grid, grid, indexing="ij")
        self.noise = torch.randint(0, 64, (3, image, image), generator=generator, dtype=torch.uint8)
        self.classes = classes
        self.mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
        self.std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        label = self.labels[index]
        angle = label * (3.14159 / self.classes)
        stripes = torch.sin(self.x * torch.cos(angle) + self.y * torch.sin(angle) + index)
        picture = (96 + 64 * stripes).to(torch.uint8) + self.noise.roll(index, 2)
        return (picture.float() / 255 - self.mean) / self.std, label


def get_arguments(arguments=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args(arguments)
    args.config = SIZES[args.size]
    args.batch_size = args.batch_size or args.config["batch"]
    return args


def get_model(args):
    return ResNet(args.config["blocks"], args.config["width"], args.config["classes"])


def get_loader(args):
    pictures = Pictures(args.config["samples"], args.config["image"], args.config["classes"])
    pictures = ConcatDataset([pictures] * args.config.get("repeats", 1))
    return DataLoader(pictures, batch_size=args.batch_size, shuffle=True, drop_last=True)


def get_optimizer(args, model, **kwargs):
    return torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4, **kwargs
    )


def compute_loss(model, batch, device):
    pictures, labels = batch[0].to(device), batch[1].to(device)
    return F.cross_entropy(model(pictures), labels)


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
            loss = compute_loss(model, batch, device)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step} loss {loss.item():.6f}", flush=True)
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
