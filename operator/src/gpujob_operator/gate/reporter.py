"""Reports the gate's requests to the operator, and passes its replies on."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import ClientError, ClientSession, ClientTimeout

from gpujob_api.codec import FieldError
from gpujob_api.gate import GATE_MESSAGE_BYTES_MAX, GateReply
from gpujob_operator.gate.replicas import Replicas
from gpujob_operator.gate.traffic import Traffic
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

INTERVAL_SECONDS = 1.0
# While requests are held, so that a replica gets them as soon as it is ready.
HELD_INTERVAL_SECONDS = 0.25
REQUEST_SECONDS_MAX = 5.0
MESSAGE_CHARACTERS_MAX = 512


@dataclass(frozen=True, slots=True)
class Destination:
    """The address of the reports, and the file with the token that identifies the pod."""

    url: str
    token_file: Path


class Reporter:
    """Reports once a second, and at once when `wake` is called."""

    def __init__(
        self,
        destination: Destination,
        session: ClientSession,
        traffic: Traffic,
        replicas: Replicas,
    ) -> None:
        self._destination = destination
        self._session = session
        self._traffic = traffic
        self._replicas = replicas
        self._woken = asyncio.Event()
        self._problem = ""

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            self._woken.clear()
            await self._report()
            pause = HELD_INTERVAL_SECONDS if self._traffic.held else INTERVAL_SECONDS
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _report(self) -> None:
        """Sends one report. If that fails, the replicas known so far stay."""
        try:
            self._replicas.update(await self._post())
            problem = ""
        except (OSError, ClientError, TimeoutError, ValueError, FieldError) as error:
            problem = f"{type(error).__name__}: {error}"[:MESSAGE_CHARACTERS_MAX]
        if problem and problem != self._problem:
            log.warning("report not sent", problem=problem)
        self._problem = problem

    def _text(self) -> str:
        """Returns the next report."""
        return replace(self._traffic.report(), replicas=self._replicas.count).to_text()

    async def _post(self) -> GateReply:
        token = (await asyncio.to_thread(self._destination.token_file.read_text)).strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        report = self._text()
        timeout = ClientTimeout(total=REQUEST_SECONDS_MAX)
        async with self._session.post(
            self._destination.url, data=report, headers=headers, timeout=timeout
        ) as answer:
            body = await answer.content.read(GATE_MESSAGE_BYTES_MAX)
            text = body.decode(errors="replace")
            if answer.status != 200:
                raise ClientError(f"{answer.status}: {text}")
            return GateReply.from_text(text)
