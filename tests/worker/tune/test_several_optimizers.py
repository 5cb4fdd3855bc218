"""Scripts with two optimizers (a GAN, actor and critic, Muon beside AdamW): each for itself."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from gpujob_api.report import Timing
from gpujob_api.settings import OptimizeMode, Settings
from gpujob_worker.control.tuned_optimizers import OPTIMIZERS_MAX, named
from gpujob_worker.control.tuning_run import TuningRun
from gpujob_worker.inject.fused_optimizer import OptimizerCopy, fused_in_force
from gpujob_worker.probe.compare import Speedup
from gpujob_worker.probe.side_effects import RandomStates
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.tune import gain
from gpujob_worker.tune import tuner as tuner_module
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.tuner import Tuner
from tests.harness.imitated_gpu import GpuModel
from tests.harness.trained_models import trained_model
from tests.harness.worker_process import WorkerRun, run_alone, run_worker

pytestmark = pytest.mark.timeout(240)
FIRST, SECOND = "fused optimizer", "fused optimizer of Adam 2"
KNOWN = {"tuned": {"fusedOptimizer": True, "optimizersJudged": 2}}


class Measured:
    """Stands in for the clock: each optimizer's kernel is as many times as fast, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        monkeypatch.setattr(tuner_module, "measure_speedup", self)

    def __call__(self, *_: Any, **__: Any) -> Speedup:
        found = self.times.pop(0) if self.times else 2.0
        return Speedup(found, found - 0.1, found + 0.1, 5)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> Measured:
    return Measured(monkeypatch)


def stepped(kind: Any, device: str, **options: Any) -> torch.optim.Optimizer:
    """After a step, with its gradients in place."""
    parameter = nn.Parameter(torch.linspace(1.0, 2.0, 64).to(device))
    optimizer = kind([parameter], lr=0.01, **options)
    parameter.grad = torch.linspace(-1.0, 1.0, 64).to(device)
    optimizer.step()
    return optimizer


def two_adams(device: str) -> list[torch.optim.Optimizer]:
    return [stepped(torch.optim.Adam, device) for _ in range(2)]


class Run:
    """A run at its tuning: these optimizers have stepped, the first of them last."""

    def __init__(self, *optimizers: torch.optim.Optimizer, **settings: Any) -> None:
        session = Session(Environment(Settings(**settings)))
        session.state.measured_first(Timing(0.1, 0), None)
        self.optimizers = optimizers
        self.session = session
        self.tuner = Tuner(Settings(**settings), session.features, session.log, 60.0)
        self.model = trained_model(session, tuner=self.tuner)
        for optimizer in optimizers:
            self.model.facts.saw(optimizer)

    def tune(self) -> list[bool]:
        """Which of them step with the kernel afterwards."""
        TuningRun(self.session, self.model, self.optimizers[0]).without_root("none is seen")
        self.model.apply()
        return self.fused

    @property
    def fused(self) -> list[bool]:
        return [fused_in_force(optimizer) for optimizer in self.optimizers]

    def line(self, item: str) -> str:
        return self.session.log.line(item)


def test_each_optimizer_for_which_it_is_faster_steps_with_the_kernel(device: str) -> None:
    run = Run(*two_adams(device))
    assert run.tune() == [True, True]
    for item in (FIRST, SECOND):
        assert run.line(item).startswith(f"{item} applied: 2.00x"), run.session.log.lines
    assert run.tuner.tuned().fused_optimizer


@pytest.mark.parametrize("slower", [0, 1])
def test_one_that_is_not_faster_stays_as_written(
    slower: int, device: str, measured: Measured
) -> None:
    """Its numbers are equal, so that the next run, which tries nothing, may begin with it."""
    measured.times = [2.0, 2.0]
    measured.times[slower] = 1.0
    run = Run(*two_adams(device))
    assert run.tune() == [slower != 0, slower != 1]
    item = (FIRST, SECOND)[slower]
    assert run.line(item).startswith(f"{item} skipped: not faster beyond noise: 1.00x")
    assert run.tuner.tuned().fused_optimizer


