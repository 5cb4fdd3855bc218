"""What tests of the server share: a service of fakes, and a running server on a loopback socket."""

import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from aiohttp.test_utils import TestClient, TestServer
from aiohttp.web import Application, Request

from gpujob_api.serving import ServingReport
from gpujob_worker.serving.backend import Parking, Tensors
from gpujob_worker.serving.front import CONNECTION_OPTIONS
from gpujob_worker.serving.intake import Limits
from gpujob_worker.serving.lifecycle import Lifecycle, Stage
from gpujob_worker.serving.server import Server, Service
from gpujob_worker.serving.signature import Signature, TensorSpec

SIGNATURE = Signature(
    inputs=(TensorSpec("x", torch.float32, (2,)),),
    outputs=(TensorSpec("double", torch.float32, (2,)),),
    by_name=True,
)
Client = TestClient[Request, Application]


def request_of(*rows: list[float], **more: Any) -> dict[str, Any]:
    """An inference request with these rows."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": list(rows)}
    return {"inputs": [tensor], **more}


def doubled(inputs: Tensors) -> Tensors:
    return {"double": inputs["x"] * 2}


@dataclass
class FakeQueue:
    """Takes requests as a batcher does. Answers at once, or when the test says so."""

    answers_at_once: bool = True
    refusal: Exception | None = None
    waiting: list[tuple[Tensors, Future[Tensors]]] = field(default_factory=list)

    def submit(self, inputs: Tensors, samples: int) -> Future[Tensors]:
        assert samples == len(inputs["x"])
        if self.refusal is not None:
            raise self.refusal
        future: Future[Tensors] = Future()
        if self.answers_at_once:
            future.set_result(doubled(inputs))
        else:
            self.waiting.append((inputs, future))
        return future

    def answer(self) -> None:
        for inputs, future in self.waiting:
            future.set_result(doubled(inputs))
        self.waiting.clear()


@dataclass
class Served:
    client: Client
    server: Server
    lifecycle: Lifecycle
    queue: FakeQueue
    alive: bool = True

    async def infer(self, message: Any) -> tuple[int, Any]:
        """Returns the status and the JSON of the answer."""
        async with self.client.post("/v2/models/m/infer", json=message) as response:
            return response.status, await response.json()

    @property
    def port(self) -> int:
        port = self.client.port
        assert port is not None
        return port


@asynccontextmanager
async def served(
    queue: FakeQueue | None = None,
    limits: Limits | None = None,
    arrival: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[Served]:
    """A server that is ready."""
    lifecycle, queue = Lifecycle(), queue or FakeQueue()
    found: Served

    service = Service(
        "m",
        SIGNATURE,
        queue.submit,
        lambda: ServingReport(ready=True),
        lambda: found.alive,
        arrival,
    )
    server = Server(service, lifecycle, limits)
    lifecycle.enter(Stage.SERVING)
    listening = TestServer(server.application())
    await listening.start_server(**CONNECTION_OPTIONS)
    async with TestClient(listening) as client:
        found = Served(client, server, lifecycle, queue)
        yield found
    server.close()


class SlowBackend:
    """Doubles its input. Each batch waits for `release`, unless it is set."""

    name = "Slow"
    sizes: tuple[int, ...] | None = None
    parking: Parking | None = None

    def __init__(self, fails: Callable[[Tensors], bool] = lambda _: False) -> None:
        self.release = threading.Event()
        self.begun = threading.Event()
        self._fails = fails

    def run(self, inputs: Tensors) -> Tensors:
        self.begun.set()
        assert self.release.wait(60), "the test did not release the batch"
        if self._fails(inputs):
            raise ValueError("a poisoned sample")
        return doubled(inputs)
