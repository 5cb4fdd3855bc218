"""Processes that train together compile in the middle of a run together, or none of them does.

The compiler is a stand-in: it says when it was asked and when its code ran, computes what eager
code does, and is faster, wrong or slow by intention.
"""

from pathlib import Path
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from gpujob_worker.control.consensus import Consensus
from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)
SCRIPT = """
import collections, json, os, sys, time, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from gpujob_worker.control import rollback_guard, tuning_run
tuning_run.COMPILE_AFTER_SECONDS = 0
torch.set_num_threads(1); torch.manual_seed(1)
what, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
# Steps of a crowded machine differ by any factor.
if what != "slower": rollback_guard.SLOWER_ALLOWED = 1e9
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
last = rank == size - 1
if not (what == "no compiler" and last): os.environ["CXX"] = "sh"
else: os.environ["CXX"] = "no-such-compiler"
MADE, RAN = [], []
LIVE, FAST = [0], [False]
class Net(nn.Sequential):
    def forward(self, x):
        if not FAST[0]: time.sleep(0.02)
        return super().forward(x)
def compiler(call, *, dynamic, options=None):
    MADE.append(call.__self__ is net.module)
    def compiled(*args):
        if what == "breaks" and last: raise RuntimeError("no such kernel")
        if LIVE[0]: RAN.append(LIVE[0])
        if what == "slower" and last and LIVE[0]: time.sleep(0.5)
        FAST[0] = True
        try: return call(*args) * (1.2 if what == "wrong" and last else 1.0)
        finally: FAST[0] = False
    return compiled
torch.compile = compiler
dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
net = DistributedDataParallel(Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(7 + rank)
for i in range(steps):
    x = torch.randn(24, 8, generator=generator); y = x.sum(1, keepdim=True).tanh()
    opt.zero_grad(); LIVE[0] = i + 1; prediction = net(x); LIVE[0] = 0
    (prediction - y).square().mean().backward(); opt.step()
values = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
print(json.dumps({"values": values, "ran": RAN, "made": MADE}), flush=True)
dist.destroy_process_group()
"""
SETTINGS = {"precision": "float32"}
OPTIONS = ("--explain", "--tuning-seconds", "2", "--no-optimizer", "--no-attention")
STEPS = 64


def run(folder: Path, what: str, size: int = 2, **settings: str) -> tuple[Any, Any]:
    chosen: dict[str, Any] = {**SETTINGS, **settings}
    return train(folder, what, STEPS, size, source=SCRIPT, options=OPTIONS, **chosen)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_all_compile_at_the_same_step(size: int, tmp_path: Path) -> None:
    outputs, reports = run(tmp_path / "auto", "plain", size)
    assert [report["tuned"]["compile"] for report in reports] == [True] * size, said(reports)
    ran = outputs[0]["ran"]
    assert ran, said(reports)
    assert ran == list(range(ran[0], STEPS + 1)), "compiled code runs from one step on"
    assert [output["ran"] for output in outputs] == [ran] * size
    assert all(output["made"] and all(output["made"]) for output in outputs)
    assert ", outputs differ by 0 %" in said(reports)[0].partition("compile applied: ")[2]
    assert "compile applied: as the first process measured" in said(reports)[1]
    plain, _ = run(tmp_path / "off", "plain", size, mode="Off")
    assert plain[0]["values"] == outputs[0]["values"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [("wrong", "numbers disagree: outputs differ by 20 %"), ("breaks", "no such kernel")],
)
def test_what_one_process_cannot_use_no_process_uses(
    what: str, reason: str, tmp_path: Path
) -> None:
    outputs, reports = run(tmp_path, what)
    assert reason in said(reports)[1]
    assert "compile skipped: not close, or not compiled, in all processes" in said(reports)[0]
    assert [report["tuned"]["compile"] for report in reports] == [False] * 2
    assert [output["ran"] for output in outputs] == [[], []]


def test_where_one_process_has_no_compiler_none_tries(tmp_path: Path) -> None:
    outputs, reports = run(tmp_path, "no compiler")
    assert [output["made"] for output in outputs] == [[], []], said(reports)
    assert [report["tuned"]["compile"] for report in reports] == [False] * 2


def test_steps_that_get_slower_in_one_process_take_it_from_all(tmp_path: Path) -> None:
    outputs, reports = run(tmp_path, "slower")
    ran = outputs[0]["ran"]
    assert ran, said(reports)
    assert [output["ran"] for output in outputs] == [ran] * 2
    assert ran[-1] < STEPS
    for text, report in zip(said(reports), reports, strict=True):
        assert "compile skipped: rolled back: steps took" in text
        assert not report["tuned"]["compile"]


def test_a_plan_waits_for_all_and_for_the_next_check() -> None:
    store = HashStore()
    first, second = (Consensus(store, rank, 2) for rank in range(2))
    first.ready_to_compile()
    first.plan_compilation(10)
    assert not first.compilation_due(20), "the other one is not ready"
    second.ready_to_compile()
    first.plan_compilation(20)
    assert not second.compilation_due(20), "the first one may have passed this check already"
    assert first.compilation_due(30)
    assert second.compilation_due(30)
