"""The memory model, what a loss takes, and the choice of a way that keeps the limit."""

import re
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from gpujob_api.report import FailureClass
from gpujob_api.settings import OptimizeMode, Settings, TunedSettings
from gpujob_worker.device.memory import CpuMemory, CudaMemory, DeviceMemory
from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root, RootPlan
from gpujob_worker.memory_limit.limit_fit import MemoryFit
from gpujob_worker.memory_limit.loss import LossMemoryWatch
from gpujob_worker.memory_limit.model import (
    LossBytes,
)
from gpujob_worker.memory_limit.probes import MemoryProbe
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.failure import MemoryLimitError, classify
from gpujob_worker.run.features import Features
from gpujob_worker.tune.tuner import Tuner

MIB = 2**20


class Memory:
    """Bytes that a test sets; counts as the real ones do."""

    def __init__(self, current: int = 0) -> None:
        self.current = self.peak = current
        self.early = False

    def set(self, current: int) -> None:
        self.current = current
        self.peak = max(self.peak, current)

    def current_bytes(self) -> int:
        return self.current

    def allocated_bytes(self) -> int:
        return self.current

    def peak_bytes(self) -> int:
        return self.peak

    def allocated_peak_bytes(self) -> int:
        return self.peak

    def reset_peak(self) -> None:
        self.peak = self.current

    def trim(self) -> None: ...

    def give_back_early(self, early: bool) -> bool:
        changed, self.early = early is not self.early, early
        return changed

    def exact(self) -> AbstractContextManager[None]:
        return nullcontext()


def test_a_loss_is_measured_from_the_models_return_to_the_start_of_its_backward() -> None:
    memory, resets = Memory(100), [0]
    watch = LossMemoryWatch(memory, lambda: resets.append(1))
    outputs = torch.zeros(4, requires_grad=True) * 2
    more = torch.zeros(4, requires_grad=True) * 2
    watch.returned({"a": outputs, "b": more})
    memory.set(170)
    memory.set(130)
    (outputs.sum() + more.sum()).backward()
    assert watch.found == LossBytes(70.0, 30.0, measured=True)
    assert resets == [0, 1], "the peak so far was read before it was reset"
    memory.set(900)
    watch.returned(torch.zeros(4, requires_grad=True) * 2)
    assert watch.found == LossBytes(70.0, 30.0, measured=True), "one step is enough"


def test_two_calls_before_one_backward_are_not_taken_for_a_loss() -> None:
    memory = Memory(100)
    watch = LossMemoryWatch(memory, lambda: None)
    first = torch.zeros(4, requires_grad=True) * 2
    watch.returned(first)
    memory.set(5000)
    second = torch.zeros(4, requires_grad=True) * 2
    watch.returned(second)
    (first * second).sum().backward()
    assert watch.found is None


class Wide(nn.Module):
    """Many activations a row, and `outputs` numbers a row for the loss."""

    def __init__(self, outputs: int = 64, normalize: bool = False, depth: int = 6) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(self._block(normalize) for _ in range(depth)))
        self.head = nn.Linear(256, outputs)

    def _block(self, normalize: bool) -> nn.Module:
        norm = nn.BatchNorm1d(256) if normalize else nn.LayerNorm(256)
        return nn.Sequential(nn.Linear(256, 256), norm, nn.Tanh())

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(x))


def memory_of(device: str) -> DeviceMemory:
    return CpuMemory() if device == "cpu" else CudaMemory(torch.cuda)


def limited(
    module: nn.Module,
    rows: int,
    limit: int,
    mode: OptimizeMode = OptimizeMode.AUTO,
    device: str = "cpu",
    features: Features | None = None,
) -> SimpleNamespace:
    root = Root(module.to(device), lambda _: None)
    root.install()
    call = RecordedCall(CallInputs.of((torch.randn(rows, 256, device=device),), {}))
    log = DecisionLog()
    tuner = Tuner(Settings(mode=mode), features or Features(), log, 1.0)
    found = MemoryFit(memory_of(device), log, tuner, limit)
    return SimpleNamespace(root=root, call=call, said=log, tuner=tuner, fit=found, limit=limit)


