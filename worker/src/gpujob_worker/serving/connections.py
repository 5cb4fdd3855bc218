"""Limits of connections: how many there are, and how long one may send a head or do nothing.

A connection is idle, sends the head of a request (its line and headers), or is busy with a request.
Bodies have limits of their own (`intake`).
"""

import asyncio
import json
import math
import resource
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

CONNECTIONS_MAX = 4096
# Files and sockets of the model, its libraries and the reports.
DESCRIPTORS_KEPT = 128
CONNECTIONS_MIN = 16


def connections_max() -> int:
    """Returns the most connections that the process's limit of open files permits."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return CONNECTIONS_MAX
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, soft - DESCRIPTORS_KEPT))


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    connections: int = field(default_factory=connections_max)
    # From the first byte of a head to its last one.
    head_seconds: float = 10.0
    # From the end of a request to the next one. The answer has to be taken in this time, too.
    idle_seconds: float = 75.0
    # A connection that has been idle for less may be about to send, or still take its answer.
    settled_seconds: float = 1.0


class State(Enum):
    IDLE = "idle"
    HEAD = "head"
    BUSY = "busy"


class Connections:
    """The connections of one server. Used by the thread of its event loop."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self.open: dict[asyncio.Protocol, Connection] = {}
        # The one that has been idle for the longest time comes first.
        self.idle: dict[Connection, None] = {}
        # Connections that were refused, and idle ones that were closed for others.
        self.refused = self.closed = 0

    def guarded(self, make: Callable[[], asyncio.Protocol]) -> Callable[[], asyncio.Protocol]:
        """Returns a factory of connections that pass everything to a protocol of `make`."""
        return lambda: Connection(self, make())

    def begins(self, protocol: asyncio.BaseProtocol | None) -> None:
        """Notes that the head of a request has arrived at this protocol."""
        self._enter(protocol, State.BUSY)

    def ends(self, protocol: asyncio.BaseProtocol | None) -> None:
        """Notes that the request was answered."""
        self._enter(protocol, State.IDLE)

    def admit(self) -> bool:
        """Returns whether there is room for one more connection. Closes an idle one for it."""
        if len(self.open) < self.limits.connections:
            return True
        oldest = next(iter(self.idle), None)
        if oldest is None or not oldest.is_settled:
            self.refused += 1
            return False
        self.closed += 1
        oldest.close()
        return True

    def _enter(self, protocol: asyncio.BaseProtocol | None, state: State) -> None:
        found = self.open.get(protocol) if isinstance(protocol, asyncio.Protocol) else None
        if found is not None:
            found.enter(state)


class Connection(asyncio.Protocol):
    """One connection, between its transport and the protocol that answers requests."""

    def __init__(self, owner: Connections, protocol: asyncio.Protocol) -> None:
        self._owner = owner
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._state = State.IDLE
        self._answers = False
        self._deadline = math.inf
        self._since = self._loop.time()

    @property
    def is_settled(self) -> bool:
        """Whether it can be closed without harm: it is idle, and has taken its answer."""
        seconds = self._loop.time() - self._since
        sends = self._transport is not None and self._transport.get_write_buffer_size() > 0
        long_enough = seconds >= self._owner.limits.settled_seconds
        return self._state is State.IDLE and long_enough and not sends

    def enter(self, state: State) -> None:
        self._state, self._since = state, self._loop.time()
        self._owner.idle.pop(self, None)
        limits = self._owner.limits
        if state is State.BUSY:
            self._answers, self._deadline = True, math.inf
            return
        if state is State.IDLE:
            self._owner.idle[self] = None
        seconds = limits.idle_seconds if state is State.IDLE else limits.head_seconds
        self._deadline = self._since + seconds
        # A timer that fires early is set again. That costs less than one for each state.
        if self._timer is None or self._deadline < self._timer.when():
            self._set_timer()

    def close(self) -> None:
        """Closes the connection. An answer that its client does not take is dropped."""
        if self._transport is None:
            return
        # The transport reports its end later. Until then, it would make room for others again.
        self._owner.idle.pop(self, None)
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._owner.admit():
            number = self._owner.limits.connections
            text = f"{number} connections are in use, which is the limit; try again"
            _refuse(transport, "503 Service Unavailable", text, "Retry-After: 1\r\n")
            return
        self._transport = transport
        self._owner.open[self._protocol] = self
        self.enter(State.IDLE)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._state is State.IDLE:
            self.enter(State.HEAD)
        self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._transport is not None else None

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._owner.idle.pop(self, None)
        del self._owner.open[self._protocol]
        self._protocol.connection_lost(exc)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._deadline, self._timer_fires)

    def _timer_fires(self) -> None:
        self._timer = None
        if self._loop.time() >= self._deadline:
            self._end()
        elif self._deadline < math.inf:
            self._set_timer()

    def _end(self) -> None:
        """Ends a connection that has been idle, or sent its head, for too long."""
        if self._transport is None or self._answers or self._state is State.IDLE:
            # These bytes may be the rest of a refused body, whose sender expects no second answer.
            self.close()
            return
        seconds = self._owner.limits.head_seconds
        text = f"the request line and headers must arrive within {seconds:g} s"
        _refuse(self._transport, "408 Request Timeout", text)


def _refuse(transport: asyncio.Transport, status: str, text: str, headers: str = "") -> None:
    """Sends an error as the server does, and closes the connection."""
    body = json.dumps({"error": text})
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    transport.write(f"{head}{headers}Connection: close\r\n\r\n{body}".encode())
    transport.close()
