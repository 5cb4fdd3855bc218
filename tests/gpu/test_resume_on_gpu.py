"""Stopped at random steps on a GPU, scripts end with the weights of a run that was not stopped.

Dropout draws from the GPU's generator, and weights and optimizer states lie on the GPU.
"""

import random
from pathlib import Path

import pytest

from tests.harness.unmodified_scripts import (
    ACCELERATE,
    END,
    HUGGING_FACE,
    LIGHTNING,
    PLAIN,
    attempt,
)
from tests.harness.worker_process import WorkerRun

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
STEPS = 36
ON_GPU = (
    ("net = Net()", "net = Net().cuda()"),
    ("**batch)", "**{name: value.cuda() for name, value in batch.items()})"),
    ("tensor.numpy()", "tensor.cpu().numpy()"),
    ("use_cpu=True, ", ""),
    ("cpu=True", ""),
    ('accelerator="cpu"', 'accelerator="gpu", devices=1'),
)
SCRIPTS = {
    "plain": PLAIN,
    "accelerate": ACCELERATE,
    "huggingface": HUGGING_FACE,
    "lightning": LIGHTNING,
}


def source(name: str) -> str:
    """The script for a GPU; at its end it says what the GPU's generator would draw next."""
    text = SCRIPTS[name]
    for of_cpu, of_gpu in ON_GPU:
        text = text.replace(of_cpu, of_gpu)
    drawn = 'print("drawn", torch.rand(1, device="cuda").item())\n'
    return text.replace(END.splitlines()[1], drawn + END.splitlines()[1])


def ended(done: WorkerRun) -> list[str]:
    """What the GPU's generator draws next, and the digest of the weights."""
    assert done.process.exitcode == 0, done.errors
    drawn, digest = done.output.splitlines()[-2:]
    assert drawn.startswith("drawn ")
    return [drawn, digest]


@pytest.mark.parametrize("name", list(SCRIPTS))
def test_it_ends_with_the_weights_of_a_run_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    text = source(name)
    whole = ended(attempt(tmp_path / "whole", 1, text, 0, 1, 0))
    assert ended(attempt(tmp_path / "again", 1, text, 0, 1, 0)) == whole, "the script's own noise"
    first = random.Random(name).randrange(2, 16)
    stops = [first, first + random.Random(name).randrange(4, 16)]
    for number, stop in enumerate(stops, start=1):
        stopped = attempt(tmp_path / "stopped", number, text, 0, 1, stop)
        assert stopped.process.exitcode == 143, (stops, stopped.errors)
        assert stopped.report["checkpoint"]["step"] == stop, stops
    end = attempt(tmp_path / "stopped", len(stops) + 1, text, 0, 1, 0)
    assert ended(end) == whole, stops
    assert (end.report["resumedFromStep"], end.report["step"]) == (stops[-1], STEPS), stops
