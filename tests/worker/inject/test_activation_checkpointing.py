"""Activation checkpointing: the same bits, statistics that are counted once, every refusal."""

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpujob_worker.inject import activation_checkpointing
from gpujob_worker.inject.activation_checkpointing import ActivationCheckpointing
from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.tune.settings.activation_checkpointing import checkpointing_refusal
from tests.harness.blocks import Model, root_and_call
from tests.harness.worker_process import run_worker


def test_activation_checkpointing_gives_the_same_bits() -> None:
    torch.manual_seed(3)
    model = Model()
    root, call = root_and_call(model)
    blocks = ActivationCheckpointing(root)
    assert checkpointing_refusal(blocks, call) is None
    assert len(blocks.blocks) == 3
    gradients: list[list[torch.Tensor]] = []
    for enable in (False, True):
        (blocks.enable if enable else blocks.disable)()
        model.zero_grad()
        torch.manual_seed(4)
        model(call.inputs.leaves[0]).square().mean().backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_batch_norm_counts_what_is_computed_twice_only_once(momentum: float | None) -> None:
    torch.manual_seed(3)
    model = Model(normalize=True)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.momentum = momentum
    start = {name: value.clone() for name, value in model.state_dict().items()}
    root, call = root_and_call(model)
    blocks = ActivationCheckpointing(root)
    assert checkpointing_refusal(blocks, call) is None
    assert all(torch.equal(value, start[name]) for name, value in model.state_dict().items())
    found: list[list[torch.Tensor]] = []
    for enable in (False, True):
        model.load_state_dict(start)
        (blocks.enable if enable else blocks.disable)()
        model.zero_grad()
        torch.manual_seed(4)
        for _ in range(3):
            loss = model(call.inputs.leaves[0]).square().mean()
            loss.backward(retain_graph=True)
            loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
        found[-1] += [buffer.clone() for buffer in model.buffers()]
    assert len(list(model.buffers())) == 9
    assert all(map(torch.equal, *found))


def test_statistics_that_would_be_counted_twice_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    root, call = root_and_call(Model(normalize=True))
    monkeypatch.setattr(activation_checkpointing, "CountedOnce", contextlib.nullcontext)
    refusal = checkpointing_refusal(ActivationCheckpointing(root), call)
    assert refusal == "statistics blocks.0.norm.running_mean would be counted twice"


def test_a_block_that_fails_when_it_is_run_again_does_not_end_the_script() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            if torch._C._current_graph_task_id() != -1:  # inside of a backward
                raise ValueError("not again")
            return torch.tanh(self.layer(x))

    root, call = root_and_call(nn.Sequential(Fails(), Fails()))
    assert (
        checkpointing_refusal(ActivationCheckpointing(root), call)
        == "a probe failed: ValueError: not again"
    )


class Deep(nn.Module):
    """Leaves its layer out where a number drawn for each call says so."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer, self.draw = nn.Linear(16, 16), draw

    def forward(self, x: Any) -> Any:
        # Hardly ever, so that results seldom differ.
        return x if self.draw() < 1e-9 else torch.tanh(self.layer(x))


DRAWS = {
    "Python's generator": random.random,
    "NumPy's generator": np.random.rand,
    "a generator of the script's own": np.random.default_rng(1).random,
}


@pytest.mark.parametrize("source", DRAWS)
def test_blocks_that_draw_from_what_is_not_put_back_are_not_run_twice(source: str) -> None:
    draw = DRAWS[source]
    root, call = root_and_call(nn.Sequential(Deep(draw), Deep(draw)))
    before = random.getstate(), repr(np.random.get_state())
    assert checkpointing_refusal(ActivationCheckpointing(root), call) == (
        f"the blocks draw from {source}, and would draw again in backward"
    )
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_draws_of_torch_and_draws_outside_of_the_blocks_are_no_reason() -> None:
    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16)) for _ in range(2)))

        def forward(self, x: Any) -> Any:
            return self.blocks(x) * (1 + random.random())

    for module in (Around(), nn.Sequential(*(Deep(lambda: float(torch.rand(()))) for _ in "ab"))):
        root, call = root_and_call(module)
        assert checkpointing_refusal(ActivationCheckpointing(root), call) is None


def test_layers_that_speak_to_others_are_not_run_twice() -> None:
    block = nn.Sequential(nn.Linear(16, 16), nn.SyncBatchNorm(16))
    root, call = root_and_call(nn.Sequential(block, nn.Sequential(*block)))
    assert "SyncBatchNorm" in (checkpointing_refusal(ActivationCheckpointing(root), call) or "")


def test_activation_checkpointing_is_refused() -> None:
    root, call = root_and_call(nn.Sequential(nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 1)))
    assert "no list of two or more like blocks" in (
        checkpointing_refusal(ActivationCheckpointing(root), call) or ""
    )
    assert repeated_blocks(nn.Linear(2, 2)) == []
    # Single layers hold nothing worth computing again.
    assert repeated_blocks(nn.ModuleList(nn.Embedding(8, 4) for _ in range(3))) == []


LAZY = """
import torch
from torch import nn
torch.manual_seed(1)
net = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(1))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
x = torch.randn(16, 5)
for step in range(9):
    optimizer.zero_grad(); loss = net(x).square().mean(); loss.backward(); optimizer.step()
print(loss.item())
"""


def test_sizes_that_come_with_the_first_call_are_not_asked_for(tmp_path: Path) -> None:
    lazy = nn.ModuleList(nn.Sequential(nn.LazyLinear(4), nn.ReLU()) for _ in range(2))
    known = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
    assert repeated_blocks(nn.ModuleDict({"lazy": lazy, "known": known})) == list(known)
    script = tmp_path / "train.py"
    script.write_text(LAZY)
    settings = {"tuned": {"activationCheckpointing": True, "fusedOptimizer": True}}
    code, run = run_worker(tmp_path, ["python", str(script)], settings=settings)
    assert code == 0, run.errors
    said = "\n".join(run.report["explain"])
    assert "measuring failed" not in said
    assert "tuning settings of an earlier run are known" in said
