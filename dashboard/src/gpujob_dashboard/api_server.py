"""Reads the API server: through `kubectl proxy` on a person's machine, or from a pod."""

import asyncio
import json
import os
import ssl
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import (
    ClientError,
    ClientResponse,
    ClientSession,
    ClientTimeout,
    StreamReader,
    TCPConnector,
    UnixConnector,
)

ANSWER_SECONDS_MAX = 30.0
# Lists come in pages.
PAGE_OBJECTS, PAGES_MAX = 500, 400
# The API server ends a watch after this time, and another one follows.
WATCH_SECONDS = 300
# An event of a watch is one line.
LINE_BYTES_MAX = 16 * 1024**2
# Events that arrive within this time are read together, because each wake-up costs more than an
# event. An event after a rest is read at once, and so is a flood.
GATHER_SECONDS, GATHER_BYTES_MAX = 0.2, 32 * 1024
PROXY_SECONDS_MAX = 20.0
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_POLL_SECONDS = 0.05


class APIServerError(Exception):
    """The API server refused a request or did not answer it. `status` is 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class APIServer:
    """An API server. `headers` returns the credentials, which may be renewed."""

    session: ClientSession
    base: str
    headers: Callable[[], Mapping[str, str]] = dict

    async def get(self, path: str, **query: str) -> Mapping[str, Any]:
        """Returns an object, or a page of a list. Raises `APIServerError`."""
        return await self._answer("GET", path, query, None)

    async def list(self, path: str, **query: str) -> tuple[list[Mapping[str, Any]], str]:
        """Returns all objects, and the resource version from which to watch.

        Raises `APIServerError`.
        """
        items: list[Mapping[str, Any]] = []
        token = ""
        for _ in range(PAGES_MAX):
            paging = {"limit": str(PAGE_OBJECTS), **({"continue": token} if token else {})}
            page = await self.get(path, **query, **paging)
            items += page.get("items") or []
            metadata = page.get("metadata") or {}
            token = metadata.get("continue") or ""
            if not token:
                return items, str(metadata.get("resourceVersion") or "")
        raise APIServerError(0, f"{path} has more than {PAGES_MAX * PAGE_OBJECTS} objects")

    async def post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the answer to a review. Raises `APIServerError`."""
        return await self._answer("POST", path, {}, body)

    async def watch(self, path: str, version: str) -> AsyncIterator[Mapping[str, Any]]:
        """Yields the events since a resource version until the server ends the watch.

        Raises `APIServerError`.
        """
        query = {
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = ClientTimeout(total=None, sock_read=WATCH_SECONDS + ANSWER_SECONDS_MAX)
        try:
            async with self.session.get(
                self.base + path, params=query, headers=self.headers(), timeout=timeout
            ) as answer:
                await _raise_refusal(answer)
                async for line in _lines(answer.content):
                    yield json.loads(line)
        except (ClientError, TimeoutError, ValueError, OSError) as error:
            raise APIServerError(0, f"{type(error).__name__}: {error}") from None

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None
    ) -> Mapping[str, Any]:
        timeout = ClientTimeout(total=ANSWER_SECONDS_MAX)
        try:
            async with self.session.request(
                method,
                self.base + path,
                params=query,
                json=body,
                headers=self.headers(),
                timeout=timeout,
            ) as answer:
                await _raise_refusal(answer)
                return await answer.json()
        except (ClientError, TimeoutError, ValueError, OSError) as error:
            raise APIServerError(0, f"{type(error).__name__}: {error}") from None


async def _lines(content: StreamReader) -> AsyncIterator[bytes]:
    """Yields the lines of an answer. Raises `ValueError` for one beyond `LINE_BYTES_MAX`."""
    rest = b""
    while chunk := await content.readany():
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LINE_BYTES_MAX:
            raise ValueError(f"an event has more than {LINE_BYTES_MAX} bytes")
        for line in lines:
            yield line
        if lines and len(chunk) < GATHER_BYTES_MAX:
            await asyncio.sleep(GATHER_SECONDS)
    if rest:
        yield rest


async def _raise_refusal(answer: ClientResponse) -> None:
    if answer.status < 400:
        return
    text = (await answer.text())[:2000]
    try:
        message = str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        message = text.strip() or f"HTTP {answer.status}"
    raise APIServerError(answer.status, message)


@asynccontextmanager
async def from_pod() -> AsyncGenerator[APIServer]:
    """Yields the API server with the pod's service account. Raises `APIServerError`."""
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT"),
    )
    if not host or not port:
        raise APIServerError(0, "--in-cluster: this is no pod: KUBERNETES_SERVICE_HOST is not set")
    try:
        trusted = ssl.create_default_context(cafile=str(_ACCOUNT / "ca.crt"))
        _account_headers()
    except OSError as error:
        raise APIServerError(0, f"the pod has no service account: {error}") from None
    address = f"[{host}]" if ":" in host else host
    async with ClientSession(connector=TCPConnector(ssl=trusted)) as session:
        yield APIServer(session, f"https://{address}:{port}", _account_headers)


def _account_headers() -> Mapping[str, str]:
    """Returns the service account's present token. The kubelet renews the file."""
    return {"Authorization": f"Bearer {(_ACCOUNT / 'token').read_text().strip()}"}


@asynccontextmanager
async def through_kubectl(flags: tuple[str, ...]) -> AsyncGenerator[APIServer]:
    """Yields the API server behind `kubectl proxy`, which brings every way to authenticate.

    The proxy listens on a socket that only this user can open, and refuses to write. Raises
    `APIServerError`.
    """
    with tempfile.TemporaryDirectory(prefix="gpujob-") as folder:
        socket = Path(folder) / "api"
        command = (
            *("kubectl", *flags, "proxy", f"--unix-socket={socket}"),
            "--reject-methods=^(POST|PUT|PATCH|DELETE)$",
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise APIServerError(0, f"kubectl cannot be started: {error}") from None
        try:
            await _wait_for(socket, process)
            async with ClientSession(connector=UnixConnector(str(socket))) as session:
                yield APIServer(session, "http://localhost")
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _wait_for(socket: Path, process: asyncio.subprocess.Process) -> None:
    for _ in range(round(PROXY_SECONDS_MAX / _POLL_SECONDS)):
        if await asyncio.to_thread(socket.exists):
            return
        if process.returncode is not None:
            assert process.stderr is not None, "it is a pipe"
            said = (await process.stderr.read(2000)).decode(errors="replace").strip()
            raise APIServerError(0, f"kubectl proxy ended: {said}")
        await asyncio.sleep(_POLL_SECONDS)
    raise APIServerError(0, f"kubectl proxy did not listen within {PROXY_SECONDS_MAX:.0f} s")
