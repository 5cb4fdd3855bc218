"""The agent's connections as WebSockets, with a token that the kubelet renews."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp

from gpujob_operator.agent.direct import Connection, ConnectionLost

# A reply is about forty bytes.
REPLY_BYTES_MAX = 4096
_REFUSED = frozenset({400, 401, 403, 404})


class WebSocketConnections:
    """Opens connections until `close`. The token is read again for each."""

    def __init__(
        self,
        token_file: Path,
        make_session: Callable[[], aiohttp.ClientSession] = aiohttp.ClientSession,
    ) -> None:
        self._token_file = token_file
        self._make_session = make_session
        self._session: aiohttp.ClientSession | None = None

    async def connect(self, url: str, wait_seconds: float) -> Connection:
        """Opens a connection. An operator that has just begun may make the agent wait
        `wait_seconds`.

        Raises `ConnectionLost`.
        """
        try:
            token = await asyncio.to_thread(self._token_file.read_text)
        except (OSError, UnicodeDecodeError) as error:
            raise ConnectionLost(f"no token: {error}", refused=True) from None
        headers = {"Authorization": f"Bearer {token.strip()}"}
        if wait_seconds:
            headers["Prefer"] = f"wait={wait_seconds:.0f}"
        session = self._session = self._session or self._make_session()
        try:
            socket = await session.ws_connect(url, headers=headers, max_msg_size=REPLY_BYTES_MAX)
        except aiohttp.WSServerHandshakeError as error:
            refused = error.status in _REFUSED
            raise ConnectionLost(f"HTTP {error.status}", refused=refused) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectionLost(str(error) or type(error).__name__) from None
        return _WebSocket(socket)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


class _WebSocket:
    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        try:
            await self._socket.send_str(text)
        except (aiohttp.ClientError, OSError, RuntimeError) as error:
            raise ConnectionLost(str(error) or "closed") from None

    async def receive(self) -> str:
        message = await self._socket.receive()
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionLost("the operator closed the connection")
        return str(message.data)

    async def close(self) -> None:
        await self._socket.close()
