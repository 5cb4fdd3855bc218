"""How float32 products are computed is the script's choice, by either of torch's interfaces."""

from pathlib import Path

import pytest
import torch

from tests.harness.worker_process import run_worker

SCRIPT = """
import sys, torch
from torch import nn
{choice}
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
x = torch.randn(32, 16)
for _ in range(10):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
from gpujob_worker.inject.process_flags import float32_products, tf32_refusal
print(float32_products(), "|", tf32_refusal())
"""
NEWER = hasattr(torch.backends.cuda.matmul, "fp32_precision")
CHOICES = {
    "": "highest | None",
    "torch.set_float32_matmul_precision('high')": "high | the script chose 'high' itself",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32 | the script chose 'tf32' itself",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_it_is_known_and_ends_no_tuning(choice: str, tmp_path: Path) -> None:
    if "fp32_precision" in choice and not NEWER:
        pytest.skip("this torch has the older interface only")
    (tmp_path / "train.py").write_text(SCRIPT.format(choice=choice))
    code, run = run_worker(
        tmp_path,
        [str(tmp_path / "train.py")],
        settings={"compile": "Off"},
        options=("--explain", "--tuning-seconds", "1"),
    )
    assert code == 0, run.errors
    assert run.output.strip() == CHOICES[choice]
    lines = run.report["explain"]
    assert not [line for line in lines if "measuring failed" in line]
    assert [line for line in lines if line.startswith("fused optimizer ")]
