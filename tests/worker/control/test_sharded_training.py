"""Sharded training (FSDP2): its calls speak to all processes, so no process tries one alone."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.harness.worker_process import WorkerRun, start_worker

pytestmark = pytest.mark.timeout(240)
NONE: Mapping[str, str] = MappingProxyType({})

SCRIPT = """
import json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = "file://" + sys.argv[1] + "/group"
dist.init_process_group("gloo", init_method=where, rank=rank, world_size=size)
torch.manual_seed(1)
net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(LAYERS)], nn.Tanh(), nn.Linear(8, 1))
fully_shard(net, mesh=dist.init_device_mesh("cpu", (size,)))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(7 + rank)
for i in range(14):
    x = torch.randn(24, 8, generator=generator)
    opt.zero_grad(); (net(x) - x.sum(1, keepdim=True)).square().mean().backward(); opt.step()
values = torch.cat([p.full_tensor().flatten() for p in net.parameters()]).tolist()
print(json.dumps({"values": values}), flush=True)
dist.destroy_process_group()
"""

# The kernel takes half of the time, whatever else the machine does.
FAST_KERNEL = """
from gpujob_worker.inject.fused_optimizer import OptimizerCopy
measured = OptimizerCopy.step_seconds
def step_seconds(copy):
    measured(copy)
    return 0.001 if copy.optimizer.param_groups[0]["fused"] else 0.002
OptimizerCopy.step_seconds = step_seconds
"""


def train(
    folder: Path,
    variables: Mapping[str, str] = NONE,
    *,
    layers: int = 1,
    before: str = "",
    **settings: Any,
) -> tuple[list[list[float]], list[str]]:
    """Two processes: what each printed, and what each said."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(before + SCRIPT.replace("LAYERS", str(layers)))
    runs: list[WorkerRun] = []
    for rank in range(2):
        environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", **variables}
        command = ["python", str(script), str(folder)]
        runs.append(
            start_worker(folder / str(rank), command, settings=settings, environment=environment)
        )
    assert [run.wait() for run in runs] == [0, 0], "\n".join(run.errors for run in runs)
    values = [json.loads(run.output.splitlines()[-1])["values"] for run in runs]
    return values, ["\n".join(run.report["explain"]) for run in runs]


def test_sharded_training_stays_as_written(tmp_path: Path) -> None:
    """But for the optimizer's kernel, also where settings are asked for; what is left out is
    said."""
    plain, _ = train(tmp_path / "plain", mode="Off")
    recommended, said = train(tmp_path / "recommended", mode="Recommend")
    assert plain[0] == plain[1] == recommended[0] == recommended[1]
    for text in said:
        assert "everything skipped" not in text, text
        assert "fused optimizer skipped: 2 processes could measure and decide differently" in text
    asked, said = train(
        tmp_path / "asked",
        precision="bfloat16",
        compile="On",
        activationCheckpointing="On",
        batchPerStep=8,
    )
    assert asked[0] == asked[1]
    assert asked[0] == pytest.approx(plain[0], abs=1e-5)
    for item in ("precision", "attention kernel", "channels_last", "compile"):
        assert f"{item} skipped: FSDPModule is left as it is" in said[0]
    for text in said:
        for item in ("batch split", "activation checkpointing"):
            assert f"{item} skipped: FSDPModule owns the gradients" in text


def test_the_optimizers_kernel_is_measured_by_one_and_applied_in_all(tmp_path: Path) -> None:
    """Of many small parameters, which the kernel steps at once; what a memory limit is compared
    with, all processes measure as before."""
    plain, _ = train(tmp_path / "plain", layers=40, mode="Off")
    limit = {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**33)}
    tuned, said = train(tmp_path / "tuned", limit, layers=40, before=FAST_KERNEL, mode="Auto")
    assert tuned[0] == tuned[1]
    assert tuned[0] == pytest.approx(plain[0], abs=1e-5)
    assert "pairs); parameters differ by" in said[0].partition("fused optimizer applied")[2]
    assert "fused optimizer applied: as the first process measured" in said[1]
    for text in said:
        assert "2 processes decided together; the same in all" in text
        assert "memory limit kept: " in text
        assert "speed-up" not in text


def test_the_optimizers_kernel_of_an_earlier_run_is_applied_in_all(tmp_path: Path) -> None:
    """Each process steps its own part: nothing else follows from the kernel."""
    known = {"fusedOptimizer": True, "precision": "bfloat16", "compile": True}
    plain, _ = train(tmp_path / "plain", mode="Off")
    tuned, said = train(tmp_path / "tuned", mode="Auto", tuned=known)
    assert tuned[0] == tuned[1]
    assert tuned[0] == pytest.approx(plain[0], abs=1e-5)
    for text in said:
        assert "fused optimizer applied: from an earlier run" in text
        assert "precision skipped: FSDPModule is left as it is" in text
        assert "compile skipped: FSDPModule is left as it is" in text
