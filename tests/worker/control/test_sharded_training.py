"""Sharded training (FSDP2): its calls speak to all processes, so no process tries one alone.

What a call computes is tried on a copy that all gather at once.
"""

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
KIND
fully_shard(net, mesh=dist.init_device_mesh("cpu", (size,)))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(7 + rank)
for i in range(STEPS):
    x = torch.randn(24, 8, generator=generator)
    opt.zero_grad()
    (net(x) - x.sum(1, keepdim=True) - OFFSET).square().mean().backward(); opt.step()
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


# bfloat16 takes half of the time of what is written, whatever the machine does.
FAST_HALF = """
from gpujob_worker.tune.probe import RootProbe
tried = RootProbe.seconds
def seconds(probe, plan):
    tried(probe, plan)
    return 0.001 if plan.autocast is not None else 0.002
RootProbe.seconds = seconds
"""
# A look may cost any time, and every one finds that outputs are too large by one.
LOOKS = """
from gpujob_worker.control import loss_check
loss_check.COST_MAX, loss_check.BETWEEN_STEPS, loss_check.LOOKS_NEEDED = 1.0, 10, COUNT
loss_check.CHANGE_MAX, loss_check.LARGE_CHANGE = LARGEST, LARGEST
loss_check.difference = lambda sample, ours, written: torch.ones_like(ours)
import torch
"""
LEFT = "precision skipped: FSDPModule is left as it is"


def start(
    folder: Path,
    variables: Mapping[str, str] = NONE,
    *,
    size: int = 2,
    before: str = "",
    kind: str = "",
    layers: int = 1,
    steps: int = 14,
    offset: float = 0.0,
    **settings: Any,
) -> list[WorkerRun]:
    """`before` runs first in each process. `kind` may make another net of the script's."""
    folder.mkdir()
    script = folder / "train.py"
    text = before + SCRIPT.replace("KIND", kind).replace("LAYERS", str(layers))
    script.write_text(text.replace("STEPS", str(steps)).replace("OFFSET", str(offset)))
    runs: list[WorkerRun] = []
    for rank in range(size):
        environment = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0", **variables}
        command = ["python", str(script), str(folder)]
        runs.append(
            start_worker(folder / str(rank), command, settings=settings, environment=environment)
        )
    return runs


def train(folder: Path, *arguments: Any, **options: Any) -> tuple[list[list[float]], list[str]]:
    """What each process printed, and what each said."""
    runs = start(folder, *arguments, **options)
    assert not any([run.wait() for run in runs]), "\n".join(run.errors for run in runs)
    values = [json.loads(run.output.splitlines()[-1])["values"] for run in runs]
    return values, ["\n".join(run.report["explain"]) for run in runs]


def test_without_auto_sharded_training_stays_as_written(tmp_path: Path) -> None:
    plain, _ = train(tmp_path / "plain", mode="Off")
    recommended, said = train(tmp_path / "recommended", mode="Recommend")
    assert plain[0] == plain[1] == recommended[0] == recommended[1]
    for text in said:
        assert "everything skipped" not in text, text
        assert "fused optimizer skipped: 2 processes could measure and decide differently" in text
        assert LEFT in text


def test_what_is_asked_for_is_compared_in_all_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    plain, _ = train(tmp_path / "plain", mode="Off")
    asked, said = train(
        tmp_path / "asked",
        precision="bfloat16",
        compile="On",
        activationCheckpointing="On",
        batchPerStep=8,
    )
    assert asked[0] == asked[1]
    assert asked[0] == pytest.approx(plain[0], abs=1e-3)
    assert asked[0] != pytest.approx(plain[0], abs=1e-6), "in bfloat16 it rounds"
    assert "bfloat16 autocast, float32 after the last layer, outputs differ by" in said[0]
    assert "precision applied: bfloat16 as the first process measured" in said[1]
    assert "compile skipped: FSDPModule is left as it is" in said[0]
    for text in said:
        for item in ("batch split", "activation checkpointing"):
            assert f"{item} skipped: FSDPModule owns the gradients" in text


# Layers that are cut unevenly, that share a weight, or are sharded by themselves.
UNEVEN = """
net[0] = nn.Linear(8, 8, bias=False); net[1].weight = net[0].weight
fully_shard(net[2], mesh=dist.init_device_mesh("cpu", (size,)))
"""
# torchtitan's order: nothing is left for the root.
PART_BY_PART = """
mesh = dist.init_device_mesh("cpu", (size,))
for part in (*net[:2], list(net[2:])): fully_shard(part, mesh=mesh)
"""


@pytest.mark.parametrize(("size", "kind"), [(2, UNEVEN), (4, UNEVEN), (2, PART_BY_PART)])
def test_what_the_first_process_measures_on_its_copy_is_in_force_in_all(
    size: int, kind: str, tmp_path: Path
) -> None:
    plain, _ = train(tmp_path / "plain", kind=kind, layers=3, size=size, mode="Off")
    tuned, said = train(
        tmp_path / "tuned", before=FAST_HALF, kind=kind, layers=3, size=size, mode="Auto"
    )
    assert all(values == tuned[0] for values in tuned)
    assert tuned[0] == pytest.approx(plain[0], abs=1e-3)
    assert "precision applied: 2.00x" in said[0]
    for text in said:
        assert f"{size} processes decided together; the same in all" in text
        assert "speed-up" not in text, "the copy's calls leave out what processes exchange"
    for text in said[1:]:
        assert "precision applied: bfloat16 as the first process measured" in text


