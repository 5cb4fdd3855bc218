"""Compiled code goes back once and has no second derivatives: what needs more runs as written."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gpujob_worker.inject.script_facts import ScriptFacts, watch_gradients_of_gradients
from tests.harness.worker_process import run_alone, run_worker

pytestmark = pytest.mark.timeout(240)
SCRIPT = """
import os, sys, torch; from torch import nn
torch.manual_seed(0); os.environ["CXX"] = "sh"; kind = sys.argv[1]
plain = torch.compile
torch.compile = lambda call, *, dynamic, options=None: plain(call, backend="aot_eager")
net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
x = torch.randn(32, 8)
for _ in range(14):
    optimizer.zero_grad(); point = x.clone().requires_grad_(kind == "create_graph")
    out = net(point)
    loss = out.square().mean()
    if kind == "create_graph":
        (slope,) = torch.autograd.grad(out.sum(), point, create_graph=True)
        loss = loss + (slope.norm(2, 1) - 1).square().mean()
    if kind == "retain_graph":
        (0.5 * loss).backward(retain_graph=True)
    loss.backward(); optimizer.step()
print(loss.item())
"""
REASONS = {
    "create_graph": "compile skipped: the script differentiates gradients (create_graph)",
    "retain_graph": "compile skipped: the script goes back twice through one call (retain_graph)",
    "plain": "compile applied: asked for",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_script_that_needs_more_than_one_backward_pass_is_not_compiled(
    kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    code, run = run_worker(
        tmp_path / "run",
        [str(path), kind],
        settings={"compile": "On", "precision": "float32"},
        options=("--explain", "--tuning-seconds", "1", "--no-optimizer"),
    )
    assert code == 0, run.errors
    assert REASONS[kind] in run.errors
    _, alone = run_alone(tmp_path / "alone", [str(path), kind])
    assert float(run.output) == pytest.approx(float(alone.output), rel=1e-5)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(
    ("named", "twice", "second"),
    [
        ({}, False, False),
        ({"retain_graph": False, "create_graph": False}, False, False),
        ({"retain_graph": True}, True, False),
        ({"create_graph": True}, False, True),
    ],
)
def test_what_a_backward_pass_asks_for_is_noted(
    named: dict[str, Any], twice: bool, second: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    monkeypatch.setattr(torch.autograd, "grad", torch.autograd.grad)
    for through_tensor in (True, False):
        facts = ScriptFacts()
        watch_gradients_of_gradients(facts)
        x = torch.ones(2, requires_grad=True)
        if through_tensor:
            x.square().sum().backward(**named, inputs=[x])
        else:
            torch.autograd.grad(x.square().sum(), x, **named)
        assert (facts.goes_back_twice, facts.differentiates_gradients) == (twice, second)


def test_arguments_by_their_place_are_noted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.autograd, "grad", torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    facts, x = ScriptFacts(), torch.ones(2, requires_grad=True)
    watch_gradients_of_gradients(facts)
    loss = x.square().sum()
    torch.autograd.backward(loss, None, False)
    assert not facts.goes_back_twice
    torch.autograd.grad(x.square().sum(), x, None, True)
    assert facts.goes_back_twice
