"""Processes under DistributedDataParallel decide together; what they learn stays what it is."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from gpujob_worker.inject.ddp import (
    inside,
    number_of,
    scaling_refusal_of,
    watch_wrappers,
    wrapper_refusal,
)
from gpujob_worker.inject.grad_scaling import LossScale
from gpujob_worker.inject.guards import parallel_wrapper
from tests.harness.data_parallel import said, train

pytestmark = pytest.mark.timeout(240)


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
    assert all("compile skipped: tried once training has lasted" in text for text in said(reports))


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
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(DistributedDataParallel, "__init__", DistributedDataParallel.__init__)
    watch_wrappers(lambda module: None)
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
    nested = DistributedDataParallel(nn.Linear(2, 2))
    nested.module.add_module("inner", wrapped)
    assert "another DistributedDataParallel" in (wrapper_refusal(nested, 1) or "")
    assert parallel_wrapper(nn.Sequential(wrapped)) == "DistributedDataParallel inside"


@pytest.mark.usefixtures("group")
def test_wrappers_are_numbered_in_the_order_in_which_all_processes_make_them() -> None:
    alone = dist.new_group([0])
    first = DistributedDataParallel(nn.Linear(2, 2))
    unsure: Any = DistributedDataParallel(nn.Linear(2, 2), init_sync=False)
    second = DistributedDataParallel(nn.Linear(2, 2), process_group=alone)
    numbers = [number_of(first), number_of(second)]
    assert None not in numbers
    assert numbers == [numbers[0], (numbers[0] or 0) + 1]
    for other in (unsure, copy.deepcopy(first)):
        assert number_of(other) is None
        assert "not made by all processes at once" in (wrapper_refusal(other, 1) or "")


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
