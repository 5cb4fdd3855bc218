"""The port of a process node: container logs for `kubectl logs`, and the node's own reclaim.

Only clients with the API server's client certificate get an answer.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gpujob_local.control_plane.identity import KUBELET_CLIENT
from gpujob_local.kubelet.container_runner import ContainerRunner
from gpujob_local.kubelet.pod_runner import HOST_IP

CHUNK_BYTES = 64 * 1024
FOLLOW_SECONDS = 0.2
UNSUPPORTED_LOG_OPTIONS = ("sinceSeconds", "sinceTime", "timestamps", "previous")

FindContainer = Callable[[str, str, str], ContainerRunner | None]
Reclaim = Callable[[float], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class ServerFiles:
    certificate: Path
    key: Path
    authority: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.authority))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(self.certificate, self.key)
        return context


class NodeServer:
    """Serves on a free port of loopback, which `start` returns."""

    def __init__(self, files: ServerFiles, find: FindContainer, reclaim: Reclaim) -> None:
        self._files = files
        self._find = find
        self._reclaim = reclaim
        self._runner: web.AppRunner | None = None

    async def start(self) -> int:
        application = web.Application(middlewares=[_only_api_server])
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_post("/gpujob/reclaim", self._reclaimed)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST_IP, 0, ssl_context=self._files.context()).start()
        return self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _reclaimed(self, request: web.Request) -> web.Response:
        ended = await self._reclaim(float(request.query["graceSeconds"]))
        return web.json_response({"pods": ended})

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        place = request.match_info
        container = self._find(place["namespace"], place["pod"], place["container"])
        if container is None:
            raise web.HTTPNotFound(text=f"no container {place['container']} here")
        asked = [
            name
            for name in UNSUPPORTED_LOG_OPTIONS
            if request.query.get(name, "") not in ("", "false")
        ]
        if asked:
            raise web.HTTPBadRequest(text=f"{asked[0]} is not supported on process nodes")
        if not container.log.exists():
            reason = container.record.state.get("waiting", {}).get("reason", "unknown")
            text = f'container "{place["container"]}" is waiting to start: {reason}'
            raise web.HTTPBadRequest(text=text)
        return await _send_log(request, container)


@web.middleware
async def _only_api_server(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    transport = request.transport
    certificate: dict[str, Any] = (transport and transport.get_extra_info("peercert")) or {}
    names = {value for part in certificate.get("subject", ()) for _, value in part}
    if KUBELET_CLIENT not in names:
        raise web.HTTPForbidden(text="only the API server may ask")
    return await handler(request)


async def _send_log(request: web.Request, container: ContainerRunner) -> web.StreamResponse:
    follow = request.query.get("follow") == "true"
    left = int(request.query.get("limitBytes", 0)) or None
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    await response.prepare(request)
    position = await asyncio.to_thread(_tail_offset, container.log, request.query.get("tailLines"))
    while left is None or left > 0:
        # Checked before reading, so that everything written before the end is read.
        over = not container.record.running
        chunk = await asyncio.to_thread(_read, container.log, position, left)
        if chunk:
            position += len(chunk)
            left = None if left is None else left - len(chunk)
            await response.write(chunk)
        elif over or not follow:
            break
        else:
            await asyncio.sleep(FOLLOW_SECONDS)
    await response.write_eof()
    return response


def _read(path: Path, position: int, limit: int | None) -> bytes:
    with path.open("rb") as file:
        file.seek(position)
        return file.read(min(CHUNK_BYTES, limit) if limit is not None else CHUNK_BYTES)


def _tail_offset(path: Path, tail_lines: str | None) -> int:
    """Returns where the last lines begin, or 0 if all are wanted."""
    if tail_lines is None:
        return 0
    wanted = int(tail_lines)
    with path.open("rb") as file:
        position = file.seek(0, 2)
        tail = b""
        while position > 0 and tail.count(b"\n") <= wanted:
            step = min(CHUNK_BYTES, position)
            position -= step
            file.seek(position)
            tail = file.read(step) + tail
    lines = tail.splitlines(keepends=True)
    kept = lines[-wanted:] if wanted else []
    return position + len(tail) - sum(map(len, kept))
