"""Trials of a call are made in the contexts that the script entered around the call."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpujob_api.settings import Precision, Settings
from gpujob_worker.device.memory import CpuMemory, CudaMemory
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.script_facts import ScriptFacts
from gpujob_worker.inject.surroundings import Surroundings
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.probes import MemoryProbe
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.flop import step_flop
from gpujob_worker.tune.probe import RootProbe
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.split_check import split_refusal
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call

pytestmark = pytest.mark.promise("I16")

Seen = set[tuple[torch.dtype, bool]]


class Watched(nn.Module):
    """Notes in which type a layer computes, and whether attention may use a fused kernel."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 2)
        self.note = seen.add

    def forward(self, x: Any) -> Any:
        out = self.layer(x)
        self.note((out.dtype, torch.backends.cuda.flash_sdp_enabled()))
        return out


@contextmanager
def contexts(device: str) -> Generator[None]:
    with torch.autocast(device, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        yield


def recorded_in_contexts(model: nn.Module, device: str) -> tuple[Root, RecordedCall]:
    """A call as the script makes it, with its backward outside of the contexts."""
    root = Root(model.to(device), lambda _: None)
    root.install()
    root.asks, root.recording = False, True
    with contexts(device):
        out = model(torch.randn(12, 16, device=device))
    out.float().square().mean().backward()
    root.stop_recording()
    root.remove()
    assert root.recorded is not None
    return root, root.recorded


def one_trial(root: Root, call: RecordedCall) -> None:
    RootProbe(root, call).run(RootPlan())


def comparison(root: Root, call: RecordedCall) -> None:
    RootProbe(root, call).compare(RootPlan(), RootPlan())


def side_effects(root: Root, call: RecordedCall) -> None:
    assert trace_refusal(root, call, whole=True) is None


def memory_model(root: Root, call: RecordedCall) -> None:
    of_gpu = root.device.type == "cuda"
    MemoryProbe(root, call, CudaMemory(torch.cuda) if of_gpu else CpuMemory()).model()


def all_settings(root: Root, call: RecordedCall) -> None:
    settings = Settings(precision=Precision.FLOAT16)
    Tuner(settings, Features(), DecisionLog(), 1.0).speed(root, call)


RUNS: tuple[Callable[[Root, RecordedCall], object], ...] = (
    one_trial,
    comparison,
    side_effects,
    memory_model,
    all_settings,
    step_flop,
    split_refusal,
)


@pytest.mark.parametrize("measure", RUNS)
def test_every_run_for_a_measurement_is_made_in_the_scripts_contexts(
    measure: Callable[[Root, RecordedCall], object], device: str
) -> None:
    seen: Seen = set()
    root, call = recorded_in_contexts(Watched(seen), device)
    expected = {(torch.bfloat16, False)}
    assert seen == expected
    seen.clear()
    measure(root, call)
    assert seen == expected
    assert torch.backends.cuda.flash_sdp_enabled()
    assert not torch.is_autocast_enabled(device)


def test_a_context_that_is_entered_already_is_not_entered_again(device: str) -> None:
    """Leaving an inner autocast would drop the weights that the outer one keeps cast."""
    with contexts(device):
        around = Surroundings.now(device)
        with around.entered():
            assert Surroundings.now(device) == around
    with torch.autocast(device, torch.bfloat16):
        with torch.autocast(device, enabled=False):
            off = Surroundings.now(device)
        with off.entered():
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)


def test_the_largest_call_of_a_step_is_the_one_that_is_measured(device: str) -> None:
    """A few points on a boundary, or a crop, say nothing about the time of a step."""
    root, _ = root_and_call(Model().to(device))
    root.asks, root.recording = False, True
    many, few = torch.randn(64, 16, device=device), torch.randn(2, 16, device=device)
    (root.module(many).square().mean() + root.module(few).square().mean()).backward()
    root.stop_recording()
    root.remove()
    assert root.recorded is not None
    assert root.recorded.inputs.rows == 64
    (gradient,) = root.recorded.output_gradients
    assert gradient is not None
    assert gradient.shape == (64, 2)


@pytest.mark.parametrize("wanted", [Precision.AUTO, Precision.BFLOAT16])
def test_gradients_of_gradients_are_not_put_into_another_type_unasked(
    wanted: Precision, device: str
) -> None:
    """A trial compares outputs and first derivatives alone."""
    root, call = root_and_call(nn.Linear(16, 2).to(device))
    log = DecisionLog()
    facts = ScriptFacts(differentiates_gradients=True)
    tuner = Tuner(Settings(precision=wanted), Features(), log, 1.0, facts)
    tuner.speed_items(root, call).choose("precision")
    asked_for = wanted is Precision.BFLOAT16
    assert (tuner.applied.plan.autocast is torch.bfloat16) is asked_for
    assert asked_for or "differentiates gradients" in (log.line("precision") or "")


def test_a_call_of_no_script_is_run_as_it_is(device: str) -> None:
    root = Root(nn.Linear(16, 2).to(device), lambda _: None)
    call = RecordedCall(CallInputs.of((torch.randn(4, 16, device=device),), {}))
    with contexts(device):
        (out,) = RootProbe(root, call).run(RootPlan()).outputs
    assert out.dtype is torch.bfloat16
