"""What a script compiles itself keeps settings away from its model only if it is of the model."""

from pathlib import Path

import pytest

from tests.harness.worker_process import run_alone, run_worker

SCRIPT = """
import sys, torch
from torch import nn
torch.manual_seed(0)

@torch.compile(backend="eager")
def helper(x):
    return torch.nn.functional.gelu(x) * 2

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
    def forward(self, x):
        x = self.first(x)
        return self.last(helper(x) if "inside" in sys.argv else x)

net = Net()
optimizer = torch.optim.SGD(net.parameters(), 1e-2)
x, y = torch.randn(32, 16), torch.randint(4, (32,))
x = helper(x) if "before" in sys.argv else x

@torch.compile(backend="eager")
def whole(x):
    return nn.functional.cross_entropy(net(x), y)

for _ in range(10):
    if "whole" in sys.argv:
        loss = whole(x)
    else:
        out = net(x)
        loss = nn.functional.cross_entropy(helper(out) if "outside" in sys.argv else out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
OF_THE_MODEL = "the script compiles its model itself"


# Modules, by their method or by torch.compile; what torch made is counted.
MODULES = """
import sys, torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
made = []

def backend(graph, inputs):
    made.append(graph)
    return graph.forward

def net(learns):
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).requires_grad_(learns)

class Around(nn.Module):
    def __init__(self, part, *more):
        super().__init__()
        self.part, self.more = part, nn.Sequential(*more)
    def forward(self, x):
        return self.more(self.part(x))

place, how = sys.argv[1:]
def compiled(module):
    if how == "method":
        module.compile(backend=backend)
        return module
    return torch.compile(module, backend=backend)

x, target = torch.randn(32, 16), torch.randn(32, 16)
model, loss_of = net(True), F.mse_loss
teacher = net(False).eval() if "teacher" in place else None
if place == "loss":
    loss_of = compiled(nn.MSELoss())
if place == "teacher":
    teacher = compiled(teacher)
if place == "teacher that could learn":
    teacher = compiled(teacher.requires_grad_())
if place == "teacher without gradients":
    teacher = torch.no_grad()(compiled(teacher.requires_grad_()))
if place == "part of the teacher":
    teacher = Around(compiled(teacher))
if place == "frozen part":
    model = Around(compiled(net(False)), net(True))
if place == "frozen part, called before":
    part = compiled(net(False))
    part(x)
    model = Around(part, net(True))
if place == "learns later":
    model = compiled(net(False))
    model.requires_grad_(True)
if place == "model in evaluation mode":
    model = compiled(model.eval())
if place == "trained later":
    model = compiled(model.eval()).train()
if place == "model":
    model = compiled(model)
if place == "model and optimizer before":
    early = torch.optim.AdamW(model.parameters(), 1e-3)
    model = compiled(model)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-3)
for _ in range(12):
    loss = loss_of(model(x), target if teacher is None else teacher(x))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), len(made))
"""
PLACES = {
    "loss": False,
    "teacher": False,
    "teacher that could learn": False,
    "teacher without gradients": False,
    "part of the teacher": False,
    "frozen part": True,
    "frozen part, called before": True,
    "learns later": True,
    "model in evaluation mode": True,
    "trained later": True,
    "model": True,
    "model and optimizer before": True,
}


@pytest.mark.parametrize("how", ["method", "function"])
@pytest.mark.parametrize("place", PLACES)
def test_a_compiled_module_counts_where_it_is_trained_or_in_the_model(
    place: str, how: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(MODULES)
    command = [str(tmp_path / "train.py"), place, how]
    settings = {"compile": "Off", "precision": "bfloat16", "mode": "Recommend"}
    options = ("--explain", "--tuning-seconds", "1")
    code, run = run_worker(tmp_path / "hooked", command, settings=settings, options=options)
    assert code == 0, run.errors
    said = run.report["explain"]
    assert any(OF_THE_MODEL in line for line in said) is PLACES[place], said
    recommended = [line for line in said if line.startswith("precision recommended")]
    assert bool(recommended) is not PLACES[place], said
    assert not any("frozen" in line for line in said), "nothing is tried around compiled code"
    assert any(line.startswith("fused optimizer") for line in said), said
    code, alone = run_alone(tmp_path / "alone", command)
    loss, graphs = alone.output.split()
    # An older torch compiles nothing of modules of its own by their method `compile`.
    graphs = run.output.split()[1] if graphs == "0" else graphs
    assert (code, run.output.split()) == (0, [loss, graphs])


@pytest.mark.parametrize(
    ("place", "of_the_model"),
    [("unused", False), ("before", False), ("outside", False), ("inside", True), ("whole", True)],
)
def test_a_compiled_function_counts_where_the_model_is_in_it_or_around_it(
    place: str, of_the_model: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [str(tmp_path / "train.py"), place]
    code, run = run_worker(
        tmp_path / "hooked",
        command,
        settings={"compile": "Off", "mode": "Recommend"},
        options=("--explain", "--tuning-seconds", "1"),
    )
    assert code == 0, run.errors
    refused = [line for line in run.report["explain"] if OF_THE_MODEL in line]
    assert bool(refused) is of_the_model, run.report["explain"]
    code, alone = run_alone(tmp_path / "alone", command)
    assert (code, run.output) == (0, alone.output)