def test_a_real_model_is_measured_and_split_to_keep_a_limit(device: str) -> None:
    torch.manual_seed(6)
    module = Wide()
    case = limited(module, 8192, 2**40, device=device)
    memory = memory_of(device)
    memory.give_back_early(True)
    found = MemoryProbe(case.root, case.call, memory).model()
    # Two activations of 256 floats are kept of each of six blocks; temporaries come on top.
    kept = 6 * 2 * 1024
    assert 0.9 * kept < found.held.bytes_per_row < 1.3 * kept
    # The heap of a process that ran other tests makes this slope uncertain.
    assert 0.9 * kept < found.peak.bytes_per_row < 4 * kept
    assert found.output_bytes_per_row == 64 * 4
    case = limited(module, 8192, int(found.predict(2048) / 0.94), device=device)
    case.fit.fit(case.root, case.call)
    rows = case.tuner.applied.plan.rows_per_step
    assert rows is not None
    assert 512 <= rows <= 4096
    assert 8192 % rows == 0
    assert case.fit.binds


def test_what_a_real_loss_takes_is_seen_in_the_step_itself(device: str) -> None:
    torch.manual_seed(7)
    module = Wide(outputs=4096, depth=1).to(device)
    memory = memory_of(device)
    memory.give_back_early(True)
    root = Root(module, lambda _: None)
    root.install()
    root.plan = RootPlan(rows_per_step=64)
    watch = LossMemoryWatch(memory, lambda: None)
    root.seen = watch.returned
    outputs = 1024 * 4096 * 4
    x, target = torch.randn(1024, 256), torch.randint(4096, (1024,))
    loss = functional.cross_entropy(module(x.to(device)), target.to(device))
    loss.backward()
    assert watch.found is not None
    # Logarithms, their gradient, and the logits' gradient; the logits themselves go.
    assert 1.8 * outputs < watch.found.peak_bytes < 3.2 * outputs
    assert abs(watch.found.held_bytes) < 1.2 * outputs
    assert watch.found.measured


