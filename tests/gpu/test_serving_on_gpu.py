"""Backends on a real GPU: they answer as the model as written does, from the batcher's thread."""

import gc
import queue
from pathlib import Path

import pytest
import torch
from torch import nn

from gpujob_api.serving import BackendName, Batching, BatchingPolicy, Objective
from gpujob_api.settings import Precision
from gpujob_worker.run.environment import Environment
from gpujob_worker.run.session import Session
from gpujob_worker.run.session_device import use_device
from gpujob_worker.serving.backends.build import build
from gpujob_worker.serving.batcher import Batcher
from gpujob_worker.serving.metered import MeteredBackend
from gpujob_worker.serving.mover import Mover
from gpujob_worker.serving.plan import Plan
from gpujob_worker.serving.rows import rows_of
from gpujob_worker.serving.signature import signature

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
SIZES = (1, 2, 4)
ANSWER_SECONDS_MAX = 60.0
MEBIBYTE = 1024**2
WIDTH = 4096


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


@pytest.mark.parametrize(
    "plan",
    [
        Plan(BackendName.EAGER),
        Plan(BackendName.COMPILE, Precision.BFLOAT16),
        Plan(BackendName.CUDA_GRAPH),
        Plan(BackendName.AOT_INDUCTOR),
    ],
    ids=str,
)
def test_a_parked_backend_gives_its_memory_back_and_answers_alike(
    plan: Plan, tmp_path: Path
) -> None:
    """The model has 512 MiB of weights, more than libraries keep for themselves."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    before_bytes, reserved_bytes = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    written = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8))).eval().cuda()
    weight_bytes = sum(one.nbytes for one in written.parameters())
    session = Session(Environment())
    use_device(session, torch.device("cuda"))
    examples = {"x": torch.randn(16, WIDTH)}
    shape = signature(written, examples)
    backend = build(plan, written, shape, examples, SIZES, tmp_path)
    batcher = Batcher(backend, Objective(1000), Batching(BatchingPolicy.IMMEDIATE))
    batcher.warm_up(examples, 1.0)
    moved = queue.SimpleQueue[bool]()
    mover = Mover(MeteredBackend(backend, session), session)
    batcher.parks_by(mover, lambda: moved.put(batcher.is_parked))
    batcher.start()

    def answers() -> list[torch.Tensor]:
        found = (batcher.submit(rows_of(examples, [row]), 1) for row in range(16))
        return [next(iter(one.result(ANSWER_SECONDS_MAX).values())) for one in found]

    expected = answers()
    for _ in range(2):
        used_bytes = -torch.cuda.mem_get_info()[0]
        batcher.park(True)
        assert moved.get(timeout=ANSWER_SECONDS_MAX)
        freed_bytes = used_bytes + torch.cuda.mem_get_info()[0]
        assert torch.cuda.memory_allocated() < before_bytes + 64 * MEBIBYTE
        assert torch.cuda.memory_reserved() < reserved_bytes + 128 * MEBIBYTE
        assert freed_bytes > 0.9 * weight_bytes
        batcher.park(False)
        assert not moved.get(timeout=ANSWER_SECONDS_MAX)
        assert all(map(torch.equal, answers(), expected))
    batcher.close()
