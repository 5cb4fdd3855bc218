"""What the tuner does with calls and modules that are not the usual one of many samples."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_api.report import Timing
from gpujob_api.settings import Precision, Settings
from gpujob_worker.control.tuning_run import TuningRun
from gpujob_worker.device.memory import CpuMemory, CudaMemory
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.discovery import Discovery
from gpujob_worker.inject.fused_optimizer import COPIES_BYTES
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.probes import MemoryProbe
from gpujob_worker.probe.compare import closeness
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.features import Features
from gpujob_worker.run.session import Session
from gpujob_worker.tune.applied import Applied
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.probe import ProbeResult
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call
from tests.harness.trained_models import trained_model


def tuner(log: DecisionLog, settings: Settings | None = None) -> Tuner:
    return Tuner(settings or Settings(), Features(), log, 1.0)


def test_closeness_sees_the_imaginary_part(device: str) -> None:
    real, whole = torch.tensor([1 + 0j]).to(device), torch.tensor([1 + 1j]).to(device)
    assert closeness([real], [real]).relative_error == 0
    assert closeness([real], [whole]).relative_error == pytest.approx(1.0)
    left, right = ProbeResult([real], []), ProbeResult([whole], [])
    assert left.compare(right)[0].relative_error == pytest.approx(1.0)


def test_samples_that_cannot_be_told_apart_are_all_run(device: str) -> None:
    """Two of four numbers are no smaller batch of this: the whole call is what is measured."""
    root = Root(nn.Linear(4, 2).to(device), lambda _: None)
    call = RecordedCall(CallInputs.of((torch.randn(4, device=device),), {}))
    assert trace_refusal(root, call, whole=True) is None
    assert call.whole_only
    log = DecisionLog()
    forced = tuner(log, Settings(precision=Precision.BFLOAT16))
    forced.speed_items(root, call).choose("precision")
    assert forced.applied.plan.autocast is torch.bfloat16, log.lines
    assert step_flop(root, call) is not None
    memory = CudaMemory(torch.cuda) if device == "cuda" else CpuMemory()
    with pytest.raises(ValueError, match="fewer samples"):
        MemoryProbe(root, call, memory).model()


class KnownFit:
    """Stands in for the model of a limit: notes what it is asked, and splits finer."""

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self.asked: list[tuple[str, int]] = []
        self.settles, self.chose_finer = True, False

    def correct(
        self, root: Root, recorded: RecordedCall, observed_bytes: int, *, ends: bool
    ) -> bool:
        assert recorded.inputs.rows == 12
        self.asked.append((type(root.module).__name__ + (" ends" if ends else ""), observed_bytes))
        if self.settles:
            self.applied.plan = RootPlan(rows_per_step=3)
        return self.settles

    def judge(self, observed_bytes: int) -> None:
        self.asked.append(("judged", observed_bytes))


def test_of_several_modules_the_first_keeps_what_a_limit_asks_for() -> None:
    root, call = root_and_call(Model())
    optimizer = torch.optim.Adadelta(root.module.parameters(), lr=0.1)
    session = Session(Environment())
    session.state.baseline = Timing(0.1, 77)
    model = trained_model(session, root, tuner=tuner(session.log))
    model.facts.saw(optimizer)
    assert model.first.tuner is not None
    tuning = TuningRun(session, model, optimizer)
    tuning.run_several("Critic", "2 modules are trained")
    line = session.log.line
    assert line("batch split") == "batch split skipped: 2 modules are trained"
    kernel = "fused optimizer skipped: Adadelta has no fused kernel in torch"
    assert line("fused optimizer") == kernel
    fit: Any = KnownFit(model.first.tuner.applied)
    model.first.keep_limit_by(fit)
    tuning.run_several("Critic", "2 modules are trained")
    assert fit.asked == [("judged", 77)]
    root.recorded = call
    tuning.among_others(root, "Critic", "again")
    assert fit.asked == [("judged", 77), ("Model ends", 77)]
    assert line("memory model").endswith("is of Model; what steps took is of all (Model, Critic)")
    # The split of the limit is in force and is not said to be refused.
    assert line("batch split") == "batch split skipped: 2 modules are trained"
    assert line("precision") == "precision skipped: 2 modules are trained"
    assert root.recorded is call, "speed is tuned on it"


@pytest.mark.parametrize(
    ("settles", "finer", "asked"),
    [
        ((True, True), (False, False), ["Model", "Critic"]),  # kept: said of each
        ((True, True), (True, False), ["Model"]),  # the first one's way takes enough off
        ((False, True), (False, True), ["Model", "Critic"]),
        ((False, False), (False, False), ["Model", "Critic", "judged"]),
    ],
)
def test_of_several_modules_as_many_take_less_as_are_needed(
    settles: tuple[bool, bool], finer: tuple[bool, bool], asked: list[str]
) -> None:
    class Critic(Model): ...

    session = Session(Environment())
    session.state.baseline = Timing(0.1, 77)
    root, root.recorded = root_and_call(Model())
    other, other.recorded = root_and_call(Critic())
    first, second = (tuner(session.log) for _ in range(2))
    fits = [KnownFit(first.applied), KnownFit(second.applied)]
    fits[1].asked = fits[0].asked
    for fit, it_settles, it_is_finer in zip(fits, settles, finer, strict=True):
        fit.settles, fit.chose_finer = it_settles, it_is_finer
    of_first: Any = fits[0]
    of_other: Any = fits[1]
    model = trained_model(session, root, other, tuner=first)
    model.first.keep_limit_by(of_first)
    model.modules[1].use(second)
    model.modules[1].keep_limit_by(of_other)
    optimizer = torch.optim.SGD(root.module.parameters(), lr=0.1)
    TuningRun(session, model, optimizer).among_others(root, "Critic", "2 modules")
    assert [name for name, _ in fits[0].asked] == asked
    put = "Critic" in asked and settles[1]
    assert other.plan == (RootPlan(rows_per_step=3) if put else RootPlan())


def test_a_module_that_is_left_alone_keeps_its_way() -> None:
    """The script trained two, and goes on with the second one."""
    session = Session(Environment())
    (first, _), (second, _) = root_and_call(Model()), root_and_call(Model())
    model = trained_model(session, first, second, tuner=tuner(session.log))
    further = model.modules[1]
    log = further.log
    further.use(tuner(log)).applied.plan = RootPlan(rows_per_step=3)
    further.apply()
    model.drop(first)
    assert (model.roots, model.further) == ([second], [])
    assert model.first.applied.plan == second.plan == RootPlan(rows_per_step=3)
    log.skipped("batch split", "why")
    assert session.log.lines == ("batch split of Model 2 skipped: why",)
    model.renew()
    assert second.plan == RootPlan()


def test_groups_that_come_later_step_as_the_others_do(device: str) -> None:
    """A scaler hands its scale to the fused kernel, and the others refuse it."""
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(net[1].parameters(), lr=0.01)
    scaler = torch.amp.GradScaler(device, init_scale=8.0)
    model = trained_model(Session(Environment()), tuner=tuner(DecisionLog()))
    before = copy.deepcopy(optimizer.state_dict())
    assert model.first.tuner is not None
    model.first.tuner.applied = Applied(fused=True)
    model.optimizers.fuse([optimizer])
    model.apply(optimizer)

    def starts(*_: Any) -> None:
        model.step_starts(optimizer)

    handle = optimizer.register_step_pre_hook(starts)

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(net(torch.randn(3, 4, device=device)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()

    step()
    optimizer.load_state_dict(before)
    step()
    optimizer.add_param_group({"params": list(net[0].parameters()), "lr": 0.1})
    step()
    assert [group["fused"] for group in optimizer.param_groups] == [True, True]
    assert len(optimizer.state) == 4
    handle.remove()
    optimizer.add_param_group(
        {"params": [nn.Parameter(torch.ones(2, dtype=torch.cfloat, device=device))]}
    )
    model.step_starts(optimizer)
    assert not model.first.applied.fused
    assert [group["fused"] for group in optimizer.param_groups] == [None] * 3


def test_a_frozen_module_is_no_model_that_trains(device: str) -> None:
    """A teacher whose parameters are frozen is called in training mode, and with gradients."""
    teacher, student = nn.Linear(4, 2).to(device), nn.Linear(4, 2).to(device)
    teacher.requires_grad_(False)
    found: list[nn.Module] = []
    discovery = Discovery(lambda module: found.append(module))
    discovery.start()
    try:
        teacher(torch.randn(3, 4, device=device))
        student(torch.randn(3, 4, device=device))
        assert found == [student]
        teacher.weight.requires_grad_()
        teacher(torch.randn(3, 4, device=device))
    finally:
        discovery.finish()
    assert found == [student, teacher], "it learns from now on"


class LeavesOut(torch.autograd.Function):
    """As DistributedDataParallel's function that looks for unused parameters."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        return gradients


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x).square().mean(), "logits": self.layer(x)}