class Fails(nn.Module):
    """Runs out of memory above so many rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(256, 256), rows

    def forward(self, x: Any) -> Any:
        if len(x) > self.rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
        return self.layer(x)


@pytest.mark.parametrize("rows", [400, 200, 20])
def test_probes_that_do_not_fit_are_made_smaller(rows: int) -> None:
    case = limited(Fails(rows), 1600, 2**40)
    found = MemoryProbe(case.root, case.call, CpuMemory()).model()
    assert found.rows == 1600
    assert found.output_bytes_per_row == 1024


def test_where_nothing_fits_the_error_is_that_of_the_smallest_probe() -> None:
    case = limited(Fails(2), 1600, 2**40)
    with pytest.raises(torch.OutOfMemoryError):
        MemoryProbe(case.root, case.call, CpuMemory()).model()


def test_a_limit_that_does_not_bind_says_so_with_numbers(device: str) -> None:
    case = limited(Wide(), 256, 2**40, device=device)
    case.fit.fit(case.root, case.call)
    assert not case.fit.binds
    assert case.tuner.applied.plan == RootPlan()
    assert "predicted for 256 samples" in case.fit.not_asked
    assert case.fit.not_asked.endswith("limit 1 TiB")


def test_what_is_held_before_another_call_leaves_less_room(device: str) -> None:
    """The graph of another module, or of a call before of the same one."""
    module = Wide()
    free = limited(module, 4096, 2**40, device=device)
    free.fit.fit(free.root, free.call)
    whole = float(amount_of(free.said.line("memory limit")))
    # Two predictions of a process differ by some 20 MiB: what the allocator kept.
    case = limited(module, 4096, int(whole / 0.95) + 40 * MIB, device=device)
    case.fit.fit(case.root, case.call)
    assert case.tuner.applied.plan.rows_per_step is None, case.said.lines
    held = torch.ones(24 * MIB, device=device)
    case.fit.look_again(case.root, case.call)
    rows = case.tuner.applied.plan.rows_per_step
    assert rows is not None, case.said.lines
    del held
    case.fit.look_again(case.root, case.call)
    assert case.tuner.applied.plan.rows_per_step == rows, "the next step holds it again"


def amount_of(line: str) -> int:
    found = re.search(r"(\d+) MiB predicted", line)
    assert found is not None, line
    return int(found[1]) * MIB


def test_freed_memory_goes_back_for_as_long_as_one_of_several_asks_for_it() -> None:
    memory = Memory(64 * MIB)
    fits: list[MemoryFit] = []
    for limit in (128 * MIB, 2**40):
        case = limited(Wide(depth=1), 64, limit)
        found = MemoryFit(memory, case.said, case.tuner, limit)
        found.others = lambda: fits
        found.fit(case.root, case.call)
        fits.append(found)
    assert not memory.early
    memory.current = memory.peak = 118 * MIB
    fits.pop(0)
    case = limited(Wide(depth=1), 64, 128 * MIB)
    near = MemoryFit(memory, case.said, case.tuner, 128 * MIB)
    near.fit(case.root, case.call)
    assert memory.early
    fits[:] = [near]
    far = MemoryFit(memory, case.said, case.tuner, 2**40)
    far.others = lambda: fits
    far.fit(case.root, case.call)
    assert (near.wants_early, far.wants_early, memory.early) == (True, False, True)


def test_a_limit_that_cannot_be_kept_ends_the_job_with_what_it_needs(device: str) -> None:
    # On a GPU it would go on with all on the host that can be there.
    features = Features.without("offload")
    case = limited(Wide(normalize=True, depth=1), 256, 50 * MIB, device=device, features=features)
    with pytest.raises(MemoryLimitError, match="cannot be kept") as caught:
        case.fit.fit(case.root, case.call)
    text = str(caught.value)
    assert "predicted for 256 samples" in text
    assert "limit 50 MiB" in text
    assert "batch split skipped: BatchNorm1d blocks.0.1 learns from the whole batch" in text
    assert "activation checkpointing skipped: no list of two or more like blocks" in text
    needed = caught.value.needed_bytes
    assert f"a limit of {needed} bytes" in text
    failure = classify(caught.value)
    assert failure.failure_class is FailureClass.OUT_OF_MEMORY
    assert failure.needed_bytes == needed
    # So much is enough for the same job.
    again = limited(Wide(normalize=True, depth=1), 256, int(needed * 1.1), device=device)
    again.fit.fit(again.root, again.call)
    assert "memory limit" in again.said.line("memory limit")


def test_without_a_model_of_the_step_only_what_was_measured_is_said() -> None:
    case = limited(Wide(), 2, 2**30)
    case.fit.fit(case.root, case.call)
    assert "no batch of four samples" in case.said.line("memory limit")
    case.fit.correct(case.root, case.call, 2**29)
    assert case.said.line("memory limit") == "memory limit kept: 512 MiB measured, limit 1 GiB"
    assert case.fit.correct(case.root, case.call, 2**29 + MIB, ends=False)
    assert case.said.line("memory limit") == "memory limit kept: 513 MiB measured, limit 1 GiB"
    assert not case.fit.correct(case.root, case.call, 2**31, ends=False)
    case.fit.correct(case.root, case.call, 2**31)
    assert "goes back at once" in case.said.line("memory limit")
    with pytest.raises(MemoryLimitError, match="cannot be kept: 2 GiB measured, limit 1 GiB"):
        case.fit.correct(case.root, case.call, 2**31)


def test_settings_of_an_earlier_run_are_held_against_the_limit_of_this_one() -> None:
    torch.manual_seed(9)
    memory = CpuMemory()
    memory.give_back_early(True)
    case = limited(Wide(), 8192, 2**40)
    model = MemoryProbe(case.root, case.call, memory).model()
    limit = int(model.predict(4096, keeps_chunk=False) / 0.94)
    for known, kept in ((TunedSettings(batch_per_step=128), True), (TunedSettings(), False)):
        case = limited(Wide(), 8192, limit)
        case.tuner.adopt(case.root, case.call, known)
        case.fit.fit(case.root, case.call)
        rows = case.tuner.applied.plan.rows_per_step
        assert (rows == 128) is kept
        assert rows is not None
        assert 128 <= rows <= 4096


def test_recommend_says_it_and_goes_on(device: str) -> None:
    model = Wide(normalize=True, depth=1)
    features = Features.without("offload")
    case = limited(model, 256, 50 * MIB, OptimizeMode.RECOMMEND, device, features)
    case.fit.fit(case.root, case.call)
    assert "cannot be kept" in case.said.line("memory limit")
    case.fit.correct(case.root, case.call, 2**40)


def test_real_steps_correct_the_prediction_and_what_is_left_is_judged() -> None:
    torch.manual_seed(8)
    module = Wide()
    case = limited(module, 1021, 2**33)  # a prime number: there is nothing to choose
    case.fit.fit(case.root, case.call)
    case.fit.correct(case.root, case.call, int(2**33 * 1.04))
    assert "what is freed goes back at once from now on" in case.said.line("memory limit")
    case.fit.correct(case.root, case.call, 2**32)
    assert case.said.line("memory limit").startswith("memory limit kept: 4 GiB measured")
    case.fit.correct(case.root, case.call, int(2**33 * 1.04))
    said = case.said.line("memory limit")
    assert "cannot be kept: 8.32 GiB measured" in said, "less is an error of the measurement"
    assert case.fit.needed_bytes > 2**33
    with pytest.raises(MemoryLimitError, match="12 GiB measured"):
        case.fit.correct(case.root, case.call, 12 * 2**30)
    case.fit.judge(12 * 2**30, ends=False)


@pytest.mark.parametrize(("over", "splits"), [(1.2, True), (1.03, False)])
def test_a_limit_that_was_misjudged_is_kept_another_way_at_once(over: float, splits: bool) -> None:
    """Far above it the run does not wait for what giving back freed memory saves."""
    torch.manual_seed(10)
    module = Wide()
    free = limited(module, 4096, 2**40)
    free.fit.fit(free.root, free.call)
    whole = amount_of(free.said.line("memory limit"))
    case = limited(module, 4096, int(whole / 0.8) + 40 * MIB)
    case.fit.fit(case.root, case.call)
    assert case.tuner.applied.plan.rows_per_step is None, case.said.lines
    case.said.skipped("batch split", case.fit.not_asked)
    assert case.fit.correct(case.root, case.call, int(case.limit * over))
    assert (case.tuner.applied.plan.rows_per_step is not None) is splits, case.said.lines
    assert ("from now on" in case.said.line("memory limit")) is True
    assert ("applied" in case.said.line("batch split")) is splits


def test_the_error_lists_what_was_tried_with_numbers() -> None:
    torch.manual_seed(11)
    module = Wide(depth=2)
    case = limited(module, 1024, 2**33)
    case.fit.fit(case.root, case.call)
    observed = int(2**33 * 1.5)
    assert case.fit.correct(case.root, case.call, observed)
    with pytest.raises(MemoryLimitError) as caught:
        case.fit.judge(observed)
    text = str(caught.value)
    assert "12 GiB measured for 1024 samples" in text
    assert "limit 8 GiB" in text
    for item in ("batch split", "activation checkpointing"):
        tried = case.said.line(item)
        assert tried in text
        assert "MiB" in tried or "GiB" in tried, tried
    assert "memory does not ask for it" not in text


def test_an_allocation_that_fails_is_not_taken_for_all_that_is_needed() -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB")
    assert classify(error, 100).needed_bytes == 2 * MIB + 100
    assert classify(error, 100, predicted_bytes=2**34).needed_bytes == 2**34
    assert classify(ValueError("no"), 100, predicted_bytes=2**34).needed_bytes is None
