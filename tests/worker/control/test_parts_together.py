"""Modules that are called inside another one which processes share: in Lightning's step, whose
wrapper's call is the whole of it, and inside a module around a wrapper.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from gpujob_worker.inject.ddp import (
    is_around_wrappers,
    is_redirected,
    number_of,
    past_wrapper,
    watch_wrappers,
    wrapper_in_step,
)
from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)

# A step as Lightning makes it: `forward` is replaced for one call of the wrapper's.
SCRIPT = """
import collections, json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
what, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
torch.manual_seed(1)
SEEN = collections.Counter()
LOGGED = []
class First(nn.Linear):
    def forward(self, x):
        x = super().forward(x)
        # Of what is counted in compiled code, torch 2.8 makes new code each time.
        if what != "compiled": SEEN[str(x.dtype)[6:]] += 1
        return x
class LightningModule(nn.Module): pass
class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(First(8, 32), nn.Tanh(), nn.Linear(32, 32))
        self.head = nn.Linear(32, 1)
    def forward(self, x): return self.head(self.body(x))
    def training_step(self, x, y):
        if what == "speaks": dist.all_reduce(torch.zeros(1))
        found = self(x) if what == "itself" else self.head(self.body(x))
        loss = (found - y).square().mean(); LOGGED.append(loss.item())
        return loss
def step(wrapper, module, *batch):
    plain = module.forward
    def redirected(*given):
        module.forward = plain
        return module.training_step(*given)
    module.forward = redirected
    return wrapper(*batch)
class Around(nn.Module):
    def __init__(self, wrapper): super().__init__(); self.wrapper = wrapper
    def forward(self, x, y):
        loss = (self.wrapper(x) - y).square().mean(); LOGGED.append(loss.item())
        return loss
net = Module()
if what == "around": net.__class__ = type("Plain", (nn.Module,), {"forward": Module.forward})
wrapper = DistributedDataParallel(net)
around = Around(wrapper)
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
generator = torch.Generator().manual_seed(7 + rank)
gradients = []
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    x = torch.randn(24, 8, generator=generator); y = x.sum(1, keepdim=True).tanh()
    opt.zero_grad()
    loss = around(x, y) if what == "around" else step(wrapper, net, x, y)
    loss.backward()
    gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]).tolist())
    opt.step()
values = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
found = {"gradients": gradients, "values": values, "loss": loss.item(), "seen": SEEN}
print(json.dumps({**found, "logged": len(LOGGED)}), flush=True)
dist.destroy_process_group()
"""


def trained(folder: Path, what: str, **settings: Any) -> tuple[list[Any], list[Any]]:
    return train(folder, what, 20, source=SCRIPT, **settings)


@pytest.mark.parametrize("what", ["parts", "itself", "around", "speaks"])
def test_the_modules_get_what_they_get_in_one_process(what: str, tmp_path: Path) -> None:
    outputs, reports = trained(tmp_path, what, precision="bfloat16")
    assert [report["tuned"]["precision"] for report in reports] == ["bfloat16"] * 2
    assert [output["seen"] for output in outputs] == [{"bfloat16": 1}] * 2
    # Whatever is tried, a step is made once.
    assert [output["logged"] for output in outputs] == [20, 20]
    for text in said(reports):
        assert "processes 2 processes decided together; the same in all" in text
        assert "is left as it is" not in text
    plain, _ = trained(tmp_path / "plain", what, mode="Off")
    assert outputs[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)


@pytest.mark.parametrize("what", ["itself", "around"])
def test_a_split_batch_has_the_gradients_of_the_whole_step(what: str, tmp_path: Path) -> None:
    split, reports = trained(tmp_path / "split", what, tuned={"batchPerStep": 5})
    assert [report["tuned"]["batchPerStep"] for report in reports] == [5, 5]
    plain, _ = trained(tmp_path / "plain", what, mode="Off")
    ours, theirs = (torch.tensor(one[0]["gradients"][0]) for one in (split, plain))
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_a_part_that_leads_is_compiled_where_all_ask_for_it(tmp_path: Path) -> None:
    outputs, reports = trained(tmp_path, "compiled", compile="On")
    assert [report["tuned"]["compile"] for report in reports] == [True, True]
    assert "compile applied: as the first process measured" in said(reports)[1]
    plain, _ = trained(tmp_path / "plain", "parts", mode="Off")
    assert outputs[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.01)


def test_what_is_only_recommended_changes_nothing(tmp_path: Path) -> None:
    outputs, _ = trained(tmp_path / "said", "parts", mode="Recommend", precision="bfloat16")
    plain, _ = trained(tmp_path / "plain", "parts", mode="Off")
    assert outputs[0]["values"] == plain[0]["values"]


class LightningModule(nn.Module):
    """Under this name Lightning's modules are known, without an import of it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.extend((wrapper_in_step(one), past_wrapper(one)) for one in (self.first, OUTSIDE))
        return self.second(self.first(x))


SEEN: list[tuple[nn.Module | None, bool]] = []
OUTSIDE = nn.Linear(2, 2)


@pytest.fixture
def wrapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    watch_wrappers(lambda module: None)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    SEEN.clear()
    yield DistributedDataParallel(LightningModule())
    dist.destroy_process_group()


def test_parts_have_numbers_of_their_own(wrapper: Any) -> None:
    module = wrapper.module
    numbers = [number_of(wrapper), *(number_of(wrapper, part) for part in module.children())]
    assert None not in numbers
    assert len(set(numbers)) == 3
    assert number_of(wrapper, module) == number_of(wrapper)
    assert number_of(None, module) is None


def test_a_part_belongs_to_the_step_only_while_the_wrapper_runs_it(wrapper: Any) -> None:
    wrapper(torch.ones(1, 2))
    assert [(wrapper, False), (None, False)] == SEEN
    assert wrapper_in_step(wrapper.module.first) is None
    assert past_wrapper(wrapper.module.first)


def test_a_call_that_lightning_redirects_is_known(wrapper: Any) -> None:
    module = wrapper.module
    assert not is_redirected(module)
    plain = module.forward
    module.forward = nn.Identity().forward
    assert is_redirected(module)
    module.forward = plain  # as Lightning puts it back
    assert not is_redirected(module)


def test_a_module_whose_forward_a_library_replaces_makes_no_steps() -> None:
    module = nn.Linear(2, 2)
    vars(module)["forward"] = nn.Identity().forward
    assert not is_redirected(module)


def test_a_module_around_wrappers_has_nothing_to_learn_itself(wrapper: Any) -> None:
    assert is_around_wrappers(nn.Sequential(wrapper, nn.Tanh()))
    assert not is_around_wrappers(nn.Sequential(wrapper, nn.Linear(2, 2)))
    assert not is_around_wrappers(wrapper)
    assert not is_around_wrappers(nn.Linear(2, 2))
