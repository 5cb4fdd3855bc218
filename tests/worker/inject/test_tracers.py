"""Scripts that have their model written down (jit.trace, export, fx, counters) before it trains."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gpujob_worker
from gpujob_worker.inject import functional
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.wrapped_module import Root
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)
OURS = str(Path(gpujob_worker.__file__).parent)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Any) -> Any:
        for layer in self.inner:
            x = torch.relu(layer(x))
        return x.sum()


def traced(net: nn.Module) -> int:
    written: Any = torch.jit.trace(net, torch.ones(3, 4))
    return len(list(written.inlined_graph.nodes()))


def symbolic(net: nn.Module) -> int:
    class Everything(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return False

    return len(list(Everything().trace(net).nodes))


def exported(net: nn.Module) -> int:
    return len(list(torch.export.export(net, (torch.ones(3, 4),)).graph.nodes))


def counted(net: nn.Module) -> int:
    counter = FlopCounterMode(display=False)
    with counter:
        net(torch.ones(3, 4)).backward()
    return counter.get_total_flops()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("write_down", [traced, symbolic, exported, counted])
def test_what_writes_the_model_down_sees_the_model_alone(
    write_down: Callable[[nn.Module], int],
) -> None:
    expected = write_down(Net())
    found: list[Root] = []

    def on_root(module: nn.Module) -> Root:
        root = Root(module, lambda _: None)
        root.recording = True
        root.install()
        found.append(root)
        return root

    net = Net()
    discovery = Discovery(on_root)
    discovery.start()
    try:
        assert write_down(net) == expected
        assert found == [], "what was written down is no model that trains"
        net(torch.ones(3, 4))
    finally:
        discovery.finish()
    assert [root.module for root in found] == [net]
    assert write_down(net) == expected, "the stand-in for its call adds nothing"


SCRIPT = """
import warnings, torch
from torch import nn
warnings.simplefilter("ignore")
torch.manual_seed(4)
net = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)), nn.LayerNorm(6))
optimizer = torch.optim.Adam(net.parameters(), 0.01)
x = torch.randn(8, 6)
print(len(list(torch.jit.trace(net, x).graph.nodes())))
for step in range(12):
    optimizer.zero_grad(); loss = (net(x) - x).square().mean(); loss.backward(); optimizer.step()
    print(loss.item())
print(torch.jit.trace(net, x)(x).sum().item())
"""


def test_a_script_that_traces_its_model_runs_as_without_us(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = ["python", str(script)]
    code, plain = run_worker(tmp_path / "plain", command, settings={"mode": "Off"})
    assert code == 0, plain.errors
    options = ("--no-optimizer", "--tuning-seconds", "2", "--explain")
    settings = {"precision": "float32"}
    code, run = run_worker(tmp_path / "run", command, settings=settings, options=options)
    assert code == 0, run.errors
    assert run.output == plain.output
    assert "is needed" not in "\n".join(run.report["explain"])


CATCHES = """
import logging, traceback, torch
from torch import nn
class Fails(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = nn.Linear(3, 2)
    def forward(self, x): return self.inner(x)
net = Fails(); optimizer = torch.optim.SGD(net.parameters(), 0.1)
for rows in (torch.ones(2, 3), torch.ones(2, 4)) * 6:
    try:
        optimizer.zero_grad(); net(rows).sum().backward(); optimizer.step()
    except RuntimeError as error:
        traceback.print_exc(); logging.exception("skipped")
        print(len(traceback.extract_tb(error.__traceback__)), traceback.format_exc().count("File"))
        print(len(list(traceback.walk_tb(error.__traceback__))))
"""


def test_errors_that_the_script_prints_itself_show_its_own_frames(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CATCHES)
    command = ["python", str(script)]
    code, plain = run_worker(tmp_path / "plain", command, settings={"mode": "Off"}, options=())
    assert code == 0, plain.errors
    assert "Traceback" in plain.errors
    code, run = run_worker(tmp_path / "run", command, options=("--tuning-seconds", "1"))
    assert code == 0, run.errors
    assert run.output == plain.output
    frames = [
        re.findall(r'^  File "(.*)", line \d+, in (\S+)$', each.errors, re.M)
        for each in (plain, run)
    ]
    assert frames[0] == frames[1]
    assert OURS not in run.errors


def test_a_torch_that_does_not_tell_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.7. Such a torch is measured only, and that looks at the calls of modules too."""
    monkeypatch.delattr(torch.compiler, "is_exporting", raising=False)
    spec = importlib.util.spec_from_file_location("functional_of_old_torch", functional.__file__)
    assert spec is not None
    assert spec.loader is not None
    anew = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(anew)
    assert not anew.is_traced((), {})
    with FlopCounterMode(display=False):
        assert anew.is_traced((), {})
