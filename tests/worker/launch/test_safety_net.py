"""What goes wrong in the worker stays there: the script runs as written, and it is said why."""

from pathlib import Path

import pytest

from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.failure import MemoryLimitError
from gpujob_worker.run.graceful_stop import Interrupted
from gpujob_worker.run.safety_net import SafetyNet
from tests.harness.worker_process import run_alone, run_worker

pytestmark = pytest.mark.timeout(240)

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1); torch.manual_seed(3)
x = torch.randn(48, 8); y = x.sum(1, keepdim=True).tanh()
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.AdamW(net.parameters(), lr=0.01)
for epoch in range(4):
    for a, b in DataLoader(TensorDataset(x, y), 8, shuffle=True):
        opt.zero_grad(); loss = (net(a) - b).square().mean(); loss.backward(); opt.step()
print("loss", loss.item())
"compiles"
sys.exit(5)
"""
OFF = ("--no-precision", "--no-optimizer", "--no-compile", "--no-regional-compile")
_COMPILING = "gpujob_worker.hooks:ScriptCompiling"
COMPILES = {
    f"{_COMPILING}.module": 'torch.compile(net, backend="eager")',
    f"{_COMPILING}.starts": 'torch.compile(torch.sin, backend="eager")(x)',
}
PLACES = (
    "gpujob_worker.hooks:Hooks.__init__",
    "gpujob_worker.hooks:Hooks._after_step",
    "gpujob_worker.control.module_watch:ModuleWatch.before_call",
    "gpujob_worker.hooks:Hooks._before_step",
    *COMPILES,
    "gpujob_worker.hooks:Hooks._on_loss",
    "gpujob_worker.hooks:Hooks._on_optimizer",
    "gpujob_worker.control.module_watch:ModuleWatch._on_root",
    "gpujob_worker.hooks:pickle_as_written",
    "gpujob_worker.control.rollback_guard:RollbackGuard.step",
    "gpujob_worker.control.schedule:TuningSchedule.run",
    "gpujob_worker.run.meter:Meter.step_done",
    "gpujob_worker.run.meter:Meter.wait_starts",
    "gpujob_worker.run.session:Session.start",
    "gpujob_worker.tune.data_loader_policy:LoaderPolicy.before_pass",
    "gpujob_worker.tune.data_loader_policy:LoaderPolicy.begun",
    "gpujob_worker.tune.data_loader_policy:LoaderPolicy.received",
    "gpujob_worker.tune.data_loader_policy:LoaderPolicy.waited",
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain")
    (folder / "train.py").write_text(SCRIPT)
    code, run = run_alone(folder, [str(folder / "train.py")])
    assert code == 5, run.errors
    return run.output


@pytest.mark.parametrize("place", PLACES)
def test_a_broken_hook_point_leaves_the_script_as_it_is(
    place: str, plain: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace('"compiles"', COMPILES.get(place, "")))
    code, run = run_worker(tmp_path, ["python", str(script)], options=OFF, broken=place)
    assert (code, run.output) == (5, plain), run.errors
    (line,) = run.errors.splitlines()
    assert line.startswith("gpujob: everything skipped: the worker ")
    assert "RuntimeError: broken on purpose" in line
    assert line.endswith("; the script runs as written")
    if place != "gpujob_worker.run.session:Session.start":
        assert line.removeprefix("gpujob: ")[:300] in run.report["explain"]


def test_an_end_that_fails_changes_no_exit_code(plain: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    place = "gpujob_worker.run.session:Session.finish"
    code, run = run_worker(tmp_path, ["python", str(script)], options=OFF, broken=place)
    assert (code, run.output, run.errors) == (5, plain, "")


def test_the_first_error_cuts_the_net() -> None:
    log, called, off = DecisionLog(), list[str](), list[str]()
    net = SafetyNet(log)
    net.when_cut(lambda: off.append("off"))

    def fails(batch: str) -> str:
        called.append(batch)
        raise KeyError(batch)

    received = net.guard(fails, str)
    fine = net.guard(lambda: "ours")
    assert fine() == "ours"
    assert [received("a"), received("b")] == ["a", "b"]
    assert fine() is None
    assert (called, off) == (["a"], ["off"])
    (line,) = log.lines
    assert line.startswith("everything skipped: the worker failed: KeyError: 'a' (test_safety")


def test_taking_off_may_fail_too() -> None:
    net = SafetyNet(log := DecisionLog())

    def fails() -> None:
        raise ValueError("still there")

    net.when_cut(fails)
    net.tear(KeyError("a"))
    assert log.lines[1] == "injection could not be taken off: ValueError: still there"


@pytest.mark.parametrize("stop", [True, False])
def test_what_ends_a_run_by_intention_passes(stop: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupted, "latest", None)
    error = Interrupted(saved=False) if stop else MemoryLimitError("x", 1)
    net = SafetyNet(DecisionLog())

    def ends() -> None:
        raise error

    with pytest.raises(type(error)):
        net.guard(ends)()
    assert not net.cut
