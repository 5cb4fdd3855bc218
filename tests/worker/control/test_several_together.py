"""Scripts that train several modules, each under DistributedDataParallel."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)

HEAD = """
import collections, json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
what, out, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
torch.manual_seed(1)
SEEN = collections.Counter()
class Net(nn.Sequential):
    def forward(s, x):
        x = s[0](x); SEEN[f"{s.name} {str(x.dtype)[6:]}"] += 1
        return s[2](s[1](x))
def net(name, *sizes):
    a, b, c = sizes; m = Net(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c)); m.name = name
    return DistributedDataParallel(m)
generator = torch.Generator().manual_seed(7 + rank)
noise = lambda *shape: torch.randn(*shape, generator=generator)
"""
ADVERSARIES = """
g, d = net("g", 4, 64, 16), net("d", 16, 64, 1)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.Adam(d.parameters(), 1e-3)
bce = F.binary_cross_entropy_with_logits
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    do.zero_grad(); fake = g(noise(64, 4)); x = noise(64, 16) + 1
    ld = bce(d(x), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1)); ld.backward()
    do.step()
    go.zero_grad(); loss = bce(d(fake), torch.ones(64, 1)); loss.backward(); go.step()
modules = [g, d]
"""
CRITIC = """
actor, critic = net("actor", 16, 64, 4), net("critic", 16, 64, 1)
opt = torch.optim.AdamW([*actor.parameters(), *critic.parameters()], 1e-3)
for i in range(steps):
    if i == steps - 1: SEEN.clear()
    x = noise(64, 16); opt.zero_grad()
    value = critic(x).squeeze(1); chance = F.log_softmax(actor(x), 1)[:, 0]
    gain = x.sum(1).tanh() - value
    loss = gain.square().mean() - (chance * gain.detach()).mean(); loss.backward(); opt.step()
modules = [actor, critic]
"""
END = """
values = torch.cat([p.detach().flatten() for m in modules for p in m.parameters()]).tolist()
print(json.dumps({"seen": SEEN, "values": values, "loss": loss.item()}), flush=True)
dist.destroy_process_group()
"""
SCRIPTS = {"adversaries": HEAD + ADVERSARIES + END, "critic": HEAD + CRITIC + END}


KNOWN = {"precision": "bfloat16"}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("known", [None, KNOWN])
def test_each_module_gets_in_all_processes_what_the_first_one_gets(
    name: str, known: dict[str, Any] | None, tmp_path: Path
) -> None:
    settings = {"precision": "bfloat16", **({"tuned": known} if known is not None else {})}
    outputs, reports = train(tmp_path / "run", steps=14, source=SCRIPTS[name], **settings)
    for output, text, report in zip(outputs, said(reports), reports, strict=True):
        assert report["tuned"]["precision"] == "bfloat16", text
        assert all(key.endswith(" bfloat16") for key in output["seen"]), text
        assert len(output["seen"]) == 2
        assert "2 processes decided together; the same in all" in text
    plain, _ = train(tmp_path / "plain", steps=14, source=SCRIPTS[name], mode="Off")
    assert outputs[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)


def test_what_one_process_finds_unsafe_for_a_module_no_process_applies(tmp_path: Path) -> None:
    """A hook on the second module in one process alone."""
    hooked = CRITIC.replace("opt =", "if rank: actor.module[0].register_forward_hook(print)\nopt =")
    hooked = hooked.replace("print)", "lambda *_: None)")
    for known in (None, KNOWN):
        settings = {"precision": "bfloat16", **({"tuned": known} if known is not None else {})}
        folder = tmp_path / str(known is None)
        outputs, reports = train(folder, steps=14, source=HEAD + hooked + END, **settings)
        for output, text in zip(outputs, said(reports), strict=True):
            assert output["seen"] == {"critic bfloat16": 1, "actor float32": 1}, text
        assert "of Net 2 skipped: not safe in all processes" in said(reports)[0]
        assert "of Net 2 skipped: module 0 has hooks of the script" in said(reports)[1]
