"""Runs the HTTP server until it is stopped, and then drains it.

SIGTERM, a stop of the operator, Ctrl-C      not ready
  for `drain_delay_seconds`                  requests are accepted
  then, until the queue is answered          requests are refused with 503
  then                                       the port is closed
"""

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gpujob_worker.serving.lifecycle import Lifecycle, Stage
from gpujob_worker.serving.server import Server

POLL_SECONDS = 0.05
# Connections that wait for the process to accept them.
BACKLOG = 1024


def _is_fault(record: logging.LogRecord) -> bool:
    """Returns False for an error of a client. Anybody may send thousands of them a second."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_faults = logging.getLogger(f"{__name__}.faults")
_faults.addFilter(_is_fault)
CONNECTION_OPTIONS: dict[str, Any] = {
    "access_log": None,
    "logger": _faults,
    "auto_decompress": False,
    "keepalive_timeout": 75.0,
    # How long the rest of a refused body is read, so that its sender sees the response.
    "lingering_time": 1.0,
}
# Of the time until the deadline, that the delay may take.
DELAY_SHARE_MAX = 0.5
# The part of the remaining time that is kept for the queue while bodies arrive.
QUEUE_SHARE_MIN = 0.5
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Ending:
    """When and how the server ends."""

    # Whether it has to end.
    requested: Callable[[], bool]
    # Seconds until the process has to be over.
    remaining_seconds: Callable[[], float]
    # Answers what is queued within these seconds, and returns whether all of it is answered.
    drain: Callable[[float], bool]
    # Ends what is queued without an answer. May wait for the batch that is executed.
    abandon: Callable[[], None]
    # Called when the ending begins.
    begins: Callable[[], None]
    # How long requests are accepted after the ending began.
    delay_seconds: Callable[[], float]


class Front:
    """The server on its socket."""

    def __init__(self, server: Server, lifecycle: Lifecycle, ending: Ending) -> None:
        self._server = server
        self._lifecycle = lifecycle
        self._ending = ending

    async def run(self, listener: socket.socket, started: Callable[[], None]) -> bool:
        """Serves until the ending is requested. Returns whether all accepted requests were
        answered.
        """
        application = self._server.application()
        runner = web.AppRunner(application, shutdown_timeout=CLOSE_SECONDS, **CONNECTION_OPTIONS)
        await runner.setup()
        accepts: asyncio.Server | None = None
        try:
            accepts = await self._listen(runner, listener)
            self._lifecycle.enter(Stage.SERVING)
            started()
            await self._until(self._ending.requested)
            drained = await self._drain()
            accepts.close()
            intake, reserve_seconds = self._server.intake, 0.0 if drained else -CLOSE_SECONDS
            return await self._wait(lambda: not intake.requests, reserve_seconds) and drained
        finally:
            if accepts is not None:
                accepts.close()
            await runner.cleanup()
            self._server.close()

    async def _listen(self, runner: web.AppRunner, listener: socket.socket) -> asyncio.Server:
        """Accepts connections. aiohttp's own site has no limit of them."""
        assert runner.server is not None, "the runner was set up"
        factory = self._server.connections.guarded(runner.server)
        loop = asyncio.get_running_loop()
        return await loop.create_server(factory, sock=listener, backlog=BACKLOG)

    async def _drain(self) -> bool:
        ending = self._ending
        self._lifecycle.enter(Stage.DRAINING)
        ending.begins()
        longest = max(0.0, DELAY_SHARE_MAX * ending.remaining_seconds())
        await asyncio.sleep(min(ending.delay_seconds(), longest))
        self._lifecycle.enter(Stage.REFUSING)
        # A request whose body is on its way was accepted too.
        intake = self._server.intake
        reserve_seconds = QUEUE_SHARE_MIN * ending.remaining_seconds()
        await self._wait(lambda: not intake.arriving, reserve_seconds)
        drained = await asyncio.to_thread(ending.drain, max(0.0, ending.remaining_seconds()))
        if not drained:
            # A batch that hangs must not hold up the responses to the others, nor the exit.
            threading.Thread(target=ending.abandon, name="gpujob-abandon", daemon=True).start()
        return drained

    async def _wait(self, condition: Callable[[], bool], reserve_seconds: float = 0.0) -> bool:
        """Waits for the condition until only `reserve_seconds` remain. Returns whether it came."""
        remaining_seconds = self._ending.remaining_seconds
        await self._until(lambda: condition() or remaining_seconds() <= reserve_seconds)
        return condition()

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Polls, because conditions come true in signal handlers and other threads too."""
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)
