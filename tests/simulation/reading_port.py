"""Where agents send readings to a simulated operator: the real receiver behind modelled sockets."""

from collections.abc import Callable
from datetime import datetime

from gpujob_api.reading import ReadingReply
from gpujob_operator.observe.cache import Cache
from gpujob_operator.port.reading_session import ReadingSession
from gpujob_operator.port.readings import AgentAccount, ReadingReceiver
from gpujob_operator.port.requests import Refused
from gpujob_operator.port.tokens import TokenChecks
from gpujob_operator.telemetry.metrics import Metrics
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop

Replied = Callable[[ReadingReply | None], None]
NETWORK_SECONDS_MAX = 0.02


class ReadingPort:
    def __init__(
        self,
        clock: Clock,
        loop: VirtualLoop,
        cache: Cache,
        tokens: TokenChecks,
        metrics: Metrics,
        moment: Callable[[], datetime],
        is_leader: Callable[[], bool],
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._receiver = ReadingReceiver(
            cache,
            tokens,
            metrics,
            account=AgentAccount("gpujob-system", "gpujob-agent"),
            clock=moment,
            monotonic=lambda: clock.now,
            is_leader=is_leader,
        )
        # When each agent was heard last, and who is to hear of the connection's end.
        self._heard: dict[ReadingSession, float] = {}
        self._hang_ups: dict[ReadingSession, Callable[[ReadingSession], None]] = {}

    def cut(self) -> None:
        """The process is gone."""
        for session in list(self._hang_ups):
            self._hang_up(session)

    def leads_changed(self, leads: bool) -> None:
        self._receiver.leads_changed(leads)

    def look_again(self) -> None:
        self._receiver.look_again()

    def admit(
        self,
        token: str,
        source: str,
        wait_seconds: float,
        admitted: Callable[[ReadingSession], None],
        hung_up: Callable[[ReadingSession], None],
        refused: Callable[[], None],
    ) -> None:
        """An agent connects; `admitted` hears of the greeting, `hung_up` of the end from here."""

        async def admit() -> None:
            try:
                session = await self._receiver.admit(f"Bearer {token}", source, wait_seconds)
                self._receiver.open(session, lambda: self._hang_up(session))
            except Refused:
                self._clock.after(self._network_seconds(), refused)
                return
            self._hang_ups[session] = hung_up
            session.greeting()
            self._watch_silence(session)
            self._clock.after(self._network_seconds(), lambda: admitted(session))

        self._loop.call_soon(lambda: self._loop.create_task(admit()))

    def take(self, session: ReadingSession, text: str, replied: Replied) -> None:
        """A message arrives; the reply arrives a moment later, unless the process ends."""

        def take() -> None:
            reply = self._receiver.take(session, text)
            if reply is None:
                self._receiver.close(session)
            self._watch_silence(session)
            self._clock.after(self._network_seconds(), lambda: replied(reply))

        self._loop.call_later(self._network_seconds(), take)

    def end(self, session: ReadingSession) -> None:
        """The agent's end of the connection is closed."""
        self._hang_ups.pop(session, None)
        self._loop.call_soon(self._receiver.close, session)

    def _hang_up(self, session: ReadingSession) -> None:
        hung_up = self._hang_ups.pop(session, None)
        if hung_up is not None:
            self._clock.after(self._network_seconds(), lambda: hung_up(session))

    def _watch_silence(self, session: ReadingSession) -> None:
        heard = self._heard[session] = self._clock.now

        def close() -> None:
            if self._heard.get(session) == heard:
                del self._heard[session]
                self._receiver.close(session)
                self._hang_up(session)

        self._loop.call_later(session.silent_seconds_max, close)

    def _network_seconds(self) -> float:
        return self._clock.random.uniform(0.001, NETWORK_SECONDS_MAX)