def test_one_whose_numbers_disagree_stays_as_written_and_the_next_run_begins_with_none(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = torch._fused_adam_  # pyright: ignore

    def wrong(*args: Any, lr: Any, **kwargs: Any) -> Any:
        return kernel(*args, lr=0.9 * lr, **kwargs)

    monkeypatch.setattr(torch, "_fused_adam_", wrong)
    run = Run(stepped(torch.optim.SGD, device, momentum=0.9), stepped(torch.optim.Adam, device))
    assert run.tune() == [True, False]
    assert run.line("fused optimizer of Adam").startswith(
        "fused optimizer of Adam skipped: numbers disagree: parameters differ by "
    )
    assert not run.tuner.tuned().fused_optimizer
    run.model.roll_back("a test")
    assert run.fused == [False, False]
    assert run.model.first.applied == Applied()


def test_an_optimizer_without_such_a_kernel_keeps_the_other_from_nothing(device: str) -> None:
    """As Muon beside AdamW."""
    run = Run(stepped(torch.optim.Adadelta, device), stepped(torch.optim.AdamW, device))
    assert run.tune() == [False, True]
    assert run.line(FIRST) == f"{FIRST} skipped: Adadelta has no fused kernel in torch"
    assert run.line(f"{FIRST} of AdamW").startswith(f"{FIRST} of AdamW applied: ")


def test_where_none_is_faster_nothing_is_chosen(device: str, measured: Measured) -> None:
    measured.times = [1.0, 1.0]
    run = Run(*two_adams(device))
    assert run.tune() == [False, False]
    assert run.model.first.applied == Applied()


def test_more_optimizers_than_are_looked_at_step_as_written(device: str) -> None:
    run = Run(*(stepped(torch.optim.Adam, device) for _ in range(OPTIMIZERS_MAX + 1)))
    assert run.tune() == [False] * (OPTIMIZERS_MAX + 1)
    assert run.line(FIRST) == f"{FIRST} skipped: 9 optimizers step; up to 8 are looked at"


def test_a_recommendation_changes_none_of_them(device: str) -> None:
    run = Run(*two_adams(device), mode=OptimizeMode.RECOMMEND)
    assert run.tune() == [False, False]
    assert run.line(SECOND).startswith(f"{SECOND} recommended: faster beyond noise")


def test_a_roll_back_is_of_all_of_them(device: str) -> None:
    run = Run(*two_adams(device))
    assert run.tune() == [True, True]
    run.model.roll_back("a test")
    assert run.fused == [False, False]
    assert [optimizer.param_groups[0]["fused"] for optimizer in run.optimizers] == [None, None]


def test_one_that_gets_a_group_without_a_kernel_steps_as_written_alone(device: str) -> None:
    run = Run(*two_adams(device))
    run.tune()
    first, second = run.optimizers
    odd = nn.Parameter(torch.ones(2, dtype=torch.cfloat, device=device))
    second.add_param_group({"params": [odd]})
    for optimizer in run.optimizers:
        run.model.step_starts(optimizer)
    assert run.fused == [True, False]
    assert run.model.first.applied.fused
    first.add_param_group({"params": [nn.Parameter(odd.detach().clone())]})
    run.model.step_starts(first)
    assert run.fused == [False, False]
    assert not run.model.first.applied.fused


@pytest.mark.parametrize("times", [[2.0, 2.0], [2.0, 1.0]])
def test_processes_that_decide_together_choose_it_for_all_or_for_none(
    times: list[float], device: str, measured: Measured
) -> None:
    """They exchange what is chosen as one word; replicas must step alike. One without a kernel is
    the same in all of them.
    """
    measured.times = list(times)
    run = Run(*two_adams(device), stepped(torch.optim.Adadelta, device))
    run.model.consensus = cast("Any", object())
    both = times == [2.0, 2.0]
    assert run.tune() == [both, both, False]
    none = f"{FIRST} skipped: processes take it for all optimizers or for none"
    assert (run.line(FIRST) == none) is not both


def test_a_dropped_gradient_is_made_up_for_a_copy_alone(device: str) -> None:
    """`zero_grad` after its step, and the step of another optimizer is the training's."""
    optimizer = stepped(torch.optim.Adam, device)
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = None
    before, state = parameter.detach().clone(), RandomStates()
    copy = OptimizerCopy(optimizer)
    copy.step_seconds()
    assert not torch.equal(copy.parameters[0], before), "there was a step to measure"
    run = Run(stepped(torch.optim.Adam, device), optimizer)
    assert run.tune() == [True, True]
    assert parameter.grad is None
    assert torch.equal(parameter, before)
    assert not state.drawn


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad])
def test_an_optimizer_whose_dropped_gradients_may_be_sparse_stays_as_written(
    kind: Any, device: str
) -> None:
    optimizer = stepped(kind, device)
    optimizer.zero_grad()
    run = Run(stepped(torch.optim.Adam, device), optimizer)
    assert run.tune() == [True, False]
    item = f"{FIRST} of {kind.__name__}"
    expected = "its gradients are gone between its steps, and may be sparse"
    if "no fused kernel" not in run.line(item):  # older torch has Adagrad's for the CPU alone
        assert run.line(item) == f"{item} skipped: {expected}"


