"""torch's DataParallel over one GPU or none calls the module inside, which is tuned as if alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.guards import parallel_wrapper
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = pytest.mark.timeout(240)
SCRIPT = """
import json, sys, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
DEVICE, WRAPPED = sys.argv[1:]
if DEVICE == "cuda":
    # Copies to several GPUs are torch's own code, which builds without CUDA do not have.
    torch.nn.parallel.comm.scatter = lambda tensor, *_: (tensor,)
SEEN = set()
class Features(nn.Sequential):
    def forward(self, x):
        x = self[0](x); SEEN.add(str(x.dtype)); return self[1](x)
features, head = Features(nn.Linear(16, 128), nn.GELU()), nn.Linear(128, 4)
if WRAPPED == "part": features = nn.DataParallel(features)
net = nn.Sequential(features, head).to(DEVICE)
if WRAPPED == "whole": net = nn.DataParallel(net)
opt = torch.optim.AdamW(net.parameters(), 1e-3)
x, y = torch.randn(60, 16).to(DEVICE), torch.randint(4, (60,)).to(DEVICE)
for _ in range(14): opt.zero_grad(); loss = F.cross_entropy(net(x), y); loss.backward(); opt.step()
print(json.dumps([loss.item(), sorted(SEEN)]))
"""
BFLOAT16 = {"compile": "Off", "precision": "bfloat16"}


def written(folder: Path) -> str:
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    return str(folder / "train.py")


def ran(folder: Path, settings: dict[str, Any], wrapped: str, device: str) -> WorkerRun:
    gpu = GpuModel() if device == "cuda" else None
    command = ["python", written(folder), device, wrapped]
    code, run = run_worker(folder, command, settings=settings, gpu=gpu)
    assert code == 0, run.errors
    return run


@pytest.mark.parametrize("where", ["cpu", "cuda"])
@pytest.mark.parametrize("wrapped", ["whole", "part"])
def test_the_module_inside_gets_what_was_asked_for(
    wrapped: str, where: str, tmp_path: Path
) -> None:
    run = ran(tmp_path / "run", BFLOAT16, wrapped, where)
    loss, seen = json.loads(run.output)
    assert "torch.bfloat16" in seen, run.errors
    assert run.report["tuned"]["precision"] == "bfloat16"
    assert run.report["efficiency"]["stepFlop"] > 0
    assert "DataParallel" not in run.errors
    bare = ran(tmp_path / "bare", BFLOAT16, "no", where)
    assert loss == json.loads(bare.output)[0]


def test_a_split_batch_has_the_loss_of_the_whole(tmp_path: Path) -> None:
    run = ran(tmp_path / "run", {"tuned": {"batchPerStep": 20}}, "whole", "cpu")
    assert run.report["tuned"]["batchPerStep"] == 20, run.errors
    code, alone = run_alone(tmp_path, [written(tmp_path / "alone"), "cpu", "whole"])
    assert code == 0, alone.errors
    assert json.loads(run.output)[0] == pytest.approx(json.loads(alone.output)[0], rel=1e-5)


class OwnScatter(nn.DataParallel[nn.Module]):
    """As those of libraries, which hand out lists of graphs or boxes."""


def over(devices: int, kind: Any = nn.DataParallel) -> nn.Module:
    wrapper = kind(nn.Linear(2, 2))
    wrapper.device_ids = list(range(devices))
    return wrapper


@pytest.mark.parametrize("devices", [0, 1])
def test_it_is_no_wrapper_on_one_device(devices: int) -> None:
    assert parallel_wrapper(over(devices)) is None
    assert parallel_wrapper(nn.Sequential(over(devices), nn.ReLU())) is None


def test_what_copies_the_module_is_left_as_it_is() -> None:
    assert parallel_wrapper(over(2)) == "DataParallel"
    assert parallel_wrapper(nn.Sequential(over(2), nn.ReLU())) == "DataParallel inside"
    inner = over(1)
    vars(inner)["_modules"]["module"] = over(2)
    assert parallel_wrapper(inner) == "DataParallel inside"


def test_one_of_a_library_is_left_as_it_is() -> None:
    assert parallel_wrapper(over(1, OwnScatter)) == "DataParallel"


def test_it_calls_the_module_inside_once_in_this_torch() -> None:
    """What being left out of the wrappers rests on."""
    called: list[torch.Tensor] = []
    wrapper = over(0)
    inside: Any = wrapper.module

    def saw(_: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        called.append(inputs[0])

    inside.register_forward_pre_hook(saw)
    x = torch.randn(3, 2)
    wrapper(x)
    assert len(called) == 1
    assert called[0] is x
