"""The tuner: measured choices that leave no trace, refusals with reasons, the memory model."""

import itertools
import math
import operator
import random
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpujob_api.settings import OptimizeMode, Precision, Settings, Toggle, TunedSettings
from gpujob_worker.device.memory import CpuMemory, CudaMemory
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.guards import probe_refusal
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.probe.compare import PAIRS_FUTILE, closeness, measure_speedup, speedup
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from gpujob_worker.tune.registry import apply_settings
from gpujob_worker.tune.trial import AcceptanceRule
from gpujob_worker.tune.tuner import Tuner
from tests.harness.blocks import Model, root_and_call


def tuner(log: DecisionLog, settings: Settings | None = None, **off: bool) -> Tuner:
    return Tuner(settings or Settings(), Features.without(*off), log, 1.0)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    tensors = [*model.state_dict().values()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    for state in optimizer.state.values():
        tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    names = [
        (n, sorted(k for k in vars(m) if k != "_compiled_call_impl"))
        for n, m in model.named_modules()
    ]
    numpy_state: Any = np.random.get_state()
    return [
        [tensor.clone().view(-1).view(torch.uint8).tolist() for tensor in tensors],
        torch.get_rng_state().tolist(),
        torch.cuda.get_rng_state().tolist() if torch.cuda.is_initialized() else [],
        random.getstate(),
        [str(numpy_state[0]), list(map(int, numpy_state[1])), int(numpy_state[2])],
        names,
        repr(optimizer.param_groups),
    ]


@pytest.mark.parametrize("normalize", [False, True])
def test_probing_leaves_no_trace(
    normalize: bool, device: str, capfd: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(1)
    model = Model(normalize).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    root, call = root_and_call(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(call.inputs.leaves[0]).square().mean().backward()
        optimizer.step()
    before = snapshot(model, optimizer)
    settings = Settings(mode=OptimizeMode.RECOMMEND, precision=Precision.BFLOAT16)
    probing = tuner(DecisionLog(), settings)
    probing.split(root, call, 4, "")
    probing.activation_checkpointing(root, call, "")
    probing.speed(root, call)
    probing.fused_optimizer(optimizer)
    limited = tuner(DecisionLog(), Settings(mode=OptimizeMode.RECOMMEND))
    memory = CpuMemory() if device == "cpu" else CudaMemory(torch.cuda)
    MemoryFit(memory, DecisionLog(), limited, 1).fit(root, call)
    assert snapshot(model, optimizer) == before
    assert capfd.readouterr().out == ""


def test_what_a_forward_adds_to_its_modules_containers_is_taken_out_again(device: str) -> None:
    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 2)
            self.seen: list[int] = [1, 2]
            self.counts = {"calls": 0}
            self.shapes = {(3, 4)}

        def forward(self, x: Any) -> Any:
            self.seen.append(len(x))
            self.counts["calls"] += 1
            self.counts["new"] = 1
            self.shapes.add(tuple(x.shape))
            return self.layer(x)

    model = Keeps().to(device)
    before = model.seen, model.counts, model.shapes
    root, call = root_and_call(model)
    probing = tuner(DecisionLog())
    probing.split(root, call, 4, "")
    probing.speed(root, call)
    assert (model.seen, model.counts, model.shapes) == ([1, 2], {"calls": 0}, {(3, 4)})
    assert all(map(operator.is_, before, (model.seen, model.counts, model.shapes)))


def test_hooks_of_the_script_are_not_set_off_by_probes() -> None:
    def hook(*_: Any) -> None: ...

    assert probe_refusal(nn.utils.spectral_norm(nn.Linear(16, 2))) is None
    model = Model()
    assert probe_refusal(model) is None
    model.head.register_forward_hook(hook)
    assert "module head has hooks of the script" in (probe_refusal(model) or "")
    model = Model()
    assert model.head.weight.register_hook(hook)
    assert probe_refusal(model) is None, "a parameter's hooks are off in probes"


def test_bfloat16_is_refused_where_slow_and_applied_where_asked_for(device: str) -> None:
    torch.manual_seed(2)
    root, call = root_and_call(Model().to(device))
    log = DecisionLog()
    forced = tuner(log, Settings(precision=Precision.BFLOAT16))
    forced.speed_items(root, call).choose("precision")
    assert forced.applied.plan.autocast is torch.bfloat16
    assert "precision applied: asked for" in log.lines[0]
    apply_settings(root, None, forced.applied)
    output = root.module(call.inputs.leaves[0])
    assert output.dtype is torch.float32
    exact = root.run(RootPlan(), call.inputs)
    assert not torch.equal(output, exact)
    root.remove()


@pytest.mark.parametrize(
    ("settings", "switches", "reason"),
    [
        (Settings(precision=Precision.FLOAT32), {}, "float32 was asked for"),
        (Settings(precision=Precision.TF32), {}, "tf32 exists on CUDA GPUs"),
        (Settings(), {"precision": False}, "switched off"),
    ],
)
def test_precision_refusals(settings: Settings, switches: dict[str, bool], reason: str) -> None:
    root, call = root_and_call(Model())
    log = DecisionLog()
    tuner(log, settings, **switches).speed_items(root, call).choose("precision")
    assert log.lines[0].startswith("precision skipped")
    assert reason in log.lines[0]


def test_the_users_own_types_and_autocast_stay(device: str) -> None:
    log = DecisionLog()
    root, call = root_and_call(Model().double().to(device))
    tuner(log).speed_items(root, call).choose("precision")
    assert "chose the parameters' type itself" in log.lines[0]
    root, call = root_and_call(Model().to(device))
    with torch.autocast(device, dtype=torch.bfloat16):
        root.module(call.inputs.leaves[0])
    tuner(log).speed_items(root, call).choose("precision")
    assert "uses autocast itself" in log.lines[0]


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv("CXX", raising=False)
    log = DecisionLog()
    root, call = root_and_call(Model())
    tuner(log, Settings(compile=Toggle.ON)).compile(root, call)
    assert "no C++ compiler" in log.lines[0]
    tuner(log, Settings(compile=Toggle.OFF)).compile(root, call)
    assert "compile: Off" in log.lines[0]


def test_a_compiled_call_is_used_for_its_own_shape_only() -> None:
    model = nn.Linear(4, 4)
    root = Root(model, lambda _: None)
    calls: list[int] = []

    def compiled(x: Any) -> Any:
        calls.append(len(x))
        return model._call_impl(x)

    inputs = CallInputs.of((torch.randn(6, 4),), {})
    plan = RootPlan(compiled=compiled, compiled_signature=inputs.signature)
    root.run(plan, inputs)
    root.run(plan, CallInputs.of((torch.randn(5, 4),), {}))
    assert calls == [6]


def test_known_settings_are_adopted_without_timing(device: str) -> None:
    root, call = root_and_call(Model().to(device))
    log = DecisionLog()
    adopting = tuner(log)
    tuned = TunedSettings(Precision.BFLOAT16, 4, activation_checkpointing=True)
    adopting.adopt(root, call, tuned)
    assert adopting.tuned() == tuned
    assert len([line for line in log.lines if "from an earlier run" in line]) == 3
    unsafe, call = root_and_call(Model(normalize=True).to(device))
    adopting = tuner(log)
    adopting.adopt(unsafe, call, tuned)
    assert adopting.tuned() == TunedSettings(Precision.BFLOAT16, activation_checkpointing=True), (
        "a BatchNorm is never split"
    )


def test_speedups_have_bounds() -> None:
    found = speedup([2.0, 2.2, 1.8, 2.0, 2.1], [1.0, 1.1, 0.91, 1.0, 1.04])
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert 1.9 < found.low < 2.0 < found.high < 2.1
    noisy = speedup([1.0, 3.0, 0.5, 2.0, 1.0], [1.0, 0.6, 2.0, 1.0, 1.5])
    assert noisy.low < 1.0 < noisy.high
    alone = speedup([2.0], [1.0])
    assert (alone.low, alone.high) == (0.0, math.inf)


def test_measuring_alternates_and_stops_early() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> float:
        order.append(name)
        return seconds * (1 + 0.001 * len(order))

    found = measure_speedup(lambda: run("a", 2.0), lambda: run("b", 1.0), lambda: True, needed=1.02)
    assert found.low > 1.9
    assert "".join(order) == "abbaabbaab"
    order.clear()
    measure_speedup(lambda: run("a", 1.0), lambda: run("b", 1.0), lambda: False, needed=1.02)
    assert len(order) == 2, "no pair is run that there is no time for"


@pytest.mark.parametrize(
    ("seconds", "pairs"), [([9.0], 1), ([1.9], 2), ([1.3, 1.31, 1.29], 3), ([1.6, 1.4, 1.9], 3)]
)
def test_a_clearly_slower_candidate_is_given_up_after_the_first_pairs(
    seconds: list[float], pairs: int
) -> None:
    times = itertools.cycle(seconds)
    found = measure_speedup(lambda: 1.0, lambda: next(times), lambda: True, needed=1.02)
    assert found.pairs == pairs
    assert found.ratio < 1


def test_one_long_pause_does_not_give_a_candidate_up() -> None:
    times = iter([2.5] + [0.5] * 39)
    found = measure_speedup(lambda: 1.0, lambda: next(times), lambda: True, needed=1.02)
    assert found.pairs > 2
    assert found.ratio > 1.02


@pytest.mark.parametrize("plain_seconds", [0.001, 0.05])
def test_a_pause_does_not_give_up_a_candidate_for_short_steps(plain_seconds: float) -> None:
    times = iter([plain_seconds + 0.19] + [plain_seconds / 2] * 39)
    found = measure_speedup(lambda: plain_seconds, lambda: next(times), lambda: True, needed=1.02)
    assert found.pairs > 2
    assert found.ratio > 1.02


def test_a_gain_that_does_not_show_is_given_up() -> None:
    runs: list[float] = []

    def unsteady() -> float:
        runs.append(0.55 if len(runs) % 2 else 2.0)
        return runs[-1]

    found = measure_speedup(lambda: 1.0, unsteady, lambda: True, needed=1.02)
    assert found.low < 1.02 < found.high, "nothing is decided"
    assert len(runs) == PAIRS_FUTILE


def test_items_share_what_is_left_and_free_their_part_when_they_are_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    log = DecisionLog()
    decision = AcceptanceRule(Settings(), log, 12.0)
    now[0] = 500.0
    assert not decision.in_time("late", forced=False)
    assert log.line("late") == "late skipped: not tried: the 12 s for tuning are over"
    assert decision.in_time("late", forced=True)
    decision.start()
    decision.expects(["one", "two", "three"])

    def seconds(item: str) -> float:
        has_time, before = decision.share(item), now[0]
        while has_time():
            now[0] += 0.125
        spent, now[0] = now[0] - before, before
        return spent

    assert seconds("one") == 4.0
    assert seconds("unexpected") == 3.0
    decision.skip("two", "hopeless")
    assert seconds("one") == 6.0
    decision.accept("three", "faster")
    decision.skip("one", "slower")
    assert seconds("unexpected") == 12.0


def test_what_is_known_to_be_refused_is_not_given_time(device: str) -> None:
    root, call = root_and_call(Model().to(device))
    assert tuner(DecisionLog()).speed_items(root, call).expected() == [
        "precision",
        "attention kernel",
    ]
    off = tuner(DecisionLog(), precision=False, attention=False)
    assert off.speed_items(root, call).expected() == []


def test_closeness_sees_every_difference(device: str) -> None:
    def numbers(*values: float) -> torch.Tensor:
        return torch.tensor(values, device=device)

    a = [numbers(1.0, 2.0), None]
    assert closeness(a, a).relative_error == 0.0
    assert closeness(a, [numbers(1.0, 2.1), None]).relative_error == pytest.approx(0.0447, 0.01)
    assert closeness(a, [numbers(1.0, math.nan), None]).relative_error == math.inf
    assert closeness(a, [numbers(1.0, 2.0), numbers(1.0)]).relative_error == math.inf
    assert closeness([numbers(0.0, 0.0)], [numbers(0.0, 0.0)]).cosine == 1.0
