"""The HTTP server: the Open Inference Protocol (KServe's v2), health, and metrics.

    GET  /v2, /v2/health/live, /v2/health/ready, /v2/models/NAME, /v2/models/NAME/ready, /metrics
    POST /v2/models/NAME/infer

The event loop only moves bytes. Large bodies are converted in threads, and batches are executed in
the batcher's.
"""

import asyncio
import functools
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

from aiohttp import ClientError, web

from gpujob_api.serving import ServingReport
from gpujob_worker.run.standard_error import say
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.batcher import Draining, Overloaded, Parked
from gpujob_worker.serving.connections import ConnectionLimits, Connections
from gpujob_worker.serving.intake import BodyError, Full, Intake, Limits, read_body
from gpujob_worker.serving.lifecycle import Lifecycle
from gpujob_worker.serving.messages import (
    HEADER_LENGTH,
    Body,
    metadata,
    read_request,
    write_response,
)
from gpujob_worker.serving.metrics import metrics_text
from gpujob_worker.serving.signature import InputError, Signature
from gpujob_worker.serving.tensors import short

# Smaller bodies are converted faster than a thread is woken.
INLINE_BYTES_MAX = 64 * 1024
CONVERTING_THREADS = 2
ERROR_CHARACTERS_MAX = 1000
RETRY_SECONDS = 1.0

Result = TypeVar("Result")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Service:
    """What the server serves, and what it asks."""

    name: str
    signature: Signature
    submit: Callable[[Tensors, int], Future[Tensors]]
    report: Callable[[], ServingReport]
    # Whether batches make progress.
    is_alive: Callable[[], bool]
    # Spans a request from its first byte to `submit`. Raises `Parked`.
    arrival: Callable[[], AbstractContextManager[None]] = nullcontext


class ModelError(RuntimeError):
    """The model failed for this request."""


