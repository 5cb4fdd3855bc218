"""The agent's connection to the leading operator, over which readings are sent directly.

The agent looks for the leader all the time, and sends a reading that the operator lacks as soon as
it is connected. A new leader therefore has every node's reading a moment after it began.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Protocol

from gpujob_api.codec import FieldError, encode
from gpujob_api.gpunode import GPU, GPUNodeStatus
from gpujob_api.reading import READING_BYTES_MAX, ReadingHead, ReadingReply, reading_text
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

# Timeout for a reply to a reading and its repetition together.
REPLY_SECONDS_MAX = 2.0
# Timeout for admission. A new leader has the tokens of all agents reviewed at once, and an agent
# that leaves the queue only joins it again. Another operator is tried well before the last reading
# is too old.
CONNECT_SECONDS_MAX = 5.0
# An operator that has just begun may make the agent wait this long before that. It may only if
# there is no other operator, which might lead already.
WAIT_SECONDS = 3.0
# Pauses between two tries, reduced by up to a half so that agents do not retry together. An agent
# that was refused permanently retries rarely.
RETRY_SECONDS = 1.0
RETRY_REFUSED_SECONDS = 30.0
AT_ONCE_SECONDS = 0.2


class ConnectionLost(Exception):  # noqa: N818 - it is an answer, not a fault of the program
    """There is no connection, or no longer. `refused` means that an early retry is useless."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Connection(Protocol):
    """A connection. Every failure of it is a `ConnectionLost`."""

    async def send(self, text: str) -> None: ...

    async def receive(self) -> str: ...

    async def close(self) -> None: ...


# Connects to a URL. An operator that has just begun may make the agent wait up to the given
# seconds.
Connect = Callable[[str, float], Awaitable[Connection]]


@dataclass(slots=True)
class _Offer:
    """A reading, when it was taken on the monotonic clock, and whether the operator has it."""

    status: GPUNodeStatus
    read_at: float
    answered: "asyncio.Future[bool]"


