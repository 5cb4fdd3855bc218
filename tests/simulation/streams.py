"""A watch stream: what was committed since a version, late, in order, until the stream breaks."""

import asyncio
import json
from collections.abc import AsyncIterator

import aiohttp

from gpujob_operator.client.kube import WATCH_SILENCE_SECONDS_MAX
from tests.simulation.api_server import AnyKind, ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults

BOOKMARK_SECONDS = 60.0


class Stream:
    """Delivers on the process's loop, so that a process that stands still hears nothing."""

    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        loop: VirtualLoop,
        faults: Faults,
        kind: AnyKind,
        version: int,
    ) -> None:
        self._clock = clock
        self._api = api
        self._loop = loop
        self._faults = faults
        self._kind = kind
        # A version that is still to come: until then nothing is said, and there is no bookmark.
        self._since = version
        self._lines: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._delivered = 0.0
        self._open = True
        # It looks alive, and nothing comes any more.
        self._silent = False
        for event_type, manifest in api.since(kind, version):
            self._send(event_type, manifest)
        api.watchers.append(self._heard)
        api.restored.append(self._cut)
        loop.call_later(BOOKMARK_SECONDS, self._bookmark)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._api.watchers.remove(self._heard)
            self._api.restored.remove(self._cut)

    def ends_after(self, seconds: float) -> None:
        """As the server ends it, without an error."""
        self._loop.call_later(seconds, self._lines.put_nowait, None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Lines, cut anywhere. Raises what `aiohttp` does when the connection breaks."""
        while True:
            try:
                line = await asyncio.wait_for(self._lines.get(), WATCH_SILENCE_SECONDS_MAX)
            except TimeoutError:
                raise aiohttp.SocketTimeoutError("silent") from None
            if line is None:
                return
            if isinstance(line, Exception):
                raise line
            middle = len(line) // 3
            yield line[:middle]
            yield line[middle:]

    def _heard(self, kind: AnyKind, event_type: str, manifest: Manifest) -> None:
        if kind is not self._kind or self._silent or self._api.version <= self._since:
            return
        if self._faults.breaks_watch(self._clock.random):
            self._break()
        else:
            self._send(event_type, manifest)

    def _break(self) -> None:
        """It breaks, and connects again a while later; or it falls silent."""
        random = self._clock.random
        self._silent = True
        if random.random() < 0.2:
            return
        seconds = random.uniform(0.2, self._faults.watch_break_seconds)
        self._faults.refuse_watches(self._clock.now + seconds)
        error = aiohttp.ClientPayloadError("the connection was lost")
        self._loop.call_later(random.uniform(0.0, 0.5), self._lines.put_nowait, error)

    def _cut(self) -> None:
        """The server starts anew: nothing of what was under way arrives."""
        self._silent = True
        while not self._lines.empty():
            self._lines.get_nowait()
        self._lines.put_nowait(aiohttp.ClientPayloadError("the connection was lost"))

    def _send(self, event_type: str, manifest: Manifest) -> None:
        random, now = self._clock.random, self._clock.now
        line = json.dumps({"type": event_type, "object": manifest}).encode() + b"\n"
        at = max(self._delivered, now + self._faults.watch_delay(random))
        self._delivered = at
        self._loop.call_at(at, self._lines.put_nowait, line)
        if self._faults.repeats_event(random):
            self._loop.call_at(at + random.uniform(0, 5), self._lines.put_nowait, line)

    def _bookmark(self) -> None:
        """All that was committed until now was sent before."""
        if not self._open:
            return
        if not self._silent and self._api.version >= self._since:
            metadata = {"resourceVersion": str(self._api.version)}
            self._send("BOOKMARK", {"metadata": metadata})
        self._loop.call_later(BOOKMARK_SECONDS, self._bookmark)
