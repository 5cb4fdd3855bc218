"""Batches that are no stack of rows: sparse matrices and nested tensors, alone or beside others."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gpujob_worker.inject.call_inputs import CallInputs
from gpujob_worker.inject.microbatch import NotSplittableError, chunked_call
from gpujob_worker.inject.recorded_call import RecordedCall
from gpujob_worker.inject.wrapped_module import Root
from gpujob_worker.tune.safety_check import trace_refusal
from gpujob_worker.tune.split_check import split_refusal
from tests.harness.imitated_gpu import GpuModel
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)

ROWS = 6


def nested(layout: torch.layout) -> torch.Tensor:
    parts = [torch.ones(1 + n % 3, 4) for n in range(ROWS)]
    return torch.nested.nested_tensor(parts, layout=layout)


SPARSE: dict[str, Callable[[], torch.Tensor]] = {
    "coordinates": lambda: torch.eye(ROWS).to_sparse(),
    "compressed rows": lambda: torch.eye(ROWS).to_sparse_csr(),
}


class Spread(nn.Module):
    """One round over the edges of a graph: every node learns from its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, edges: Any, features: Any) -> Any:
        return edges @ self.layer(features)


def is_counted_and_not_taken_out(batch: torch.Tensor, device: str) -> None:
    call = CallInputs.of((batch, torch.ones(ROWS, 4, device=device)), {})
    assert call.rows == ROWS
    assert not call.divisible
    assert call.signature == call.signature
    with pytest.raises(NotSplittableError, match="sparse or nested"):
        chunked_call(torch.matmul, Spread().to(device), call, 2)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", SPARSE)
def test_samples_of_sparse_batches_are_counted_and_not_taken_out(kind: str, device: str) -> None:
    is_counted_and_not_taken_out(SPARSE[kind]().to(device), device)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_samples_of_nested_batches_are_counted_and_not_taken_out(layout: torch.layout) -> None:
    is_counted_and_not_taken_out(nested(layout), "cpu")


def test_a_tensor_beside_the_batch_may_be_sparse(device: str) -> None:
    beside = torch.eye(3).to_sparse().to(device)
    assert CallInputs.of((torch.ones(ROWS, 4, device=device), beside), {}).divisible


def test_a_graph_is_looked_at_as_a_whole_and_not_split(device: str) -> None:
    model, edges = Spread().to(device), torch.eye(ROWS).to_sparse().to(device)
    call = CallInputs.of((edges, torch.ones(ROWS, 4, device=device)), {})
    recorded = RecordedCall(call, whole_only=not call.divisible)
    root = Root(model, lambda _: None)
    assert trace_refusal(root, recorded, whole=False) is None
    assert trace_refusal(root, recorded, whole=True) is None
    assert recorded.whole_only
    assert split_refusal(root, recorded) == (
        "samples cannot be taken out of a sparse or nested batch"
    )


GRAPH = """
import sys, torch
from torch import nn
torch.manual_seed(2); device = sys.argv[1]
nodes, edges = 40, torch.randint(0, 40, (2, 160))
graph = torch.sparse_coo_tensor(edges, torch.ones(160), (nodes, nodes)).coalesce().to(device)
features = torch.eye(nodes).to_sparse().to(device)
wanted = torch.randint(0, 3, (nodes,)).to(device)
class Layer(nn.Module):
    def __init__(self, inward, outward):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inward, outward) / inward ** 0.5)
    def forward(self, values, graph): return graph @ (values @ self.weight)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Layer(nodes, 8), Layer(8, 3)
    def forward(self, features, graph):
        return self.second(torch.relu(self.first(features, graph)), graph)
net = Net().to(device); optimizer = torch.optim.Adam(net.parameters(), 0.05)
for step in range(24):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(features, graph), wanted)
    loss.backward(); optimizer.step()
    print(round(loss.item(), 4))
"""


@pytest.mark.parametrize("gpu", [None, GpuModel()], ids=["cpu", "cuda"])
@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "batch split skipped: samples cannot be taken out of a sparse or nested batch"),
        (
            {"GPUJOB_MEMORY_LIMIT_BYTES": str(8 << 30)},
            "memory limit kept: ",
        ),
    ],
)
def test_a_network_on_a_sparse_graph_trains_on(
    environment: dict[str, str], line: str, gpu: GpuModel | None, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRAPH)
    command = ["python", str(script), "cpu" if gpu is None else "cuda"]
    code, plain = run_worker(tmp_path / "plain", command, settings={"mode": "Off"}, gpu=gpu)
    assert code == 0, plain.errors
    # On a crowded CPU another type may come out as faster.
    settings = {"batchPerStep": 8, "precision": "float32"}
    code, run = run_worker(
        tmp_path / "run", command, settings=settings, environment=environment, gpu=gpu
    )
    assert code == 0, run.errors
    assert run.output == plain.output
    said = "\n".join(run.report["explain"])
    assert line in said
    assert "measuring failed" not in said
