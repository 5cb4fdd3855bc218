"""The connections of the simulated agents to the operators, with the operators' own parts at their
end: tokens are reviewed, readings are timed, taken or refused by the code that runs in a cluster.

What is modelled: the network's delay, an operator that does not answer, a connection that breaks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gpujob_api.reading import ReadingHead, ReadingReply, reading_text
from tests.harness.pod_tokens import agent_token
from tests.simulation.machines import Machine

if TYPE_CHECKING:
    from gpujob_operator.port.reading_session import ReadingSession
    from tests.simulation.api_server import Manifest
    from tests.simulation.clock import Clock
    from tests.simulation.operator_shell import OperatorShell

REPLY_SECONDS_MAX = 2.0
RETRY_SECONDS = 1.0
# To be let in, by each of several operators, or by the only one, which may let an agent wait.
CONNECT_SECONDS_MAX = 5.0
WAIT_SECONDS = 3.0
Told = Callable[[bool], None]


@dataclass(slots=True)
class _Reading:
    status: Manifest
    read_at: float
    told: Told


@dataclass(slots=True)
class _Connection:
    shell: OperatorShell
    session: ReadingSession
    replied_at: float
    sequence: int = 0
    # The GPUs that the operator has, by UUID.
    known: dict[str, Manifest] = field(default_factory=dict)
    asked: _Reading | None = None


class AgentLink:
    """Of one node's agent. Looks for the leader while it is `up`."""

    def __init__(
        self,
        clock: Clock,
        shells: Sequence[OperatorShell],
        machine: Machine,
        breaks: Callable[[], bool],
    ) -> None:
        """`breaks` says before each message whether the connection breaks."""
        self._clock = clock
        self._shells = shells
        self._machine = machine
        self._breaks = breaks
        self._connection: _Connection | None = None
        self._latest: _Reading | None = None
        # Of the only operator, which may let this agent wait.
        self._asked_until = 0.0
        clock.every(RETRY_SECONDS, self._look)

    @property
    def _up(self) -> bool:
        machine = self._machine
        return machine.agent_runs and machine.connected and machine.powered and not machine.gone

    def deliver(self, status: Manifest, told: Told) -> None:
        """`told` hears whether the operator has the reading."""
        self._latest = _Reading(status, self._clock.now, told)
        if self._connection is None or self._connection.asked is not None:
            self.drop()
            told(False)
        else:
            self._send(self._connection, self._latest)

    def drop(self) -> None:
        """The agent ends the connection. A node without power or network tells nobody."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.asked is not None:
            connection.asked.told(False)
        if self._machine.connected and self._machine.powered:
            connection.shell.readings.end(connection.session)

    def _look(self) -> bool:
        if not self._up:
            self.drop()
        elif self._connection is None and self._clock.now >= self._asked_until:
            living = [shell for shell in self._shells if shell.alive]
            only = len(self._shells) == 1
            if only and living:
                self._asked_until = self._clock.now + WAIT_SECONDS + CONNECT_SECONDS_MAX
            for shell in living:
                self._ask(shell, WAIT_SECONDS if only else 0.0)
        return not self._machine.gone

    def _ask(self, shell: OperatorShell, wait_seconds: float) -> None:
        token, admitted = agent_token(self._machine.name), partial(self._admitted, shell)
        source = self._machine.name
        shell.readings.admit(token, source, wait_seconds, admitted, self._hung_up, self._ask_again)

    def _ask_again(self) -> None:
        self._asked_until = 0.0

    def _admitted(self, shell: OperatorShell, session: ReadingSession) -> None:
        """The greeting arrives."""
        self._ask_again()
        if not self._up or self._connection is not None:
            shell.readings.end(session)
            return
        connection = self._connection = _Connection(shell, session, self._clock.now)
        if self._latest is not None:
            latest = _Reading(self._latest.status, self._latest.read_at, lambda taken: None)
            self._send(connection, latest)

    def _hung_up(self, session: ReadingSession) -> None:
        if self._connection is not None and self._connection.session is session:
            self.drop()

    def _send(self, connection: _Connection, reading: _Reading) -> None:
        if self._breaks():
            connection.asked = reading
            self.drop()
            return
        connection.sequence += 1
        connection.asked = reading
        gpus = reading.status["gpus"]
        unchanged = [one["uuid"] for one in gpus if connection.known.get(one["uuid"]) == one]
        changed = [one for one in gpus if one["uuid"] not in unchanged]
        head = ReadingHead(connection.sequence, reading.read_at - connection.replied_at)
        text = reading_text(head, {**reading.status, "gpus": changed}, unchanged)
        number = connection.sequence
        connection.shell.readings.take(
            connection.session, text, lambda reply: self._answered(connection, number, reply)
        )
        self._clock.after(REPLY_SECONDS_MAX, lambda: self._too_late(connection, number))

    def _too_late(self, connection: _Connection, number: int) -> None:
        open_still = connection is self._connection and connection.asked is not None
        if open_still and connection.sequence == number:
            self.drop()

    def _answered(self, connection: _Connection, number: int, reply: ReadingReply | None) -> None:
        if connection is not self._connection or number != connection.sequence:
            return
        reading, connection.asked = connection.asked, None
        if reading is None:
            return
        if reply is None:
            self.drop()
            reading.told(False)
            return
        connection.replied_at = self._clock.now
        if not reply.full:
            connection.known = {one["uuid"]: one for one in reading.status["gpus"]}
            reading.told(True)
        elif connection.known:
            connection.known = {}
            self._send(connection, reading)
        else:
            reading.told(False)
