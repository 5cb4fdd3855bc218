"""The batches without the server: calls of several threads are executed together."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gpujob_api.report import Report, WorkerPhase
from gpujob_api.serving import Batching, BatchingPolicy, BatchTime, Objective
from gpujob_api.settings import Task
from gpujob_worker.serving.batched import Batched
from gpujob_worker.serving.batcher import Batcher, Draining
from gpujob_worker.serving.lifecycle import Lifecycle
from gpujob_worker.serving.signature import InputError
from tests.worker.serving.served import SIGNATURE, SlowBackend

CALLS = 16


def predictor(backend: SlowBackend) -> Batched:
    objective = Objective(latency_milliseconds=3_600_000)
    batching = Batching(BatchingPolicy.IMMEDIATE)
    batcher = Batcher(backend, objective, batching, prior=BatchTime(1.0, 1.0))
    batcher.start()
    return Batched(batcher, SIGNATURE, Lifecycle())


def test_calls_of_threads_get_their_own_answers() -> None:
    backend = SlowBackend()
    predict = predictor(backend)
    with ThreadPoolExecutor(CALLS) as threads:
        values = [torch.full((2, 2), float(number)) for number in range(CALLS)]
        calls = [threads.submit(predict, {"x": value}) for value in values]
        assert backend.begun.wait(60)
        backend.release.set()
        for value, call in zip(values, calls, strict=True):
            assert torch.equal(call.result(60)["double"], value * 2)
    assert predict.close()


async def test_calls_from_an_event_loop() -> None:
    backend = SlowBackend()
    backend.release.set()
    predict = predictor(backend)
    ones = {"x": torch.ones(1, 2)}
    answers = await asyncio.gather(*(predict.later(ones) for _ in range(CALLS)))
    assert all(torch.equal(answer["double"], torch.full((1, 2), 2.0)) for answer in answers)
    predict.close()


def test_inputs_that_do_not_fit_and_calls_after_the_end() -> None:
    predict = predictor(SlowBackend())
    with pytest.raises(InputError, match=r"x: must have type torch.float32"):
        predict({"x": torch.ones(1, 2, dtype=torch.int64)})
    assert predict.close()
    with pytest.raises(Draining):
        predict({"x": torch.ones(1, 2)})


SCRIPT = """
import torch
import gpujob_worker
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Dropout())
predict = gpujob_worker.batched(model, torch.zeros(8, 4))
given = torch.ones(3, 4)
found = predict({"input": given})["output"]
assert torch.equal(found, model(given)), "the model is in evaluation mode"
"""


def test_a_process_with_its_own_server_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "termination"
    variables = {"GPUJOB_TERMINATION_FILE": str(path), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=variables, timeout=120)
    report = Report.from_text(path.read_text())
    assert (report.phase, report.task, report.step) == (WorkerPhase.FINISHED, Task.SERVING, 1)
    assert report.serving is not None
    assert (report.serving.answered, report.serving.samples_per_second > 0) == (1, True)
