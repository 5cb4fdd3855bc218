"""The process of a gate: the product's own parts behind modelled sockets."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import cast

from aiohttp import ClientError, ClientSession

from gpujob_api.gate import GateReply
from gpujob_operator.gate.process import GateOptions
from gpujob_operator.gate.replicas import NoReplica, Replicas
from gpujob_operator.gate.reporter import REQUEST_SECONDS_MAX, Destination, Reporter
from gpujob_operator.gate.traffic import Traffic
from tests.harness.pod_tokens import pod_token
from tests.simulation.api_server import Manifest
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop
from tests.simulation.faults import Faults
from tests.simulation.machines import Machine
from tests.simulation.operator_shell import OperatorShell
from tests.simulation.pods import of_service
from tests.simulation.posts import Post
from tests.simulation.requests import End, Network, Request, address_of

NOWHERE = Destination("http://operator/gate", Path("token"))
NETWORK_SECONDS_MAX = 0.02
# A peer that does not answer at all.
CONNECT_SECONDS = 2.0
BODY_BYTES = 1000
# As many requests as end while reports are late.
ENDS_MAX = 100


class SimulatedReporter(Reporter):
    """Sends each report to every operator. The leader answers."""

    def __init__(
        self,
        traffic: Traffic,
        replicas: Replicas,
        post: Callable[[str], "asyncio.Future[str]"],
    ) -> None:
        super().__init__(NOWHERE, cast("ClientSession", None), traffic, replicas)
        self._send = post

    async def _post(self) -> GateReply:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            return GateReply.from_text(await self._send(self._text()))


class GateProcess:
    """Joins the parts of a gate, and ends, as `gpujob_operator.gate.process` does."""

    def __init__(
        self,
        clock: Clock,
        machine: Machine,
        pod: Manifest,
        network: Network,
        shells: Sequence[OperatorShell],
        faults: Faults,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.machine = machine
        self.pod_uid: str = pod["metadata"]["uid"]
        self.service = of_service(pod)
        self._pod = pod
        self._clock = clock
        self._network = network
        self._shells = shells
        self._faults = faults
        self.ended = False
        self._ends = self._refuses = False
        self._loop = VirtualLoop(clock, failed)
        self._open: set[Request] = set()
        # When the newest requests ended.
        self._ended_at: deque[float] = deque(maxlen=ENDS_MAX)
        sequence = int(clock.now * 1000)
        self._traffic = Traffic(self._now, sequence, lambda: self._reporter.wake())
        self._replicas = Replicas(self._traffic, self._now)
        self._reporter = SimulatedReporter(self._traffic, self._replicas, self._send)
        self._loop.call_soon(lambda: self._loop.create_task(self._reporter.run()))

    def _now(self) -> float:
        return self._clock.now

    @property
    def is_ready(self) -> bool:
        """The result of its readiness probe."""
        return self._replicas.known and not self._ends

    def asked_since(self) -> float | None:
        """Returns when the oldest open request came, or None if there is none."""
        return min((one.sent_at for one in self._open), default=None)

    def last_end(self, until: float) -> float:
        """Returns when the last request up to that time ended."""
        return max((at for at in self._ended_at if at <= until), default=float("-inf"))

    # -- requests

    def accept(self, request: Request) -> bool:
        if self._refuses or self.ended:
            return False
        self._open.add(request)
        self._loop.call_soon(lambda: self._loop.create_task(self._forward(request)))
        return True

    async def _forward(self, request: Request) -> None:
        """Forwards a request, as `Proxy` does."""
        with self._traffic.request():
            try:
                end = await self._from_a_replica(self._clock.now)
            except NoReplica:
                end = End.WAITED
        self._close(request, end)

    async def _from_a_replica(self, arrived_at: float) -> End:
        while True:
            address = await self._replicas.next(arrived_at, BODY_BYTES)
            with self._replicas.use(address):
                await asyncio.sleep(self._network_seconds())
                process = self._network.reach(address.partition(":")[0])
                if process is None:
                    await asyncio.sleep(CONNECT_SECONDS)
                    self._replicas.refused(address)
                    continue
                if process.ended:
                    self._replicas.refused(address)
                    continue
                answer: asyncio.Future[End] = self._loop.create_future()
                if not process.accept(Request("", arrived_at, self._answered(answer))):
                    return End.REFUSED
                return await answer

    def _answered(self, answer: "asyncio.Future[End]") -> Callable[[End], None]:
        def say(end: End) -> None:
            if not answer.done():
                answer.set_result(end)

        def arrive(end: End) -> None:
            if not self.ended:
                self._loop.call_soon(say, end)

        return arrive

    def _close(self, request: Request, end: End) -> None:
        if request in self._open:
            self._open.discard(request)
            self._ended_at.append(self._clock.now)
            request.ended(end)

    def _network_seconds(self) -> float:
        return self._clock.random.uniform(0.001, NETWORK_SECONDS_MAX)

    # -- reports

    def _send(self, body: str) -> "asyncio.Future[str]":
        answer: asyncio.Future[str] = self._loop.create_future()
        shells = [one for one in self._shells if one.alive]
        lost = self._clock.random.random() < self._faults.report_loss
        if lost or not self.machine.connected or not shells:
            # Nobody answers.
            return answer
        metadata = self._pod["metadata"]
        token = pod_token(metadata["namespace"], metadata["name"], self.pod_uid)
        headers = {"Authorization": f"Bearer {token}"}
        post = Post(headers, body.encode(), address_of(self._pod))
        refused: list[int] = []

        def say(status: int, text: str) -> None:
            if answer.done():
                return
            if status == HTTPStatus.OK:
                answer.set_result(text)
                return
            refused.append(status)
            if len(refused) == len(shells):
                answer.set_exception(ClientError(f"{status}: {text}"))

        for shell in shells:
            shell.receive_of_gate(post, lambda status, text: self._later(say, status, text))
        return answer

    def _later(self, say: Callable[[int, str], None], status: int, text: str) -> None:
        if not self.ended:
            self._loop.call_later(self._network_seconds(), say, status, text)

    # -- the end

    def terminate(self) -> None:
        """Begins the end, as SIGTERM does."""
        if not self._ends:
            self._ends = True
            self._loop.call_soon(lambda: self._loop.create_task(self._end()))

    async def _end(self) -> None:
        options = GateOptions("", 1, NOWHERE)
        began_at = self._clock.now
        self._replicas.hold_until(began_at + options.delay_seconds + options.hold_seconds)
        await asyncio.sleep(options.delay_seconds)
        self._refuses = True
        left = began_at + options.grace_seconds - self._clock.now
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._traffic.none.wait()
        self._clock.after(0.0, self.kill)

    def kill(self) -> None:
        """Ends the process, by SIGKILL or by itself."""
        if self.ended:
            return
        self.ended = True
        self._loop.kill()
        for request in list(self._open):
            self._close(request, End.LOST)

    def close(self) -> None:
        """Releases the loop and its tasks at the end of a simulation."""
        self.ended = True
        self._loop.close()
