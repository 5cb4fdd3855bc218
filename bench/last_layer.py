"""What a language model learns with its last layer in bfloat16, and as the worker runs it.

    python -m bench.last_layer [--steps 160] [--starts 4]

A GPT-2 of 6 layers with 16,384 words, on the CPU, at the usual learning rate without a warm-up:

- float32: the script as written;
- bfloat16: autocast, and float32 from the last layer's output on;
- as the worker does it: the last layer in float32 too.

Each from several starts, whose weights differ by a ten-thousandth: what they differ by at the end
is chance. `loss` is of the last ten steps, the mean over the starts, with the lowest and highest.
Each start takes a way two minutes on a core.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from bench.machine import print_result
from bench.table import format_table
from bench.workloads import gpt2
from gpujob_worker.inject.float32_tail import LayerCall, tail_of
from gpujob_worker.inject.wrapped_module import Root, RootPlan

CONFIG = dict(layers=6, heads=4, width=256, context=128, words=16384, samples=2048, batch=8)
STEPS, STARTS = 160, 4
AVERAGED = 10
START_DIFFERENCE = 1e-4
WAYS = FLOAT32, BFLOAT16, OURS = "float32", "bfloat16", "as the worker does it"
COLUMNS = ("way", "loss", "lowest", "highest", "starts")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.last_layer", description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--starts", type=int, default=STARTS)
    options = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    for way in WAYS:
        ends: list[float] = []
        for start in range(options.starts):
            ends.append(statistics.fmean(list(losses(way, start, options.steps))[-AVERAGED:]))
            print(f"{way}, start {start}: {ends[-1]:.3f}", file=sys.stderr)
        row = {"loss": statistics.fmean(ends), "lowest": min(ends), "highest": max(ends)}
        rows.append({"way": way, **row, "starts": len(ends)})
    print(f"Loss after {options.steps} steps")
    print(format_table(rows, COLUMNS))
    print_result(rows, bench="last_layer", steps=options.steps)
    return 0


def losses(way: str, start: int, steps: int) -> Iterator[float]:
    """Those of the training, step by step."""
    args = gpt2.get_arguments(["--size", "small"])
    args.config, args.batch_size = CONFIG, CONFIG["batch"]
    torch.manual_seed(0)
    loader, model = gpt2.get_loader(args), gpt2.get_model(args)
    _disturb(model, start)
    optimizer = gpt2.get_optimizer(args, model)
    root = Root(model, lambda _: None)
    root.install()
    root.plan = plan_of(model, way)
    batches = (batch for _ in range(steps) for batch in loader)
    for _, batch in zip(range(steps), batches, strict=False):
        optimizer.zero_grad()
        loss = gpt2.compute_loss(model, batch, "cpu")
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), gpt2.CLIP_NORM)
        optimizer.step()
        yield loss.item()


def plan_of(model: Any, way: str) -> RootPlan:
    """How the model's calls are made."""
    if way == FLOAT32:
        return RootPlan()
    # All products in one layer: it is a large one.
    tail = tail_of([LayerCall(model.head, 1.0)], torch.bfloat16)
    assert tail is not None
    return RootPlan(torch.bfloat16).having(tail if way == OURS else replace(tail, whole=False))


def _disturb(model: nn.Module, start: int) -> None:
    generator = torch.Generator().manual_seed(start)
    with torch.no_grad():
        for parameter in model.parameters():
            factor = torch.randn(parameter.shape, generator=generator)
            parameter.mul_(1 + START_DIFFERENCE * factor)


if __name__ == "__main__":
    sys.exit(main())