def test_the_gain_has_the_steps_of_all_that_have_the_kernel(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Copy(OptimizerCopy):
        def step_seconds(self) -> float:
            return 0.1 if self.optimizer.param_groups[0]["fused"] else 0.4

    monkeypatch.setattr(gain, "OptimizerCopy", Copy)
    ways = Applied(), Applied(fused=True)
    plain, chosen = gain._optimizers_seconds(two_adams(device), ways)  # pyright: ignore[reportPrivateUsage]
    runs = gain.GAIN_PAIRS + gain.RUNS_BEFORE
    assert plain == pytest.approx([0.8] * runs)
    assert chosen == pytest.approx([0.2] * runs)


def test_names_are_of_the_kind_and_the_first_needs_none() -> None:
    parameters = [nn.Parameter(torch.ones(1))]
    kinds = [torch.optim.Adam, torch.optim.SGD, torch.optim.Adam, torch.optim.Adam]
    found = named([kind(parameters, lr=0.1) for kind in kinds], "kernel")
    names = ["kernel", "kernel of SGD", "kernel of Adam 2", "kernel of Adam 3"]
    assert [item for _, item in found] == names


SCRIPT = """
import json, sys, torch; from torch import nn; from torch.nn import functional as F
torch.manual_seed(0)
at, steps = sys.argv[1], int(sys.argv[2])
def net(*sizes):
    a, b, c = sizes; return nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, c)).to(at)
x = torch.randn(64, 16).to(at); ones, zeros = torch.ones(64, 1).to(at), torch.zeros(64, 1).to(at)
g, d = net(4, 64, 16), net(16, 64, 1)
go, do = torch.optim.Adam(g.parameters(), 1e-3), torch.optim.AdamW(d.parameters(), 1e-3)
bce = F.binary_cross_entropy_with_logits
for _ in range(steps):
    fake = g(torch.randn(64, 4).to(at))
    ld = bce(d(x), ones) + bce(d(fake.detach()), zeros); ld.backward()
    do.step(); do.zero_grad()
    loss = bce(d(fake), ones); loss.backward()
    go.step(); go.zero_grad(); d.zero_grad()
weights = torch.cat([p.detach().flatten().cpu() for m in (g, d) for p in m.parameters()]).tolist()
print(json.dumps([[o.param_groups[0]["fused"] for o in (do, go)], weights]))
"""
STEPS = 24
ON_BOTH = pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])


def trained(
    folder: Path, gpu: GpuModel | None, settings: dict[str, Any], text: str = SCRIPT
) -> WorkerRun:
    command = ["python", written(folder, text), "cpu" if gpu is None else "cuda", str(STEPS)]
    settings = {"compile": "Off", "precision": "float32", "dataLoading": "Off", **settings}
    code, run = run_worker(folder, command, settings=settings, gpu=gpu)
    assert code == 0, run.errors
    return run


def written(folder: Path, text: str = SCRIPT) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(text)
    return str(folder / "train.py")


def learned_alone(folder: Path) -> list[float]:
    code, alone = run_alone(folder, [written(folder), "cpu", str(STEPS)])
    assert code == 0, alone.errors
    return json.loads(alone.output)[1]


@ON_BOTH
@pytest.mark.parametrize("known", [{}, KNOWN], ids=["new", "known"])
def test_a_gan_learns_what_it_learns_alone(
    known: dict[str, Any], gpu: GpuModel | None, tmp_path: Path
) -> None:
    run = trained(tmp_path / "run", gpu, known)
    fused, weights = json.loads(run.output)
    assert weights == pytest.approx(learned_alone(tmp_path / "alone"), rel=1e-5, abs=1e-6)
    if known or gpu is not None:  # on the processor others decide what is faster
        assert fused == [True, True], run.errors
        assert run.report["tuned"]["fusedOptimizer"] is True
        assert run.report["tuned"]["optimizersJudged"] == 2
    if known:
        assert f"{FIRST} applied: from an earlier run" in run.errors
        assert f"{FIRST} of Adam applied: from an earlier run" in run.errors


@pytest.mark.parametrize(("begins", "fused"), [(5, True), (10, None)])
def test_of_known_settings_it_is_for_optimizers_that_would_have_been_measured(
    begins: int, fused: bool | None, tmp_path: Path
) -> None:
    """A generator that begins after the critic's first steps, or long after the tuning."""
    late = SCRIPT.replace("for _ in range(steps)", "for step in range(steps)")
    late = late.replace("go.step();", f"go.step() if step >= {begins} else None;")
    run = trained(tmp_path / "run", None, KNOWN, late)
    assert json.loads(run.output)[0] == [True, fused], run.errors


@ON_BOTH
def test_a_scaler_hands_its_scale_to_each_kernel(gpu: GpuModel | None, tmp_path: Path) -> None:
    """It gives it to kernels that take it, and divides gradients itself for the others."""
    scaled = SCRIPT.replace("bce =", "scaler = torch.amp.GradScaler(at, init_scale=8.0)\nbce =")
    for loss, optimizer in (("ld", "do"), ("loss", "go")):
        plain = f"{loss}.backward()\n    {optimizer}.step();"
        assert plain in scaled
        steps = f"scaler.step({optimizer}); scaler.update();"
        scaled = scaled.replace(plain, f"scaler.scale({loss}).backward()\n    {steps}")
    fused, weights = json.loads(trained(tmp_path / "run", gpu, KNOWN, scaled).output)
    assert fused == [True, True]
    assert weights == pytest.approx(learned_alone(tmp_path / "alone"), rel=1e-5, abs=1e-6)


def test_without_the_switch_none_of_them_is_touched(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", GpuModel(), {"mode": "Off"})
    fused, _ = json.loads(run.output)
    assert fused == [None, None]
