"""Readings that agents send directly: a WebSocket at the report port, which accepts an agent's own
node only.

The bearer token names the service account and the node. The token must claim to be an agent of a
known node before the API server reviews it (TokenReview). A node has one connection. Agents wait
until this process knows the nodes (`WaitingAgents`).
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from aiohttp import WSMsgType, web

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPUNodeStatus
from gpujob_api.reading import READING_BYTES_MAX, READINGS_PATH, ReadingReply
from gpujob_operator.port.pod_tokens import AgentIdentity, claimed_agent
from gpujob_operator.port.reading_session import ReadingSession
from gpujob_operator.port.requests import (
    PER_SECOND_MAX,
    Refused,
    TokenCheckFailed,
    bearer_token,
    client_limit,
    sender,
)
from gpujob_operator.rate_limit import RateLimit
from gpujob_operator.telemetry.logs import Log
from gpujob_operator.telemetry.metrics import Metrics

log = Log(__name__)

# A token is proven once per connection. After this time the agent must connect again.
CONNECTION_SECONDS_MAX = 600.0
SEND_SECONDS_MAX = 5.0
AGENTS_MAX = 6000
# Applies even if an agent would wait longer.
WAIT_SECONDS_MAX = 10.0
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,9})(?:$|[,;\s])")


def preferred_wait_seconds(header: str) -> float:
    """Returns the wait of a `Prefer` header, at most `WAIT_SECONDS_MAX`. 0 without a wait."""
    found = _WAIT.search(header)
    return min(float(found[1]), WAIT_SECONDS_MAX) if found is not None else 0.0


class WaitingAgents:
    """Agents that wait until this process `may_admit` for the first time.

    No agent waits after that. If this process no longer leads, another one does, and the agent has
    to find it.
    """

    def __init__(self, may_admit: Callable[[], bool]) -> None:
        self._may_admit = may_admit
        self._turned = asyncio.Event()
        self.waiting = 0

    def look_again(self) -> None:
        """Releases the waiting agents if it may. Call it when leadership begins and when nodes are
        listed.
        """
        if self._may_admit():
            self._turned.set()

    async def wait(self, seconds: float) -> None:
        """Returns once this process admits agents or has done so, and at the latest after
        `seconds`.
        """
        if self._turned.is_set() or self._may_admit():
            return
        self.waiting += 1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._turned.wait()
        finally:
            self.waiting -= 1


@dataclass(frozen=True, slots=True)
class AgentAccount:
    """The agents' service account. Tokens of other accounts are refused."""

    namespace: str
    name: str


class AgentTokens(Protocol):
    async def check_agent(self, token: str, source: str) -> AgentIdentity | None:
        """Returns the identity that the token was issued for, or None if it is not valid for us.

        `source` is the address that sent the token. Raises `TokenCheckFailed`.
        """
        ...