class DirectReadings:
    """Sends the readings of one node. One of several URLs is the leader's."""

    def __init__(
        self,
        urls: Sequence[str],
        connect: Connect,
        monotonic: Callable[[], float],
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._urls = tuple(urls)
        self._wait_seconds = WAIT_SECONDS if len(self._urls) == 1 else 0.0
        self._connect = connect
        self._monotonic = monotonic
        self._offer: _Offer | None = None
        self._offered = asyncio.Event()
        self._connected = False
        self._served = False
        self._uniform = uniform
        # The last logged route of the readings.
        self._said = ""

    @property
    def connected(self) -> bool:
        return self._connected

    async def deliver(self, status: GPUNodeStatus, read_at: float) -> bool:
        """Returns True once the operator has the reading, and False if it did not take it.

        If the operator does not answer in time, the connection is closed, because an agent uses one
        route at a time. Without a connection the reading is kept and sent as soon as there is one.
        """
        if self._offer is not None and not self._offer.answered.done():
            self._offer.answered.set_result(False)
        answered: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._offer = _Offer(status, read_at, answered)
        if not self._connected:
            return False
        self._offered.set()
        return await answered

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            seconds = await self._try_all()
            await asyncio.sleep(self._uniform(seconds / 2, seconds))

    async def _try_all(self) -> float:
        """Tries each URL once. Returns the seconds until the next try."""
        seconds: list[float] = []
        failed = False
        for url in self._urls:
            try:
                seconds.append(await self._try(url))
            except Exception as error:
                # The status is the route meanwhile, and the fault may pass.
                failed = True
                problem = f"{type(error).__name__}: {error}"[:300]
                log.error("direct readings failed", url=url, problem=problem, with_traceback=True)
                self._say(f"{url}: {problem}", by_status=True)
        return RETRY_REFUSED_SECONDS if failed else min(seconds)

    async def _try(self, url: str) -> float:
        """Uses the URL until the connection ends. Returns the seconds until its next try."""
        self._served = False
        refused = False
        try:
            await self._use(url)
        except (ConnectionLost, TimeoutError) as error:
            refused = isinstance(error, ConnectionLost) and error.refused
            self._say(f"{url}: {str(error) or 'no answer'}", by_status=True)
        if self._served:
            # The next leader will be there soon, or is already.
            return AT_ONCE_SECONDS
        return RETRY_REFUSED_SECONDS if refused else RETRY_SECONDS

    async def _use(self, url: str) -> None:
        """Uses a connection until it ends. Raises `ConnectionLost` or `TimeoutError`."""
        async with asyncio.timeout(self._wait_seconds + CONNECT_SECONDS_MAX):
            connection = await self._connect(url, self._wait_seconds)
        talk = _Talk(connection, self._monotonic)
        try:
            await talk.greet()
            await self._talk(talk, url)
        finally:
            self._connected = False
            talk.end()
            if self._offer is not None and not self._offer.answered.done():
                self._offer.answered.set_result(False)
            with suppress(ConnectionLost, TimeoutError):
                async with asyncio.timeout(REPLY_SECONDS_MAX):
                    await connection.close()

    async def _talk(self, talk: "_Talk", url: str) -> None:
        self._connected = True
        # The reading from before the connection goes first.
        offer = self._offer
        while True:
            self._offered.clear()
            if offer is not None:
                taken = await talk.send(offer.status, offer.read_at)
                if not offer.answered.done():
                    offer.answered.set_result(taken)
                if taken:
                    self._served = True
                    self._say(url, by_status=False)
            await talk.until_lost_or(self._offered)
            offer = self._offer

    def _say(self, what: str, *, by_status: bool) -> None:
        """Logs a change of route once."""
        now = "status" if by_status else "directly"
        if now == self._said:
            return
        self._said = now
        if by_status:
            log.warning("readings go by the status of the GPUNode", reason=what)
        else:
            log.info("readings go to the operator", url=what)


class _Talk:
    """One connection: what the operator has, and when it last replied."""

    def __init__(self, connection: Connection, monotonic: Callable[[], float]) -> None:
        self._connection = connection
        self._monotonic = monotonic
        self._sequence = 0
        self._replied_at = 0.0
        self._known: dict[str, GPU] = {}
        self._incoming: asyncio.Task[str] | None = None

    async def greet(self) -> None:
        async with asyncio.timeout(REPLY_SECONDS_MAX):
            await self._reply()

    def end(self) -> None:
        if self._incoming is not None:
            self._incoming.cancel()

    async def send(self, status: GPUNodeStatus, read_at: float) -> bool:
        """Returns whether the operator took the reading. Sends it again with all GPUs on
        request.
        """
        async with asyncio.timeout(REPLY_SECONDS_MAX):
            return await self._send_once(status, read_at) or await self._send_once(status, read_at)

    async def until_lost_or(self, offered: asyncio.Event) -> None:
        """Waits for an offer. Raises `ConnectionLost` as soon as the connection is lost."""
        incoming = self._listen()
        waiting = asyncio.ensure_future(offered.wait())
        try:
            await asyncio.wait({incoming, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if incoming.done():
            incoming.result()
            raise ConnectionLost("an answer without a question")

    async def _send_once(self, status: GPUNodeStatus, read_at: float) -> bool:
        known = self._known
        unchanged = [gpu.uuid for gpu in status.gpus if _as_known(gpu, known.get(gpu.uuid))]
        changed = tuple(gpu for gpu in status.gpus if gpu.uuid not in unchanged)
        self._sequence += 1
        head = ReadingHead(self._sequence, read_at - self._replied_at)
        text = reading_text(head, encode(replace(status, gpus=changed)), unchanged)
        if len(text.encode()) > READING_BYTES_MAX:
            raise ConnectionLost(
                f"the reading is larger than {READING_BYTES_MAX} bytes", refused=True
            )
        await self._connection.send(text)
        reply = await self._reply()
        self._known = {} if reply.full else {gpu.uuid: gpu for gpu in status.gpus}
        return not reply.full

    async def _reply(self) -> ReadingReply:
        text = await asyncio.shield(self._listen())
        self._incoming = None
        try:
            reply = ReadingReply.from_text(text)
        except FieldError as error:
            raise ConnectionLost(str(error), refused=True) from None
        if reply.sequence != self._sequence:
            raise ConnectionLost(f"reply {reply.sequence} to reading {self._sequence}")
        self._replied_at = self._monotonic()
        return reply

    def _listen(self) -> "asyncio.Task[str]":
        """Returns the task that waits for the next message. It always exists and so notices the
        end.
        """
        if self._incoming is None:
            self._incoming = asyncio.ensure_future(self._connection.receive())
        return self._incoming


def _as_known(gpu: GPU, known: GPU | None) -> bool:
    """Returns whether the GPU is unchanged for the operator.

    Power, energy and temperature are for people, who read them in the status.
    """
    return known is not None and _decided_on(gpu) == _decided_on(known)


def _decided_on(gpu: GPU) -> GPU:
    return replace(gpu, power_watts=None, energy_joules=None, temperature_celsius=None)
