"""Lightning Fabric puts a module of its own around the script's, which is what is tuned."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_worker

pytestmark = [pytest.mark.timeout(300), pytest.mark.trainers]

SCRIPT = """
import sys, torch, warnings
warnings.simplefilter("ignore")
from lightning_fabric import Fabric
from torch import nn
torch.set_num_threads(1)
class First(nn.Linear):
    def forward(self, x):
        out = super().forward(x)
        # One write, because two processes share the output.
        if step == steps - 1: print(f"dtype {out.dtype}\\n", end="", flush=True)
        return out
def main():
    global step
    fabric = Fabric(accelerator="cpu", devices=int(sys.argv[1]), strategy="auto")
    fabric.launch(); fabric.seed_everything(0)
    net = nn.Sequential(First(32, 64), nn.ReLU(), nn.Linear(64, 4))
    net, opt = fabric.setup(net, torch.optim.AdamW(net.parameters(), 1e-3))
    generator = torch.Generator().manual_seed(fabric.global_rank)
    for step in range(steps):
        x = torch.randn(16, 32, generator=generator)
        opt.zero_grad(); loss = nn.functional.cross_entropy(net(x), x[:, :4].argmax(1))
        fabric.backward(loss); opt.step()
    total = sum(p.detach().double().sum().item() for p in net.parameters())
    print("sum", total, flush=True)
steps, step = 14, 0
if __name__ == "__main__": main()
"""


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_scripts_own_module_is_tuned(processes: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    _, done = run_worker(
        tmp_path / "run",
        ["python", str(script), str(processes)],
        settings={"precision": "bfloat16"},
        options=("--explain", "--tuning-seconds", "2"),
    )
    assert done.process.exitcode == 0, done.errors
    printed = done.output.splitlines()
    assert [line for line in printed if line.startswith("dtype")] == (
        ["dtype torch.bfloat16"] * processes
    )
    assert len({line for line in printed if line.startswith("sum")}) == 1
    assert done.report["tuned"]["precision"] == "bfloat16"