def test_an_output_that_nobody_learns_from_may_have_no_gradient(device: str) -> None:
    module = TwoOutputs().to(device)
    root = Root(module, lambda _: None)
    root.install()
    root.recording = True
    found = list(LeavesOut.apply(*module(torch.randn(3, 4, device=device)).values()))  # pyright: ignore
    found[0].backward()
    assert root.recorded is not None
    assert root.recorded.used(found) == [True, False]


def test_a_wrapper_that_passes_assignments_on_is_called_once() -> None:
    """Lightning Fabric's wrapper does: the hook went to the module inside, which called itself."""

    class Wrapper(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def __setattr__(self, name: str, value: Any) -> None:
            inner = self._modules.get("inner")
            if inner is not None and hasattr(inner, name):
                setattr(inner, name, value)
            else:
                super().__setattr__(name, value)

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    wrapper = Wrapper(nn.Linear(4, 2))
    root = Root(wrapper, lambda _: None)
    root.install()
    x = torch.randn(3, 4)
    assert torch.equal(wrapper(x), wrapper.inner(x))
    assert "_compiled_call_impl" in vars(wrapper)
    assert "_compiled_call_impl" not in vars(wrapper.inner)
    root.remove()
    assert "_compiled_call_impl" not in vars(wrapper)


GIB = 2**30


@pytest.mark.parametrize(
    ("limit", "peak", "held", "free"),
    [
        (None, 12 * GIB, 2 * GIB, 10 * GIB),  # what a step takes beside weights and states
        (None, 3 * GIB, 2 * GIB, 2 * GIB),  # a little more than steps take is no matter
        (8 * GIB, 12 * GIB, 3 * GIB, 5 * GIB),
        (2 * GIB, 2 * GIB, 3 * GIB, 0),
    ],
)
def test_copies_of_the_optimizer_take_no_more_than_steps_do(
    limit: int | None, peak: int, held: int, free: int
) -> None:
    class Allocator(CpuMemory):
        def allocated_bytes(self) -> int:
            return held

    session = Session(Environment(memory_limit_bytes=limit))
    session.meter.memory = Allocator()
    session.state.measured_first(Timing(0.1, peak), None)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters())
    root, _ = root_and_call(model)
    asked: list[int] = []

    class Asked(Tuner):
        def fused_optimizer(
            self,
            optimizer: torch.optim.Optimizer,
            free_bytes: int = COPIES_BYTES,
            item: str = "",
        ) -> bool:
            del optimizer, item
            asked.append(free_bytes)
            return False

    asks = Asked(Settings(), Features(), session.log, 1.0)
    model = trained_model(session, root, tuner=asks)
    model.facts.saw(optimizer)
    TuningRun(session, model, optimizer).without_root("none")
    assert asked == [free]
