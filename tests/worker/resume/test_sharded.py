"""Which tensors that are spread over processes are saved, and that they come back to their place.

One process of four, whose group exchanges nothing.
"""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from gpujob_worker.checkpoint.errors import MismatchError
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree
from gpujob_worker.resume.script_objects import ScriptObjects
from gpujob_worker.resume.sharded import joined_module, sharding_refusal, with_own_parts
from tests.harness.process_groups import one_of

pytestmark = pytest.mark.filterwarnings("ignore")
SIZE = 4


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    with one_of(SIZE):
        yield


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))


def mesh(*shape: int) -> Any:
    names = ("replicas", "shards")[-len(shape) :]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def local(module: nn.Module) -> list[torch.Tensor]:
    return [getattr(each, "_local_tensor", each) for each in module.state_dict().values()]


def through_a_file(state: Any) -> Any:
    text, tensors = encode_tree(state)
    return decode_tree(text, {name: tensor.clone() for name, tensor in tensors.items()})


@pytest.mark.parametrize("shape", [(SIZE,), (2, 2)], ids=["full", "hybrid"])
def test_own_parts_of_modules_and_optimizers_come_back(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler):
        monkeypatch.setattr(kind, "__init__", kind.__init__)
    objects = ScriptObjects()
    objects.install(lambda: None)
    model = net()
    fully_shard(model, mesh=mesh(*shape))
    optimizer = torch.optim.AdamW(model.parameters())
    assert objects.spread() is None
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = through_a_file(objects.states(objects.all()))
    before = [tensor.clone() for tensor in local(model)]
    moments = copy.deepcopy(optimizer.state_dict()["state"])
    # 6 rows over 4 processes: parts are of different lengths, and one may be empty.
    assert before[0].shape[0] < 6
    optimizer.step()
    optimizer.step()
    assert not torch.equal(local(model)[0], before[0])
    assert objects.restore(saved) == objects.all()
    assert all(map(torch.equal, local(model), before))
    found = optimizer.state_dict()["state"]
    for index, values in moments.items():
        for name, value in values.items():
            got = found[index][name]
            assert type(got) is type(value)
            assert torch.equal(
                getattr(got, "_local_tensor", got), getattr(value, "_local_tensor", value)
            )
    optimizer.step()  # with tensors that lie as the gradients do


def test_what_lies_in_another_way_is_refused() -> None:
    model = net()
    fully_shard(model, mesh=mesh(SIZE))
    saved = through_a_file(with_own_parts(model.state_dict()))
    plain = net()
    with pytest.raises(MismatchError, match="weight is not spread over the processes as it was"):
        joined_module(saved, plain)
    other = net()
    fully_shard(other, mesh=mesh(2, 2))
    with pytest.raises(MismatchError, match="is not spread over the processes as it was"):
        joined_module(saved, other)


def test_tensor_parallelism_is_refused() -> None:
    alone = net()
    spread = distribute_tensor(alone[0].weight.detach(), mesh(SIZE))  # type: ignore[arg-type]  # pyright: ignore
    alone[0].weight = nn.Parameter(spread)
    text = "DTensor spreads its parameters, and fully_shard did not make it"
    assert sharding_refusal(alone) == text
    both, two = net(), mesh(2, 2)
    plan: dict[str, Any] = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(both, two["shards"], plan)
    fully_shard(both, mesh=two["replicas"])
    assert "more than fully_shard spreads them" in str(sharding_refusal(both))


def test_the_first_generation_is_refused() -> None:
    kind: Any = type("FullyShardedDataParallel", (nn.Module,), {})
    text = "FullyShardedDataParallel (the first generation) spreads its state"
    assert sharding_refusal(kind()) == text


def test_what_is_whole_is_not_refused() -> None:
    assert sharding_refusal(net()) is None
