"""Processes under DistributedDataParallel: a small script with odd variants, and its reports."""

import json
from pathlib import Path
from typing import Any

from tests.harness.worker_process import WorkerRun, start_worker

SCRIPT = """
import json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
what, out = sys.argv[1], sys.argv[2]
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
torch.manual_seed(1)
dtype = torch.float64 if "double" in what else torch.float32
class Speaks(nn.Module):
    def forward(self, x):
        total = x.detach().sum(); dist.all_reduce(total)
        return x + 0 * total
extra = Speaks() if what == "speaks" else nn.Identity()
net = nn.Sequential(nn.Linear(8, 16), extra, nn.Tanh(), nn.Linear(16, 1)).to(dtype)
options = {"unused": {"find_unused_parameters": True}, "static": {"static_graph": True}}
options = options.get(what, {})
if "before" in what:
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    if rank == int(what[-1]):
        net(torch.ones(2, 8)).sum().backward(); opt.zero_grad()
net = DistributedDataParallel(net, **options)
if "before" not in what: opt = torch.optim.AdamW(net.parameters(), lr=0.01)
if what == "inside" and rank == 1: net.module(torch.ones(2, 8))
if what == "part" and rank == 1: net.module[0](torch.ones(2, 8))
generator = torch.Generator().manual_seed(7 + rank)
gradients = []
for i in range(int(sys.argv[3])):
    x = torch.randn(24, 8, generator=generator, dtype=dtype); y = x.sum(1, keepdim=True).tanh()
    opt.zero_grad()
    huge = 1e36 if what == "overflow" and rank == 1 and i == 10 else 1.0
    if "accumulate" in what:
        with net.no_sync():
            (net(x) - y).square().mean().backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=what == "autocast" and rank == 1):
        out = net(x)
    loss = (out - y).square().mean() * huge
    if what == "diverges" and rank == 1 and i > 12: loss = loss + 1e6
    loss.backward()
    if what == "overflow": nn.utils.clip_grad_value_(net.parameters(), 0.5)
    gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]).tolist())
    opt.step()
values = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
print(json.dumps({"gradients": gradients, "values": values, "loss": loss.item()}), flush=True)
dist.destroy_process_group()
"""


def train(
    folder: Path,
    what: str = "plain",
    steps: int = 30,
    size: int = 2,
    source: str = SCRIPT,
    limit_bytes: int | None = None,
    options: tuple[str, ...] = ("--explain",),
    **settings: Any,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What each of the processes printed and reported."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(source)
    runs: list[WorkerRun] = []
    for rank in range(size):
        # Each is the first on a node of its own, so that all report.
        environment = {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": "0"}
        if limit_bytes is not None:
            environment["GPUJOB_MEMORY_LIMIT_BYTES"] = str(limit_bytes)
        command = ["python", str(script), what, str(folder), str(steps)]
        runs.append(
            start_worker(
                folder / str(rank),
                command,
                settings={"mode": "Auto", **settings},
                options=options,
                environment=environment,
            )
        )
    assert [run.wait() for run in runs] == [0] * size, "\n".join(run.errors for run in runs)
    outputs = [json.loads(run.output.splitlines()[-1]) for run in runs]
    for output in outputs:
        assert output["values"] == outputs[0]["values"], "the processes drifted apart"
    return outputs, [run.report for run in runs]


def said(reports: list[dict[str, Any]]) -> list[str]:
    return ["\n".join(report["explain"]) for report in reports]
