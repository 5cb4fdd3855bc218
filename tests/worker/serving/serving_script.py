"""A script as a user writes it, with a class in `__main__`. MODE chooses what goes wrong."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from gpujob_api.serving import BackendName, Batching, ServingSettings
from gpujob_worker.serving.choosing.assignment import ENV_CANDIDATE, Work
from gpujob_worker.serving.choosing.candidate_process import run_candidate_if_asked
from gpujob_worker.serving.choosing.measure import Budget, MeasureError, Setup, measure

MODE = os.environ.get("MODE", "")
IS_LOWER = "bfloat16" in os.environ.get(ENV_CANDIDATE, "")
ANSWERS = "secondsMax" in os.environ.get(ENV_CANDIDATE, "")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if MODE == "late" and ANSWERS:
            time.sleep(0.2)
        if MODE == "crash" and IS_LOWER:
            os.kill(os.getpid(), signal.SIGSEGV)
        return self.last(torch.relu(self.first(x)))


def metric(_: object) -> float:
    if MODE == "metric":
        raise KeyError("labels")
    return 1.0


def main() -> int:
    if MODE != "no seed":
        torch.manual_seed(0)
    model = Net()
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, 8, generator=generator)
    if MODE == "early" and IS_LOWER:
        print("the file of the weights is gone")
        return 0
    run_candidate_if_asked(model, x, metric)
    settings = ServingSettings(backend=BackendName.EAGER, batching=Batching(max_size=4))
    setup = Setup(
        budget=Budget(seconds=600.0, candidate_seconds=300.0),
        work=Work(warm_ups=1, batches_max=5, size_seconds=1.0, clock_seconds=4.0),
    )
    try:
        choice = measure(model, x, settings, setup=setup)
    except MeasureError as error:
        Path(sys.argv[1]).write_text(f"error: {error}")
        return 0
    lines = [f"chosen: {choice.backend.value} {choice.reason}"]
    lines += [f"{one.precision.value}: {one.accepted} {one.reason}" for one in choice.candidates]
    Path(sys.argv[1]).write_text("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
