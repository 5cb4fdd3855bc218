"""Backends on a real GPU: they answer as the model as written does, from the batcher's thread."""

from pathlib import Path

import pytest
import torch
from torch import nn

from gpujob_api.serving import BackendName, Batching, BatchingPolicy, Objective
from gpujob_api.settings import Precision
from gpujob_worker.serving.backends.build import build
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.rows import rows_of
from gpujob_worker.serving.signature import signature

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SIZES = (1, 2, 4)
ANSWER_SECONDS_MAX = 60.0


def model() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.Sequential(nn.Linear(32, 64), layer, nn.Linear(64, 5)).eval().cuda()


@pytest.mark.parametrize(
    "plan",
    [
        Plan(BackendName.CUDA_GRAPH),
        Plan(BackendName.CUDA_GRAPH, Precision.BFLOAT16),
        Plan(BackendName.AOT_INDUCTOR),
    ],
    ids=str,
)
def test_requests_get_the_answers_of_the_model_as_written(plan: Plan, tmp_path: Path) -> None:
    written = model()
    examples = {"x": torch.randn(16, 8, 32)}
    shape = signature(written, examples)
    backend = build(plan, written, shape, examples, SIZES, tmp_path)
    batcher = Batcher(backend, Objective(1000), Batching(BatchingPolicy.IMMEDIATE))
    batcher.warm_up(examples, 1.0)
    batcher.start()
    requests = {"x": torch.randn(64, 8, 32)}
    futures = [batcher.submit(rows_of(requests, [row]), 1) for row in range(64)]
    outputs = [next(iter(future.result(ANSWER_SECONDS_MAX).values())) for future in futures]
    batcher.close()
    with torch.inference_mode():
        expected = written(requests["x"].cuda()).cpu()
    lower = plan.precision is Precision.BFLOAT16
    torch.testing.assert_close(
        torch.cat(outputs), expected, atol=0.1 if lower else 1e-4, rtol=0.05 if lower else 1e-4
    )
