"""Settings of an earlier run, in processes under DistributedDataParallel: in all or in none."""

from pathlib import Path
from typing import Any

import pytest

from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("size", [2, 4])
def test_settings_of_an_earlier_run_are_in_force_in_all_or_in_none(
    tmp_path: Path, size: int
) -> None:
    """In the second process the script chooses a type itself: ours is then applied in none."""
    known = {"precision": "bfloat16", "fusedOptimizer": True}
    _, reports = train(tmp_path / "all", steps=14, size=size, tuned=known)
    for report in reports:
        assert (report["tuned"]["precision"], report["tuned"]["fusedOptimizer"]) == (
            "bfloat16",
            True,
        )
    _, reports = train(tmp_path / "none", "autocast", steps=14, size=size, tuned=known)
    for report in reports:
        assert (report["tuned"]["precision"], report["tuned"]["fusedOptimizer"]) == (
            "float32",
            True,
        )


# Convolutions, attention and a loader without workers.
VISION = """
import json, os, sys, torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
out, steps = sys.argv[2], int(sys.argv[3])
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + out + "/group", rank=rank, world_size=size)
torch.manual_seed(1)
class Vision(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 16, 2, 2), nn.Linear(16, 1)
    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2).unsqueeze(1).contiguous()
        attended = functional.scaled_dot_product_attention(tokens, tokens, tokens)
        return self.head(attended.mean((1, 2)))
net = DistributedDataParallel(Vision())
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
images = torch.randn(8 * steps * size, 3, 8, 8)
data = TensorDataset(images, images.mean((1, 2, 3)).unsqueeze(1))
loader = DataLoader(data, 8, sampler=DistributedSampler(data))
for i, (x, y) in enumerate(loader):
    opt.zero_grad()
    loss = functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
values = torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()
print(json.dumps({"values": values, "steps": i + 1}), flush=True)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [2, 4])
def test_memory_format_attention_and_loader_workers_are_those_of_all(
    tmp_path: Path, size: int
) -> None:
    plain, _ = train(tmp_path / "plain", steps=14, size=size, source=VISION, mode="Off")
    known = {"channelsLast": True, "attention": "math", "dataLoaderWorkers": 1}
    tuned, reports = train(tmp_path / "tuned", steps=14, size=size, source=VISION, tuned=known)
    for text, report in zip(said(reports), reports, strict=True):
        assert {name: report["tuned"][name] for name in known} == known
        assert "channels_last applied" in text
        assert "attention kernel applied: math" in text
        assert "data loading applied: 1 worker process, new for each pass" in text
    assert tuned[0]["steps"] == plain[0]["steps"] == 14
    assert tuned[0]["values"] == pytest.approx(plain[0]["values"], abs=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("known", [None, {"precision": "bfloat16", "fusedOptimizer": True}])
def test_a_call_of_one_process_before_the_wrapper_decides_nothing(
    rank: int, known: dict[str, Any] | None, tmp_path: Path
) -> None:
    """As for a summary of the model, once its optimizer is made."""
    settings: dict[str, Any] = {
        "precision": "bfloat16",
        **({"tuned": known} if known is not None else {}),
    }
    _, reports = train(tmp_path, f"before {rank}", steps=14, **settings)
    for text, report in zip(said(reports), reports, strict=True):
        assert "2 processes decided together; the same in all" in text
        assert report["tuned"]["precision"] == "bfloat16"
        # What is not known is measured, which may come out either way.
        expected = known is not None or reports[0]["tuned"]["fusedOptimizer"]
        assert report["tuned"]["fusedOptimizer"] == expected


@pytest.mark.parametrize("what", ["inside", "part"])
def test_a_call_of_one_process_alone_decides_nothing(what: str, tmp_path: Path) -> None:
    """As for a summary of the model, past its wrapper."""
    known = {"precision": "bfloat16", "fusedOptimizer": True}
    _, reports = train(tmp_path, what, steps=14, tuned=known)
    for text, report in zip(said(reports), reports, strict=True):
        assert "2 processes decided together; the same in all" in text
        assert report["tuned"]["precision"] == "bfloat16"
        assert report["tuned"]["fusedOptimizer"]