class Server:
    """The routes of one served model."""

    def __init__(
        self,
        service: Service,
        lifecycle: Lifecycle,
        limits: Limits | None = None,
        connections: ConnectionLimits | None = None,
    ) -> None:
        self.intake = Intake(limits or Limits())
        self.connections = Connections(connections)
        self.responses: Counter[int] = Counter()
        self._service = service
        self._lifecycle = lifecycle
        self._threads = ThreadPoolExecutor(CONVERTING_THREADS, "gpujob-convert")

    def application(self) -> web.Application:
        application = web.Application(middlewares=[self._answer_errors])
        application.add_routes(
            [
                web.get("/v2", self._about),
                web.get("/v2/health/live", self._live),
                web.get("/v2/health/ready", self._ready),
                web.get("/metrics", self._metrics),
            ]
        )
        for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            application.router.add_get(path, self._of_model(self._metadata))
            application.router.add_get(f"{path}/ready", self._of_model(self._ready))
            application.router.add_post(f"{path}/infer", self._of_model(self._infer))
        return application

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Makes every error a response with JSON, as the protocol requires."""
        self.connections.begins(request.protocol)
        try:
            response = await handler(request)
        except Exception as error:
            response = self._error(request, error)
        finally:
            self.connections.ends(request.protocol)
        if request.match_info.handler is not None and request.path.endswith("/infer"):
            self.responses[response.status] += 1
        if self._lifecycle.ends:
            # The next request of this connection belongs to another process.
            response.force_close()
        return response

    def _error(self, request: web.Request, error: Exception) -> web.Response:
        status, headers = 500, dict[str, str]()
        message = str(error)
        if isinstance(error, InputError):
            status = 400
        elif isinstance(error, BodyError):
            status = error.status
        elif isinstance(error, Overloaded | Draining | Parked | Full):
            status = 503
            seconds = error.retry_after_seconds if isinstance(error, Overloaded) else RETRY_SECONDS
            headers["Retry-After"] = str(max(1, math.ceil(seconds)))
        elif isinstance(error, web.HTTPMethodNotAllowed):
            status, headers["Allow"] = error.status, error.headers["Allow"]
            message = f"{request.path} takes {headers['Allow']}; got {request.method}"
        elif isinstance(error, web.HTTPNotFound):
            status, message = 404, _unknown_path(request, self._service.name)
        elif isinstance(error, web.HTTPException):
            status, message = error.status, error.text or error.reason
        elif not isinstance(error, ModelError):
            message = f"the server failed: {type(error).__name__}: {error}"
            say(f"gpujob: {message[:ERROR_CHARACTERS_MAX]}")
        found = {"error": message[:ERROR_CHARACTERS_MAX]}
        response = web.json_response(found, status=status, headers=headers)
        if isinstance(error, BodyError):
            # The rest of the body would be taken for the next request.
            response.force_close()
        return response

    def _of_model(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            name, version = request.match_info["name"], request.match_info.get("version", "1")
            if name != self._service.name or version != "1":
                raise web.HTTPNotFound
            return await handler(request)

        return checked

    async def _about(self, request: web.Request) -> web.Response:
        del request
        extensions = ["binary_tensor_data"]
        return web.json_response({"name": "gpujob", "version": "1", "extensions": extensions})

    async def _live(self, request: web.Request) -> web.Response:
        del request
        live = self._service.is_alive()
        return web.json_response({"live": live}, status=200 if live else 503)

    async def _ready(self, request: web.Request) -> web.Response:
        ready = self._lifecycle.is_ready
        found: dict[str, object] = {"ready": ready}
        if "name" in request.match_info:
            found["name"] = self._service.name
        return web.json_response(found, status=200 if ready else 503)

    async def _metadata(self, request: web.Request) -> web.Response:
        del request
        return web.json_response(metadata(self._service.name, self._service.signature))

    async def _metrics(self, request: web.Request) -> web.Response:
        del request
        text = metrics_text(self._service.report(), self.responses, self.intake.requests)
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=text.encode(), headers=headers)

    async def _infer(self, request: web.Request) -> web.Response:
        if self._lifecycle.refuses:
            self.intake.refused += 1
            raise Draining("this process ends; send the request again")
        service, length = self._service, request.headers.get(HEADER_LENGTH)
        with self.intake.request(request.content_length):
            with self.intake.arrival(), service.arrival():
                body = await self._body(request)
                read = functools.partial(read_request, body, length, service.signature)
                message = await self._convert(len(body), read)
                del body, read
                future = service.submit(message.inputs, message.samples)
            outputs = await _answer(future)
            size = sum(tensor.nbytes for tensor in outputs.values())
            write = functools.partial(write_response, service.name, message, outputs)
            written = await self._convert(size, write)
            return _response(written)

    async def _body(self, request: web.Request) -> bytearray:
        encoding = request.headers.get("Content-Encoding", "identity")
        if encoding != "identity":
            # A small compressed body may be an arbitrarily large one.
            text = f"the body must have no Content-Encoding; got {short(encoding)}"
            raise BodyError(415, text)
        try:
            return await read_body(request.content.iter_any(), self.intake.limits)
        except (ClientError, ConnectionError, web.RequestPayloadError) as error:
            raise BodyError(400, f"the body cannot be read: {error}") from None

    async def _convert(self, size: int, call: Callable[[], Result]) -> Result:
        if size <= INLINE_BYTES_MAX:
            return call()
        return await asyncio.wrap_future(self._threads.submit(call))


async def _answer(future: Future[Tensors]) -> Tensors:
    """Returns the outputs. A client that leaves does not cancel them, because they are part of a
    batch.
    """
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        if future.cancelled():
            raise Draining("this process ends before the answer; send the request again") from None
        raise
    except Draining:
        raise
    except Exception as error:
        raise ModelError(f"the model failed: {type(error).__name__}: {error}") from error


def _response(body: Body) -> web.Response:
    if body.json_bytes is None:
        return web.Response(body=body.data, content_type="application/json")
    headers = {HEADER_LENGTH: str(body.json_bytes)}
    return web.Response(body=body.data, content_type="application/octet-stream", headers=headers)


def _unknown_path(request: web.Request, served: str) -> str:
    name = request.match_info.get("name")
    if name is not None and name != served:
        return f"there is no model {short(name)}; this server has {served}"
    if name is not None:
        return f"{served} has version 1 only"
    return (
        f"there is no {short(request.path)}; there are /v2, /v2/health/live, /v2/health/ready,"
        f" /v2/models/{served}, /v2/models/{served}/infer and /metrics"
    )
