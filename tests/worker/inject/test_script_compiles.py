"""What a script compiles itself keeps settings away from its model only if it is of the model."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_alone, run_worker

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)

@torch.compile(backend="eager")
def helper(x):
    return torch.nn.functional.gelu(x) * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        x = self.first(x)
        return self.last(helper(x) if "inside" in sys.argv else x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
x, y = torch.randn(32, 16), torch.randint(4, (32,))
x = helper(x) if "before" in sys.argv else x

@torch.compile(backend="eager")
def whole(x):
    return nn.functional.cross_entropy(net(x), y)

for _ in range(10):
    if "whole" in sys.argv:
        loss = whole(x)
    else:
        out = net(x)
        loss = nn.functional.cross_entropy(helper(out) if "outside" in sys.argv else out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
OF_THE_MODEL = "the script compiles its model itself"


@pytest.mark.parametrize(
    ("place", "of_the_model"),
    [("unused", False), ("before", False), ("outside", False), ("inside", True), ("whole", True)],
)
def test_a_compiled_function_counts_where_the_model_is_in_it_or_around_it(
    place: str, of_the_model: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [str(tmp_path / "train.py"), place]
    code, run = run_worker(
        tmp_path / "hooked",
        command,
        settings={"compile": "Off", "mode": "Recommend"},
        options=("--explain", "--tuning-seconds", "1"),
    )
    assert code == 0, run.errors
    refused = [line for line in run.report["explain"] if OF_THE_MODEL in line]
    assert bool(refused) is of_the_model, run.report["explain"]
    code, alone = run_alone(tmp_path / "alone", command)
    assert (code, run.output) == (0, alone.output)
