"""The batches without the server: calls of several threads are executed together."""

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from gpujob_api.report import Reply, Report, StopRequest, WorkerPhase
from gpujob_api.serving import Batching, BatchingPolicy, BatchTime, Objective, ServingSettings
from gpujob_api.settings import EXIT_INTERRUPTED_SAVED, Task
from gpujob_worker.serving.batched import Batched
from gpujob_worker.serving.batcher import Batcher, Draining
from gpujob_worker.serving.lifecycle import Lifecycle
from gpujob_worker.serving.signature import InputError
from tests.harness.report_receiver import Operator
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


LOOP = """
import sys
import threading
import time
import torch
import gpujob_worker
torch.manual_seed(0)
predict = gpujob_worker.batched(torch.nn.Linear(4, 2), torch.zeros(8, 4))
given = {"input": torch.ones(1, 4)}
answered = 0
try:
    print("ready", flush=True)
    while True:
        BODY
        answered += 1
finally:
    print("answered", answered, flush=True)
"""
OWN_HANDLER = """
import os
import signal
def own(number, frame):
    os.write(1, f"own handler {predict.close()}\\n".encode())  # print is not reentrant
    sys.exit(7)
signal.signal(signal.SIGTERM, own)
"""
CALL = "predict(given)"
WAIT = "threading.Event().wait()"


def stopped(
    tmp_path: Path, body: str, *, stop: str = "SIGTERM", own: bool = False, delay: float = 0.3
) -> tuple[int, str, str, Report]:
    """Runs the loop until a stop has ended it. Returns exit code, output, errors, last report."""
    script = LOOP.replace("BODY", body)
    if own:
        script = script.replace("given =", f"{OWN_HANDLER}\ngiven =")
    operator, path = Operator(), tmp_path / "termination"
    settings = ServingSettings(Objective(3_600_000), drain_delay_seconds=delay)
    variables = {
        "GPUJOB_SERVING": settings.to_text(),
        "GPUJOB_TERMINATION_FILE": str(path),
        "GPUJOB_REPORT_URL": operator.url,
        "GPUJOB_GRACE_SECONDS": "120",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if stop == "SIGTERM":
            process.send_signal(signal.SIGTERM)
        else:
            reply = Reply(interval_seconds=0.1, stop=StopRequest("Preempted", 120.0))
            operator.answers = [(200, reply.to_text().encode())] * 1000
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
        operator.close()
    return process.returncode, output, errors, Report.from_text(path.read_text())


@pytest.mark.parametrize("stop", ["SIGTERM", "reply"])
@pytest.mark.parametrize("body", [CALL, WAIT])
def test_a_stop_ends_a_loop_of_the_users_own_as_it_ends_a_server(
    tmp_path: Path, body: str, stop: str
) -> None:
    code, output, errors, report = stopped(tmp_path, body, stop=stop)
    assert (code, errors) == (EXIT_INTERRUPTED_SAVED, "")
    assert output.startswith("answered "), "finally blocks run"
    assert report.phase is WorkerPhase.DRAINING
    assert report.failure is None
    assert report.serving is not None
    assert report.serving.failed == 0
    assert report.serving.answered >= int(output.split()[1])


@pytest.mark.parametrize("stop", ["SIGTERM", "reply"])
def test_a_web_server_that_handles_sigterm_ends_itself(tmp_path: Path, stop: str) -> None:
    """An operator's stop reaches its handler, too."""
    code, output, _, _ = stopped(tmp_path, "time.sleep(0.01)", stop=stop, own=True)
    assert code == 7
    assert output.startswith("own handler True\nanswered ")
