"""Who asks for reviews of tokens, in virtual time: a flood, workers and agents."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gpujob_operator.client.kube import Manifest, ResourceType
from gpujob_operator.port.requests import TokenCheckFailed
from gpujob_operator.port.tokens import TokenChecks
from tests.harness.fake_kube import FakeKube
from tests.harness.pod_tokens import agent_token, pod_token, reviewed
from tests.simulation.clock import Clock
from tests.simulation.event_loop import VirtualLoop

CONNECTIONS = 1200
PAUSE_SECONDS = 5.0
# As a worker does: `gpujob_worker.run.reporter`.
ASK_SECONDS_MAX, ASK_PAUSE_SECONDS = 5.0, 0.5
# And an agent: `gpujob_operator.agent.direct`.
CONNECT_SECONDS_MAX, CONNECT_PAUSE_SECONDS = 2.0, 1.0


class TimedReviews(FakeKube):
    """Answers as the API server does, after so many seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.asked = 0
        self.at_once = self.at_once_max = 0

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        self.asked += 1
        self.at_once += 1
        self.at_once_max = max(self.at_once, self.at_once_max)
        await asyncio.sleep(self.seconds)
        self.at_once -= 1
        return {**body, "status": reviewed(body["spec"]["token"])}


class TokenPort:
    """What asks for reviews, in virtual time."""

    def __init__(self, review_seconds: float) -> None:
        self.clock = Clock(0)
        self.failures: list[BaseException] = []
        self.loop = VirtualLoop(self.clock, self.failures.append)
        self.kube = TimedReviews(review_seconds)
        self.checks = TokenChecks(self.kube, lambda: self.clock.now)
        self.waits: list[float] = []

    def flood(self, addresses: int) -> None:
        """Forged tokens of real workers, for ever."""
        for number in range(CONNECTIONS):
            self.loop.create_task(self._forge(number, f"10.9.0.{number % addresses}"))

    async def _forge(self, connection: int, address: str) -> None:
        count = 0
        while True:
            count += 1
            token = pod_token("team", "job-1-0", "uid", signature=f"{connection}-{count}")
            with suppress(TokenCheckFailed):
                assert await self.checks.check(token, address, from_its_pod=False) is None
            await asyncio.sleep(PAUSE_SECONDS)

    def worker(self, name: str, address: str, *, from_its_pod: bool) -> None:
        token = pod_token("team", name, f"uid-{name}")

        def ask() -> Awaitable[object]:
            return self.checks.check(token, address, from_its_pod=from_its_pod)

        self.loop.create_task(self._until_heard(ask, ASK_SECONDS_MAX, ASK_PAUSE_SECONDS))

    def agent(self, name: str, address: str) -> None:
        def ask() -> Awaitable[object]:
            return self.checks.check_agent(agent_token(name), address)

        self.loop.create_task(self._until_heard(ask, CONNECT_SECONDS_MAX, CONNECT_PAUSE_SECONDS))

    async def _until_heard(
        self, ask: Callable[[], Awaitable[object]], seconds: float, pause_seconds: float
    ) -> None:
        started = self.clock.now
        while True:
            try:
                async with asyncio.timeout(seconds):
                    assert await ask() is not None
                self.waits.append(self.clock.now - started)
                return
            except (TimeoutError, TokenCheckFailed):
                await asyncio.sleep(pause_seconds)

    def run(self, seconds: float, heard: int | None = None) -> None:
        """For so long, or until so many were heard."""
        self.clock.run_until(self.clock.now + seconds, lambda: len(self.waits) == heard)
        assert self.failures == []

    def close(self) -> None:
        self.loop.close()
