"""Processes under DistributedDataParallel decide together; what they learn stays what it is."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gpujob_api.settings import AttentionKernel, Precision, Settings, Toggle, TunedSettings
from gpujob_worker.checkpoint.ballot import KeyValues
from gpujob_worker.control.consensus import Consensus, common
from gpujob_worker.control.distributed_tuning import FollowingTuner
from gpujob_worker.inject.ddp import inside, scaling_refusal_of, wrapper_refusal
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.run.decision_log import DecisionLog
from gpujob_worker.run.features import Features
from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)

FAST = TunedSettings(Precision.BFLOAT16, fused_optimizer=True, attention=AttentionKernel.FLASH)


class Clock:
    """Every look at the clock in vain takes a second of it."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> None:
        self.now += 1.0


def agreement(store: KeyValues, rank: int, size: int = 2, **keywords: Any) -> Consensus:
    clock = Clock()
    return Consensus(store, rank, size, clock=lambda: clock.now, pause=clock.pause, **keywords)


def together(*tasks: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result(60) for future in [pool.submit(task) for task in tasks]]


def test_what_the_first_proposes_and_all_find_safe_is_decided() -> None:
    store = HashStore()
    first, second, third = (Consensus(store, rank, 3) for rank in range(3))

    def lead() -> TunedSettings:
        assert first.come()
        first.propose(FAST)
        return first.settle(FAST)

    def follow(one: Consensus) -> TunedSettings:
        assert one.proposal() == FAST
        return one.settle(TunedSettings(Precision.BFLOAT16, batch_per_step=4))

    decided = together(lead, lambda: follow(second), lambda: follow(third))
    assert decided[0] == TunedSettings(Precision.BFLOAT16)
    # A split is each process's own: it changes no gradient.
    assert decided[1] == decided[2] == TunedSettings(Precision.BFLOAT16, batch_per_step=4)
    # Another round knows nothing of the one before.
    assert (
        together(
            lambda: first.settle(FAST), lambda: second.settle(FAST), lambda: third.settle(FAST)
        )
        == [FAST] * 3
    )


def test_a_process_that_does_not_come_leaves_all_as_they_are() -> None:
    store = HashStore()
    leader = agreement(store, 0)
    assert not leader.come()
    assert leader.settle(FAST) == TunedSettings()
    # Who comes late finds the decision made.
    assert agreement(store, 1).settle(FAST) == TunedSettings()


def test_a_first_process_that_comes_late_finds_that_nothing_is_done() -> None:
    store = HashStore()
    follower, leader = agreement(store, 1), agreement(store, 0)
    assert follower.proposal() is None
    assert follower.settle(TunedSettings()) == TunedSettings()
    assert leader.come()
    leader.propose(FAST)
    assert leader.settle(FAST) == TunedSettings()


def test_a_follower_that_gave_up_binds_the_first_process() -> None:
    """The first one waits for a third, the second loses patience: one decision all the same."""
    store = HashStore()
    leader, second = Consensus(store, 0, 3), agreement(store, 1, 3)
    third = Consensus(store, 2, 3)
    assert second.settle(FAST) == TunedSettings()
    assert together(lambda: leader.settle(FAST), lambda: third.settle(FAST)) == (
        [TunedSettings()] * 2
    )


@pytest.mark.parametrize(("wanted", "expected"), [("Auto", 384.0), ("On", 984.0)])
def test_a_first_process_that_died_is_waited_for_no_longer_than_it_may_take(
    wanted: str, expected: float
) -> None:
    clock = Clock()
    one = Consensus(HashStore(), 1, 2, clock=lambda: clock.now, pause=clock.pause)
    explanation = DecisionLog()
    tuner = FollowingTuner(Settings(compile=Toggle(wanted)), Features(), explanation, 12.0)
    tuner.agreement = one
    assert tuner.proposed == TunedSettings()
    assert tuner.proposed == TunedSettings()
    assert clock.now == pytest.approx(expected, abs=2.0)
    assert explanation.lines == ("tuning skipped: the first process proposed nothing",)


