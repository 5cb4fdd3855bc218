"""Batch finders of other projects, run for real on a workload, then training at what they found.

    python -m bench.speed.finders accelerate gpt2 --size small --batch-size 64 --limit-bytes N

Runs inside a race only. Both search for the largest batch that runs: they change how many samples
one optimizer step learns from, which the product never does.
"""

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from bench.speed.ways import ACCELERATE, LIGHTNING, workload_module
from bench.turns.participant import participant

STEPS_PER_TRIAL = 3
TRIALS_MAX = 25


class Counted:
    """Calls of a test for out-of-memory errors, and how many it recognised."""

    def __init__(self, plain: Callable[[BaseException], bool]) -> None:
        self._plain = plain
        self.recognised = 0

    def __call__(self, error: BaseException) -> bool:
        found = self._plain(error)
        self.recognised += found
        return found


class Training:
    """The workload in float32, at any batch size."""

    def __init__(self, name: str, size: str) -> None:
        self.workload = workload_module(name)
        self._size = size
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.trials = 0

    def arguments(self, batch: int) -> Any:
        return self.workload.get_arguments(["--size", self._size, "--batch-size", str(batch)])

    def steps(self, batch: int) -> Any:
        """An endless training; yields after every step."""
        args = self.arguments(batch)
        torch.manual_seed(0)
        loader = self.workload.get_loader(args)
        model = self.workload.get_model(args).to(self.device)
        optimizer = self.workload.get_optimizer(args, model)
        while len(loader):
            for samples in loader:
                optimizer.zero_grad()
                loss = self.workload.compute_loss(model, samples, self.device)
                loss.backward()
                optimizer.step()
                yield loss.item()
        raise SystemExit(f"a batch of {batch} is more than all samples")


def with_accelerate(training: Training, start_batch: int) -> tuple[int, int]:
    """The batch size found, and the out-of-memory errors on the way."""
    from accelerate.utils import memory

    counted = Counted(memory.should_reduce_batch_size)  # pyright: ignore[reportArgumentType]
    memory.should_reduce_batch_size = counted

    @memory.find_executable_batch_size(starting_batch_size=start_batch)  # pyright: ignore
    def train(batch_size: int) -> int:
        training.trials += 1
        for _ in itertools.islice(training.steps(batch_size), STEPS_PER_TRIAL):
            pass
        return batch_size

    return train(), counted.recognised  # pyright: ignore[reportCallIssue]


def with_lightning(training: Training, start_batch: int) -> tuple[int, int]:
    """The same by the Tuner's `scale_batch_size`, power mode, three steps a trial: its defaults.

    It starts small and grows; `start_batch` only ends the search where the script's batch is.
    """
    import pytorch_lightning as lightning
    from pytorch_lightning.tuner import batch_size_scaling
    from pytorch_lightning.tuner.tuning import Tuner

    counted = Counted(batch_size_scaling.is_oom_error)  # pyright: ignore[reportPrivateImportUsage, reportArgumentType]
    batch_size_scaling.is_oom_error = counted  # pyright: ignore[reportPrivateImportUsage]

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.model: nn.Module = training.workload.get_model(training.arguments(2))

        def on_train_start(self) -> None:
            training.trials += 1

        def training_step(self, batch: Any, _: int) -> Any:
            return training.workload.compute_loss(self.model, batch, self.device)

        def configure_optimizers(self) -> Any:
            return training.workload.get_optimizer(training.arguments(2), self.model)

        def train_dataloader(self) -> Any:
            return training.workload.get_loader(training.arguments(self.batch_size))

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="gpu" if training.device == "cuda" else "cpu",
            devices=1,
            max_epochs=1,
            default_root_dir=folder,
            **dict.fromkeys(quiet, False),
        )
        tuner = Tuner(trainer)
        found = tuner.scale_batch_size(Module(), max_trials=TRIALS_MAX, max_val=start_batch)
    return int(found or 0), counted.recognised


FINDERS = {ACCELERATE: with_accelerate, LIGHTNING: with_lightning}


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.speed.finders", description=__doc__)
    parser.add_argument("finder", choices=list(FINDERS))
    parser.add_argument("workload")
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--limit-bytes", type=int, required=True)
    options = parser.parse_args()
    training = Training(options.workload, options.size)
    if training.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.limit_bytes / total))
    start = time.perf_counter()
    batch, errors = FINDERS[options.finder](training, options.batch_size)
    facts = {"found_seconds": time.perf_counter() - start, "tried": training.trials}
    gc.collect()  # what the search has left is not held against it
    torch.cuda.empty_cache()
    steps = training.steps(batch)
    next(steps)
    participant().begin(batch=batch, out_of_memory=errors, **facts)
    for step in itertools.count(2):
        print(f"step {step} loss {next(steps):.6f}", flush=True)


if __name__ == "__main__":
    main()