class Nodes(Protocol):
    """The part of the cache that stores readings."""

    def has_listed_nodes(self) -> bool: ...

    def has_node(self, name: str) -> bool: ...

    def take_reading(self, name: str, status: GPUNodeStatus, taken_at: datetime) -> bool: ...

    def close_readings(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class _Open:
    session: ReadingSession
    hang_up: Callable[[], None]


class ReadingReceiver:
    """Admits agents and stores their readings. Times come from the given clocks."""

    def __init__(
        self,
        nodes: Nodes,
        tokens: AgentTokens,
        metrics: Metrics,
        *,
        account: AgentAccount | None,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        is_leader: Callable[[], bool] = lambda: True,
    ) -> None:
        """Every agent is refused if `account` is None."""
        self._nodes = nodes
        self._tokens = tokens
        self._metrics = metrics
        self._account = account
        self._clock = clock
        self._monotonic = monotonic
        self._is_leader = is_leader
        # The connected agents, by node.
        self._open: dict[str, _Open] = {}
        self._limits: dict[str, RateLimit] = {}
        self._waiting = WaitingAgents(lambda: is_leader() and nodes.has_listed_nodes())

    def add_to(self, application: web.Application) -> None:
        application.router.add_get(READINGS_PATH, self._connect)

    def look_again(self) -> None:
        """Admits the waiting agents if it may.

        Call it when this process begins to lead, and when the nodes are listed.
        """
        self._waiting.look_again()

    async def admit(
        self, authorization: str, source: str, wait_seconds: float = 0.0
    ) -> ReadingSession:
        """Proves the sender's identity, after a wait if necessary. Raises `Refused`."""
        token = bearer_token(authorization)
        claimed = claimed_agent(token, self._clock().timestamp())
        if claimed is None:
            raise Refused(401, "bad_token", "the token names no node for audience gpujob")
        if AgentAccount(claimed.namespace, claimed.account) != self._account:
            raise Refused(403, "no_agent", "the token is not of the agents' service account")
        if self._waiting.waiting < AGENTS_MAX:
            await self._waiting.wait(wait_seconds)
        if not self._is_leader():
            raise Refused(503, "not_leader", "this replica is not the leader; try the next one")
        if not self._nodes.has_node(claimed.node):
            raise Refused(503, "no_node", f"node {claimed.node} is not known")
        await self._prove(token, claimed, source)
        limit = self._limit_of(claimed.node)
        if not limit.take(self._monotonic()):
            text = f"more than {PER_SECOND_MAX:g} readings and connections a second"
            raise Refused(429, "too_often", text)
        return ReadingSession(claimed.node, claimed.pod_uid, self._monotonic, limit)

    def open(self, session: ReadingSession, hang_up: Callable[[], None]) -> None:
        """Makes the session the node's. `hang_up` closes its connection.

        Raises `Refused` if another agent of the node is connected. An agent that restarted in its
        pod replaces its own session.
        """
        other = self._open.get(session.node)
        if other is not None and not (session.owner and session.owner == other.session.owner):
            raise Refused(409, "second_agent", f"another agent of {session.node} is connected")
        if other is None and len(self._open) >= AGENTS_MAX:
            raise Refused(503, "too_many", f"{AGENTS_MAX} agents are connected")
        if other is not None:
            self.close(other.session)
            other.hang_up()
        self._open[session.node] = _Open(session, hang_up)
        self._metrics.agent_connections.set(len(self._open))

    def take(self, session: ReadingSession, text: str) -> ReadingReply | None:
        """Returns the reply to a message, or None if the connection has to end."""
        current = self._open.get(session.node)
        if current is None or current.session is not session or not self._is_leader():
            return None
        try:
            reply, taken = session.take(text, self._dropped)
        except FieldError as error:
            self._metrics.readings.labels("bad_reading").inc()
            log.warning("reading refused", node=session.node, problem=str(error))
            return None
        if taken is not None:
            age = timedelta(seconds=max(0.0, self._monotonic() - taken.taken_at))
            known = self._nodes.take_reading(session.node, taken.status, self._clock() - age)
            reply = reply if known else ReadingReply(reply.sequence, full=True)
        self._metrics.readings.labels("wanted_full" if reply.full else "accepted").inc()
        return reply

    def close(self, session: ReadingSession) -> None:
        """Removes the session, whose connection is gone."""
        current = self._open.get(session.node)
        if current is not None and current.session is session:
            del self._open[session.node]
            self._nodes.close_readings(session.node)
            self._metrics.agent_connections.set(len(self._open))

    def leads_changed(self, leads: bool) -> None:
        """Starts or stops receiving, because only the leader receives readings."""
        if leads:
            self.look_again()
        else:
            self.hang_up_all()

    def hang_up_all(self) -> None:
        """Closes all connections, because this process no longer leads and agents have to find the
        leader.
        """
        for one in list(self._open.values()):
            self.close(one.session)
            one.hang_up()

    def _limit_of(self, node: str) -> RateLimit:
        """Returns the limit of a node, which is kept across connections.

        The number of limits is bounded. The least recently used one is dropped.
        """
        limit = self._limits.pop(node, None) or client_limit(self._monotonic())
        self._limits[node] = limit
        if len(self._limits) > AGENTS_MAX:
            del self._limits[next(iter(self._limits))]
        return limit

    def _dropped(self, reason: str) -> None:
        self._metrics.readings_dropped.labels(reason).inc()

    async def _prove(self, token: str, claimed: AgentIdentity, source: str) -> None:
        try:
            identity = await self._tokens.check_agent(token, source)
        except TokenCheckFailed as error:
            text = f"the token could not be checked: {error}"
            raise Refused(503, "check_failed", text) from None
        if identity is None:
            raise Refused(401, "bad_token", "the token is not valid for audience gpujob")
        if identity != claimed:
            raise Refused(403, "wrong_node", "the token is of another agent than it claims")

    async def _connect(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            max_msg_size=READING_BYTES_MAX, compress=False, timeout=SEND_SECONDS_MAX
        )
        try:
            if not socket.can_prepare(request).ok:
                raise Refused(400, "no_websocket", "a WebSocket is required")
            wait_seconds = preferred_wait_seconds(request.headers.get("Prefer", ""))
            authorization = request.headers.get("Authorization", "")
            session = await self.admit(authorization, sender(request), wait_seconds)
            self.open(session, lambda: _hang_up(request))
        except Refused as refused:
            self._metrics.readings.labels(refused.result).inc()
            return refused.response()
        try:
            await socket.prepare(request)
            await self._listen(socket, session)
        except (TimeoutError, ConnectionError) as error:
            log.info("agent is gone", node=session.node, problem=str(error) or "silent")
        finally:
            self.close(session)
        # An agent that left before it had an answer never reads it.
        return socket if socket.prepared else web.Response(status=408)

    async def _listen(self, socket: web.WebSocketResponse, session: ReadingSession) -> None:
        end = self._monotonic() + CONNECTION_SECONDS_MAX
        reply: ReadingReply | None = session.greeting()
        while reply is not None:
            async with asyncio.timeout(SEND_SECONDS_MAX):
                await socket.send_str(reply.to_text())
            if self._monotonic() >= end:
                break
            message = await socket.receive(session.silent_seconds_max)
            if message.type is not WSMsgType.TEXT:
                break
            reply = self.take(session, message.data)
        await socket.close()


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()
