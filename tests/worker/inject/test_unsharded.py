"""The copy of a sharded module: whole parameters, the script's own classes, and no gathering.

One process of four, whose group exchanges nothing: values of gathered tensors are not looked at.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from gpujob_worker.control.sharded_tuning import moved
from gpujob_worker.inject import unsharded
from gpujob_worker.inject.float32_tail import Float32Tail
from gpujob_worker.inject.unsharded import (
    ReachedError,
    copy_refusal,
    counterpart,
    is_sharded,
    nothing_gathered,
    unsharded_copy,
    whole_bytes,
)
from gpujob_worker.inject.wrapped_module import RootPlan
from tests.harness.process_groups import one_of

pytestmark = pytest.mark.filterwarnings("ignore")
SIZE = 4


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with one_of(SIZE):
        yield


class Tied(nn.Module):
    """Two layers with one weight, a norm with buffers, and a hook of the script."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6)
        self.last.weight = self.first.weight
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


def sharded(policy: MixedPrecisionPolicy | None = None) -> Tied:
    net = Tied()
    fully_shard(
        net, mesh=init_device_mesh("cpu", (SIZE,)), mp_policy=policy or MixedPrecisionPolicy()
    )
    return net


def test_the_copy_is_of_the_scripts_classes_and_whole() -> None:
    net = sharded()

    def hook(module: nn.Module, args: Any, output: Any) -> None: ...

    net.norm.register_forward_hook(hook)
    copy: Any = unsharded_copy(net)
    assert type(copy) is Tied
    assert not copy._forward_pre_hooks
    assert list(copy.norm._forward_hooks.values()) == [hook]
    assert [tuple(each.shape) for each in copy.parameters()] == [(6, 6), (6,), (6,), (6,), (6,)]
    assert not any(is_sharded(each) for each in copy.parameters())
    assert copy.last.weight is copy.first.weight, "as in the module"
    assert copy.norm.running_mean is net.norm.running_mean
    assert copy(torch.ones(3, 6)).shape == (3, 6)
    assert whole_bytes(net) == 4 * (36 + 4 * 6)


def test_the_module_stays_as_it_was() -> None:
    net = sharded()
    kept = dict(vars(net)), dict(net.named_parameters())
    unsharded_copy(net).first.weight.requires_grad_(False)  # type: ignore[union-attr]  # pyright: ignore
    assert (dict(vars(net)), dict(net.named_parameters())) == kept
    assert all(is_sharded(each) and each.requires_grad for each in net.parameters())


def test_a_call_that_would_gather_raises_while_the_copy_is_tried() -> None:
    net = sharded()
    with nothing_gathered(net), pytest.raises(ReachedError, match="past the copy"):
        net(torch.ones(3, 6))
    other = sharded()
    assert other(torch.ones(3, 6)).shape == (3, 6)


def test_what_the_module_computes_otherwise_is_refused() -> None:
    assert copy_refusal(sharded(), SIZE) is None
    own = sharded(MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    assert (
        copy_refusal(own, SIZE) == "fully_shard casts the module itself (its MixedPrecisionPolicy)"
    )
    # Gradients alone are added up in another type.
    assert copy_refusal(sharded(MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)), SIZE) is None


def test_a_module_that_is_not_of_all_processes_is_refused() -> None:
    assert copy_refusal(sharded(), 8) == "parameter first.weight is spread over 4 of 8 processes"


def test_a_torch_that_keeps_its_groups_elsewhere_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = sharded()

    def no_groups(_: nn.Module) -> list[Any]:
        return []

    monkeypatch.setattr(unsharded, "_groups", no_groups)
    text = "what fully_shard keeps of FSDPTied is not known in this torch"
    assert copy_refusal(net, SIZE) == text


class Parts(nn.Module):
    """The parts of a language model, each of which a script wraps by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.norm, self.output = nn.LayerNorm(6), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def wrapped_part_by_part(*, root: bool = True) -> Parts:
    """In torchtitan's order, in which nothing is left for the root."""
    net, mesh = Parts(), init_device_mesh("cpu", (SIZE,))
    for part in (net.embed, *net.blocks):
        fully_shard(part, mesh=mesh)
    fully_shard([net.norm, net.output], mesh=mesh)
    if root:
        fully_shard(net, mesh=mesh)
    return net


@pytest.mark.parametrize("root", [True, False])
def test_a_root_all_of_whose_parts_are_wrapped_is_copied(root: bool) -> None:
    net = wrapped_part_by_part(root=root)
    assert copy_refusal(net, SIZE) is None
    with nothing_gathered(net):
        copy = unsharded_copy(net)
        assert copy(torch.ones(3, 6)).shape == (3, 2)
        with pytest.raises(ReachedError):
            net(torch.ones(3, 6))
    assert not any(is_sharded(each) for each in copy.parameters())


def test_a_root_that_has_parameters_of_its_own_and_no_known_group_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net, mesh = Parts(), init_device_mesh("cpu", (SIZE,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    assert copy_refusal(net, SIZE) is None
    known = unsharded._groups

    def of_parts(layer: nn.Module) -> list[Any]:
        return [] if layer is net else known(layer)

    monkeypatch.setattr(unsharded, "_groups", of_parts)
    assert "FSDPParts is not known in this torch" in (copy_refusal(net, SIZE) or "")


def test_a_plan_for_the_copy_names_the_copys_layer() -> None:
    net = sharded()
    copy: Any = unsharded_copy(net)
    plan = RootPlan(torch.bfloat16).having(
        Float32Tail(weakref.ref(net.last), whole=True, large=False)
    )
    tail = moved(plan, net, copy).setting(Float32Tail)
    assert tail is not None
    assert (tail.layer(), tail.whole) == (copy.last, True)
    assert moved(RootPlan(torch.bfloat16), net, copy) == RootPlan(torch.bfloat16)
    assert counterpart(nn.Linear(1, 1), net, copy) is None