def test_who_is_asked_to_stop_does_not_wait() -> None:
    waited: list[float] = []
    stopped = Consensus(HashStore(), 1, 2, cancelled=lambda: True, pause=waited.append)
    assert stopped.proposal() is None
    assert stopped.settle(FAST) == TunedSettings()
    assert waited == []


def test_a_store_that_is_gone_ends_no_run() -> None:
    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Broken pipe")

    store: Any = Gone()
    for rank in range(2):
        one = agreement(store, rank)
        assert not one.come()
        assert one.proposal() is None
        assert one.settle(FAST) == TunedSettings()
        one.ask_roll_back(10, "why")
        assert one.roll_back_due(20) is None


def test_what_a_store_holds_is_not_trusted() -> None:
    store = HashStore()
    store.set("0/proposal", '{"precision": "float99"}')
    store.set("0/decision", "[1]")
    assert agreement(store, 1).proposal() is None
    assert agreement(store, 1).settle(FAST) == TunedSettings()


def test_all_go_back_at_the_same_check() -> None:
    store = HashStore()
    quick, slow = agreement(store, 0), agreement(store, 1)
    assert quick.roll_back_due(10) is None
    quick.ask_roll_back(10, "slower")
    slow.ask_roll_back(10, "another reason")
    # The slow one is at the check that the quick one has left behind.
    assert slow.roll_back_due(10) is None
    assert quick.roll_back_due(20) == slow.roll_back_due(20) == "slower"


def test_what_is_common() -> None:
    whole = TunedSettings(Precision.FLOAT16, compile=True, regional_compile=True)
    assert common([whole, whole]) == whole
    assert common([whole, TunedSettings(Precision.FLOAT16)]) == TunedSettings(Precision.FLOAT16)
    assert common([whole, TunedSettings(Precision.BFLOAT16)]) == TunedSettings()


def relative(ours: list[float], plain: list[float]) -> float:
    a, b = torch.tensor(ours, dtype=torch.float64), torch.tensor(plain, dtype=torch.float64)
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize(
    ("what", "bound"), [("plain", 1e-6), ("double", 1e-12), ("double accumulate", 1e-12)]
)
def test_a_split_batch_has_the_gradients_of_the_whole(
    what: str, bound: float, tmp_path: Path
) -> None:
    outputs, _ = train(tmp_path / "plain", what, 12, mode="Off")
    split, reports = train(tmp_path / "split", what, 12, tuned={"batchPerStep": 5})
    assert [report["tuned"]["batchPerStep"] for report in reports] == [5, 5]
    for ours, plain in zip(split[0]["gradients"][:1], outputs[0]["gradients"][:1], strict=True):
        assert relative(ours, plain) < bound
    if "double" in what:
        assert relative(split[0]["gradients"][-1], outputs[0]["gradients"][-1]) < 1e-9


def test_what_the_first_measured_is_in_force_in_all(tmp_path: Path) -> None:
    _, reports = train(tmp_path)
    tuned = [{**report["tuned"], "dataLoaderWorkers": None} for report in reports]
    assert tuned[0] == tuned[1]
    for text in said(reports):
        assert "processes 2 processes decided together" in text
        assert "could measure and decide differently" not in text
    assert "compile skipped: the others would wait for it" in said(reports)[0]


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_type_that_was_asked_for(precision: str, tmp_path: Path) -> None:
    outputs, reports = train(tmp_path, precision=precision)
    assert [report["tuned"]["precision"] for report in reports] == [precision] * 2
    assert "precision applied: as the first" in said(reports)[1].replace(f"{precision} ", "")
    plain, _ = train(tmp_path / "plain", mode="Off")
    assert outputs[0]["loss"] == pytest.approx(plain[0]["loss"], rel=0.05)


def test_an_overflow_in_one_process_skips_the_step_in_all(tmp_path: Path) -> None:
    outputs, reports = train(tmp_path, "overflow", 14, tuned={"precision": "float16"})
    assert [report["skippedSteps"] for report in reports] == [1, 1]
    assert all(abs(value) < 10 for value in outputs[0]["values"])


def test_one_process_that_loses_its_loss_takes_all_back(tmp_path: Path) -> None:
    _, reports = train(tmp_path, "diverges", 90, precision="bfloat16")
    for text, report in zip(said(reports), reports, strict=True):
        assert "roll-back to plain settings: the loss diverges: 1e+06" in text
        assert report["tuned"]["precision"] == "float32"


