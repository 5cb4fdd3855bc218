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
from tests.harness.worker_process import run_worker

pytestmark = pytest.mark.timeout(240)

ROWS = 6


def nested(layout: torch.layout) -> torch.Tensor:
    parts = [torch.ones(1 + n % 3, 4) for n in range(ROWS)]
    return torch.nested.nested_tensor(parts, layout=layout)


ODD_BATCHES: dict[str, Callable[[], torch.Tensor]] = {
    "coordinates": lambda: torch.eye(ROWS).to_sparse(),
    "compressed rows": lambda: torch.eye(ROWS).to_sparse_csr(),
    "nested": lambda: nested(torch.strided),
    "jagged": lambda: nested(torch.jagged),
}


class Spread(nn.Module):
    """One round over the edges of a graph: every node learns from its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, edges: Any, features: Any) -> Any:
        return edges @ self.layer(features)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", ODD_BATCHES)
def test_samples_are_counted_and_not_taken_out(kind: str) -> None:
    batch = ODD_BATCHES[kind]()
    call = CallInputs.of((batch, torch.ones(ROWS, 4)), {})
    assert call.rows == ROWS
    assert not call.divisible
    assert call.signature == call.signature
    with pytest.raises(NotSplittableError, match="sparse or nested"):
        chunked_call(torch.matmul, Spread(), call, 2)


def test_a_tensor_beside_the_batch_may_be_sparse() -> None:
    beside = torch.eye(3).to_sparse()
    assert CallInputs.of((torch.ones(ROWS, 4), beside), {}).divisible


def test_a_graph_is_looked_at_as_a_whole_and_not_split() -> None:
    model = Spread()
    call = CallInputs.of((torch.eye(ROWS).to_sparse(), torch.ones(ROWS, 4)), {})
    recorded = RecordedCall(call, whole_only=not call.divisible)
    root = Root(model, lambda _: None)
    assert trace_refusal(root, recorded, whole=False) is None
    assert trace_refusal(root, recorded, whole=True) is None
    assert recorded.whole_only
    assert split_refusal(root, recorded) == (
        "samples cannot be taken out of a sparse or nested batch"
    )


GRAPH = """
import torch
from torch import nn
torch.manual_seed(2)
nodes, edges = 40, torch.randint(0, 40, (2, 160))
graph = torch.sparse_coo_tensor(edges, torch.ones(160), (nodes, nodes)).coalesce()
features = torch.eye(nodes).to_sparse()
wanted = torch.randint(0, 3, (nodes,))
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
net = Net(); optimizer = torch.optim.Adam(net.parameters(), 0.05)
for step in range(24):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(features, graph), wanted)
    loss.backward(); optimizer.step()
    print(round(loss.item(), 4))
"""


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
    environment: dict[str, str], line: str, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(GRAPH)
    command = ["python", str(script)]
    code, plain = run_worker(tmp_path / "plain", command, settings={"mode": "Off"})
    assert code == 0, plain.errors
    code, run = run_worker(
        tmp_path / "run", command, settings={"batchPerStep": 8}, environment=environment
    )
    assert code == 0, run.errors
    assert run.output == plain.output
    said = "\n".join(run.report["explain"])
    assert line in said
    assert "measuring failed" not in said
