"""kopf's HTTP session. It records when the API server was last heard, and filters input that would
stop kopf.

kopf does not report bookmarks, which are a watch's only sign of life in a quiet cluster. kopf also
ends for good on an object without a UID or one nested too deeply for Python. kopf accepts a custom
session for such purposes (`kopf.AiohttpSession`).
"""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import aiohttp
import kopf

from gpujob_api.codec import FieldError
from gpujob_operator.client.streams import lines, parsed, read_event
from gpujob_operator.observe.unreadable import BadLine
from gpujob_operator.read.shapes import identity

# The plural of a kind, and whether a whole list arrived.
Heard = Callable[[str, bool], None]
# The plural of a kind, and the problem of an object or event.
Refused = Callable[[str, Exception], None]


def kopf_session(
    connection: kopf.ConnectionInfo, heard: Heard, refused: Refused
) -> aiohttp.ClientSession:
    """A session with the connection's credentials. Call it in kopf's event loop."""

    class Response(_Response):
        tell = staticmethod(heard)
        refuse = staticmethod(refused)

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context()),
        headers=connection.as_http_headers(),
        proxy=connection.proxy_url,
        response_class=Response,
    )


class _Response(aiohttp.ClientResponse):
    tell: Heard
    refuse: Refused

    @property
    def plural(self) -> str:
        return self.url.path.rpartition("/")[2]

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.status == 200:
            self.tell(self.plural, False)
        # kopf reads watches through this attribute, and whole answers through `json`.
        self.content = cast("aiohttp.StreamReader", _Events(self.content, self))
        return self

    async def json(self, **_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        answer = parsed(await self.read())
        if self.status != 200 or not isinstance(answer, dict) or "items" not in answer:
            return answer
        page = cast("dict[str, Any]", answer)
        page["items"] = [one for one in page["items"] or () if self.is_object(one)]
        self.tell(self.plural, not (page.get("metadata") or {}).get("continue"))
        return page

    def is_object(self, manifest: object) -> bool:
        try:
            identity(manifest)
        except FieldError as error:
            self.refuse(self.plural, error)
            return False
        return True


class _Events:
    """The body of a watch without lines that are no events. All other attributes are those of the
    body.
    """

    def __init__(self, content: aiohttp.StreamReader, response: _Response) -> None:
        self._content = content
        self._response = response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for line in lines(self._content.iter_chunked(size)):
            self._response.tell(self._response.plural, False)
            if passed := self._passed(line):
                yield passed + b"\n"

    def _passed(self, line: bytes) -> bytes:
        """The line in a form that kopf can read; empty if the line is no event."""
        event = read_event(line)
        if event["type"] in ("BOOKMARK", "ERROR"):
            return line
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            self._response.refuse(
                self._response.plural, BadLine(str(event.get("problem", "an unknown type")))
            )
            return b""
        if not self._response.is_object(event["object"]):
            return b""
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return json.dumps(event).encode()
        return line