OWN_TYPE = """
from torch.distributed.fsdp import MixedPrecisionPolicy
plain = fully_shard
fully_shard = lambda net, **kw: plain(
    net, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16), **kw)
"""
ALIASED = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.parts = [self.first, self.last]
    def forward(self, x):
        for part in self.parts: x = part(x)
        return x
net = Net()
fully_shard(net.first, mesh=dist.init_device_mesh("cpu", (size,)))
"""
NO_ROOM = """
import os
if os.environ["RANK"] == "1":
    from gpujob_worker.control import sharded_tuning
    sharded_tuning.available_bytes = lambda: 1024
"""


@pytest.mark.parametrize(
    ("script", "reasons"),
    [
        (
            {"kind": OWN_TYPE},
            ["fully_shard casts the module itself (its MixedPrecisionPolicy)"] * 2,
        ),
        ({"kind": ALIASED}, ["ReachedError: forward reaches sharded modules past the copy"] * 2),
        (
            {"before": NO_ROOM},
            [
                "another process cannot gather the whole module",
                "trying the whole module takes 1.58 KiB; 1 KiB are free",
            ],
        ),
    ],
    ids=["own-type", "aliased", "no-room"],
)
def test_where_no_copy_can_be_tried_the_module_is_left_as_it_is(
    script: dict[str, str], reasons: list[str], tmp_path: Path
) -> None:
    plain, _ = train(tmp_path / "plain", mode="Off", **script)
    script = {**script, "before": script.get("before", "") + FAST_HALF}
    tuned, said = train(tmp_path / "tuned", mode="Auto", **script)
    assert tuned[0] == tuned[1]
    assert tuned[0] == pytest.approx(plain[0], abs=1e-5)
    assert LEFT in said[0]
    for text, reason in zip(said, reasons, strict=True):
        assert "sharded module skipped: " in text
        assert reason in text


@pytest.mark.parametrize(("needed", "rolled_back"), [(9, False), (2, True)])
def test_the_first_process_looks_at_the_loss_on_copies(
    needed: int, rolled_back: bool, tmp_path: Path
) -> None:
    before = LOOKS.replace("COUNT", str(needed)).replace("LARGEST", "-1.0")
    _, said = train(
        tmp_path / "looks", before=before, steps=90, offset=1000.0, precision="bfloat16"
    )
    assert "from that of the script's own arithmetic" in said[0]
    for text in said:
        assert ("roll-back to plain settings: in 2 looks of 2" in text) is rolled_back, text


FAILS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last, self.calls = nn.Linear(8, 1), 0
    def forward(self, x):
        self.calls += torch.is_autocast_enabled("cpu")
        if self.calls > 40: raise TypeError("no such kernel")
        return self.last(x)
net = Net()
"""


def test_a_call_that_fails_is_not_made_again_and_the_next_attempt_begins_as_written(
    tmp_path: Path,
) -> None:
    """Made again in one process, it would wait for the others for ever."""
    runs = start(tmp_path / "fails", kind=FAILS, steps=200, precision="bfloat16", compile="Off")
    assert [run.wait() for run in runs] == [1, 1]
    for run in runs:
        assert "TypeError: no such kernel" in run.errors
        text = "roll-back to plain settings: a call of the model failed with it, TypeError"
        assert text in "\n".join(run.report["explain"])
        assert run.report["tuned"]["precision"] == "float32"


def test_the_optimizers_kernel_is_measured_by_one_and_applied_in_all(tmp_path: Path) -> None:
    """Of many small parameters, which the kernel steps at once; what a memory limit is compared
    with, all processes measure as before."""
    plain, _ = train(tmp_path / "plain", layers=40, mode="Off")
    limit = {"GPUJOB_MEMORY_LIMIT_BYTES": str(2**33)}
    tuned, said = train(tmp_path / "tuned", limit, layers=40, before=FAST_KERNEL, mode="Auto")
    assert tuned[0] == tuned[1]
    assert tuned[0] == pytest.approx(plain[0], abs=1e-5)
    kernel = said[0].partition("fused optimizer applied")[2]
    assert "pairs) of the optimizer's step alone; parameters differ by" in kernel
    assert "fused optimizer applied: as the first process measured" in said[1]
    for text in said:
        assert "2 processes decided together; the same in all" in text
        assert "memory limit kept: " in text
        assert "speed-up" not in text


def test_settings_of_an_earlier_run_are_applied_in_all(tmp_path: Path) -> None:
    """As is the type of the products, once it was close on the copy of each process."""
    known = {"fusedOptimizer": True, "precision": "bfloat16", "compile": True}
    plain, _ = train(tmp_path / "plain", mode="Off")
    tuned, said = train(tmp_path / "tuned", mode="Auto", tuned=known)
    assert tuned[0] == tuned[1]
    assert tuned[0] == pytest.approx(plain[0], abs=1e-3)
    for text in said:
        assert "fused optimizer applied: from an earlier run" in text
        assert "precision applied: bfloat16 from an earlier run" in text
        assert "compile skipped: FSDPModule is left as it is" in text
