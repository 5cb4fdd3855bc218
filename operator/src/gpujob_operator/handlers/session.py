"""kopf's HTTP session, in the form that kopf accepts (`kopf.AiohttpSession`).

It adds what kopf lacks:

- It records signs of life. Bookmarks are the only ones of a quiet watch, and kopf reports none.
- It reports whole lists, because kopf does not report objects that vanished while a watch was
  interrupted.
- It drops input that would end kopf for good: an object without a UID, or one that is nested too
  deeply for Python.
- It drops listed objects that the cache already has.
"""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp
import kopf

from gpujob_api.codec import FieldError
from gpujob_operator.client.streams import lines, parsed, read_event
from gpujob_operator.handlers.memo import KINDS, Memo
from gpujob_operator.observe.cache import Kind
from gpujob_operator.observe.store import Mark
from gpujob_operator.observe.unreadable import BadLine
from gpujob_operator.read.shapes import Identity, identity


@dataclass(slots=True)
class _List:
    """A list of one kind, page by page. `mark` is what the cache had seen before the request."""

    mark: Mark
    found: list[Identity] = field(default_factory=list[Identity])


def kopf_session(connection: kopf.ConnectionInfo, memo: Memo) -> aiohttp.ClientSession:
    """Returns a session with the connection's credentials. Call it in kopf's event loop."""
    lists: dict[Kind, _List] = {}

    class Response(_Response):
        shared = memo
        pages = lists

    async def request_starts(
        _session: aiohttp.ClientSession, _context: Any, started: aiohttp.TraceRequestStartParams
    ) -> None:
        kind, query = KINDS.get(started.url.name), started.url.query
        if kind is not None and "watch" not in query and "continue" not in query:
            lists[kind] = _List(memo.mark(kind))

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(request_starts)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context()),
        headers=connection.as_http_headers(),
        proxy=connection.proxy_url,
        response_class=Response,
        trace_configs=[trace],
    )


class _Response(aiohttp.ClientResponse):
    shared: Memo
    pages: dict[Kind, _List]

    @property
    def kind(self) -> Kind | None:
        return KINDS.get(self.url.name)

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        if self.status == 200 and self.kind is not None:
            self.shared.heard(self.kind)
            # kopf reads watches through this attribute, and whole answers through `json`.
            self.content = cast(
                "aiohttp.StreamReader", _Events(self.content, self.shared, self.kind)
            )
        return self

    async def json(self, **_: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        answer, kind = parsed(await self.read()), self.kind
        if self.status != 200 or not isinstance(answer, dict) or "items" not in answer:
            return answer
        page = cast("dict[str, Any]", answer)
        if kind is not None:
            page["items"] = self._news(kind, page)
        return page

    def _news(self, kind: Kind, page: Mapping[str, Any]) -> list[Any]:
        """Returns the page's objects that the cache does not have in this state.

        kopf takes a millisecond of CPU time per object, and a leader has just listed them all.
        """
        whole = self.pages.get(kind)
        news: list[Any] = []
        for manifest in page["items"] or ():
            found = _identity(manifest, kind, self.shared)
            if found is None:
                continue
            if whole is not None:
                whole.found.append(found)
            if not self.shared.knows(kind, found):
                news.append(manifest)
        metadata = page.get("metadata") or {}
        # Without the beginning of the list, nothing is known to be missing from it.
        if whole is not None and not metadata.get("continue"):
            del self.pages[kind]
            version = str(metadata.get("resourceVersion") or "")
            self.shared.listed(kind, whole.found, version, whole.mark)
        return news


def _identity(manifest: object, kind: Kind, memo: Memo) -> Identity | None:
    """Returns None, and counts the object as refused, if it has no readable UID or name."""
    try:
        return identity(manifest)
    except FieldError as error:
        memo.refused(kind, error)
        return None


class _Events:
    """The body of a watch without lines that are not events.

    All other attributes are those of the body.
    """

    def __init__(self, content: aiohttp.StreamReader, memo: Memo, kind: Kind) -> None:
        self._content = content
        self._memo = memo
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        async for line in lines(self._content.iter_chunked(size)):
            self._memo.heard(self._kind)
            if passed := self._passed(line):
                yield passed + b"\n"

    def _passed(self, line: bytes) -> bytes:
        """Returns the line in a form that kopf can read, or nothing if the line is not an event."""
        event = read_event(line)
        if event["type"] in ("BOOKMARK", "ERROR"):
            return line
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            problem = BadLine(str(event.get("problem", "an unknown type")))
            self._memo.refused(self._kind, problem)
            return b""
        if _identity(event["object"], self._kind, self._memo) is None:
            return b""
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            return json.dumps(event).encode()
        return line