@pytest.mark.slow
def test_compiled_where_all_ask_for_it(tmp_path: Path) -> None:
    outputs, reports = train(tmp_path / "compiled", compile="On")
    assert [report["tuned"]["compile"] for report in reports] == [True, True]
    assert "compile applied: as the first process measured" in said(reports)[1]
    plain, _ = train(tmp_path / "plain", mode="Off")
    assert relative(outputs[0]["gradients"][9], plain[0]["gradients"][9]) < 1e-4


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("unused", "looks for unused parameters"),
        ("static", "graph that stays"),
        ("speaks", "speak to other processes"),
    ],
)
def test_what_stays_refused_says_why(what: str, reason: str, tmp_path: Path) -> None:
    _, reports = train(tmp_path, what, 12, batchPerStep=6, precision="float16")
    for text, report in zip(said(reports), reports, strict=True):
        assert reason in text
        assert "batchPerStep" not in {k for k, v in report["tuned"].items() if v is not None}
        assert report["tuned"]["precision"] == "float32"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_what_cannot_be_decided_together_is_left_as_it_is() -> None:
    wrapped = DistributedDataParallel(nn.Linear(2, 2))
    assert inside(wrapped) is wrapped.module
    assert inside(nn.DataParallel(nn.Linear(2, 2))) is None
    assert wrapper_refusal(wrapped, 1) is None
    assert "not that of the 4 processes" in (wrapper_refusal(wrapped, 4) or "")
    vars(wrapped)["mixed_precision"] = object()
    assert "casts the module itself" in (wrapper_refusal(wrapped, 1) or "")
    synchronized = DistributedDataParallel(nn.Linear(2, 2))
    synchronized.module.add_module("norm", nn.SyncBatchNorm(2))
    assert "SyncBatchNorm speaks" in (wrapper_refusal(synchronized, 1) or "")

    class LightningModule(nn.Linear):
        """Under this name Lightning's modules are known, without an import of it."""

    whole = DistributedDataParallel(LightningModule(2, 2))
    assert "a whole training step" in (wrapper_refusal(whole, 1) or "")
    nested = DistributedDataParallel(nn.Linear(2, 2))
    nested.module.add_module("inner", wrapped)
    assert "another DistributedDataParallel" in (wrapper_refusal(nested, 1) or "")
    assert parallel_wrapper(nn.Sequential(wrapped)) == "DistributedDataParallel inside"


@pytest.mark.usefixtures("group")
def test_overflow_that_others_would_not_see_is_refused() -> None:
    wrapped: Any = DistributedDataParallel(nn.Linear(2, 2))
    assert scaling_refusal_of(wrapped) is scaling_refusal_of(None) is None
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert "communication hook" in (scaling_refusal_of(wrapped) or "")
    partly: Any = DistributedDataParallel(nn.Linear(2, 2))
    partly.parameters_to_ignore = {"bias"}
    assert "leaves out parameters" in (scaling_refusal_of(partly) or "")


def test_every_process_looks_at_the_exchanged_gradients_only() -> None:
    """Two processes with one parameter each; the exchange adds, and clipping comes after it."""
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(2)]
    scales = [LossScale(8.0, [parameter]) for parameter in parameters]
    optimizers = [torch.optim.SGD([parameter], lr=1.0) for parameter in parameters]
    left = [
        scales[0].unscale([torch.tensor([8.0, torch.inf, 8.0])])[0],
        scales[1].unscale([torch.full((3,), 8.0)])[0],
    ]
    assert left[0] is not None
    assert left[1] is not None
    assert bool(left[0].isnan().all())
    for parameter, scale, optimizer in zip(parameters, scales, optimizers, strict=True):
        parameter.grad = (left[0] + left[1]).clamp(-1.0, 1.0)
        scale.step_starts(optimizer)
        optimizer.step()
        scale.step_ends()
        assert torch.equal(parameter.detach(), torch.zeros(3))
    assert [(scale.skipped, scale.scale) for scale in scales] == [(1, 4.0)] * 2
