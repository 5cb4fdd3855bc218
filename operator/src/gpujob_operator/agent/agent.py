"""The agent's loop: read, publish, wait.

A failure is reported in a condition, and the next iteration tries again. Two failures end the
process, because only a new container helps: a driver that does not respond, and a driver that was
replaced and no longer fits the library in this container.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from gpujob_operator.agent.nvml import DevicesRefused, Nvml, needs_new_container, with_advice
from gpujob_operator.agent.processes import Owner
from gpujob_operator.agent.publish import Moment, Publisher, Readiness
from gpujob_operator.agent.session import NvmlSession, Reading
from gpujob_operator.agent.utilization import SAMPLE_SECONDS_LEAST, SAMPLE_SECONDS_MOST
from gpujob_operator.client.api_errors import ApiError
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)
_Result = TypeVar("_Result")

LAST_WORD_SECONDS = 5.0
# A driver without persistence mode takes seconds to wake the GPUs of a large node.
HANG_SECONDS = 60.0
_STOPPED = Readiness(False, "AgentStopped", "the agent was stopped; its last readings become stale")


class AgentMustEndError(Exception):
    """Nothing in this process or its container can read the GPUs any more."""


async def nothing() -> None:
    """Prepares nothing, because a reading of GPUs needs no preparation."""


def _no_beat() -> None:
    return None


class Agent:
    """Reads and publishes in a loop.

    `prepare` is awaited before every reading. The reading is skipped if it raises an `ApiError`.
    `beat` is called after each completed step.
    """

    def __init__(
        self,
        nvml: Nvml,
        publisher: Publisher,
        owner: Owner,
        *,
        interval_seconds: float,
        hang_seconds: float = HANG_SECONDS,
        prepare: Callable[[], Awaitable[None]] = nothing,
        beat: Callable[[], None] = _no_beat,
    ) -> None:
        self._nvml = nvml
        self._publisher = publisher
        self._owner = owner
        self._interval_seconds = interval_seconds
        self._hang_seconds = hang_seconds
        self._prepare = prepare
        self._beat = beat
        self._stop = asyncio.Event()
        self._session: NvmlSession | None = None

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Runs until `stop`, and then publishes that the readings will become stale.

        Raises `AgentMustEndError` if a thread may still be in the driver. The process must not wait
        for it.
        """
        while not self._stop.is_set():
            started = time.monotonic()
            await self.step()
            self._beat()
            await self._wait_until(started + self._interval_seconds)
        await self._say_last(_STOPPED)

    async def _wait_until(self, end: float) -> None:
        """Waits for the next reading or for `stop`, and samples utilization meanwhile."""
        while not self._stop.is_set():
            session = self._session
            sampled = session is not None and session.is_sampled
            left = end - time.monotonic()
            pause = random.uniform(SAMPLE_SECONDS_LEAST, SAMPLE_SECONDS_MOST)  # noqa: S311
            is_last = not sampled or pause >= left
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(0.0, left if is_last else pause))
            if is_last or session is None:
                return
            await self._in_driver(session.sample)

    async def step(self) -> None:
        """Takes one reading and, if needed, makes one write. Raises only `AgentMustEndError`."""
        try:
            await self._publisher.recall()
        except ApiError as error:
            log.warning("earlier readings unavailable", error=str(error))
            return
        try:
            await self._prepare()
        except ApiError as error:
            # Readings that lack a process would be trusted. Old readings are known to be old.
            log.warning("pods of this node not known", error=str(error))
            return
        if self._session is None:
            known = self._publisher.last.gpus
            self._session = NvmlSession(self._nvml, self._owner, known)
        began = self._publisher.moment()
        try:
            reading = await self._in_driver(self._session.read)
        except self._nvml.NVMLError as error:
            message = with_advice(error)
            log.warning("NVML failed", error=str(error), advice=message)
            if needs_new_container(error):
                await self._end("DriverReplaced", message)
            await self._publish(None, Readiness(False, "NVMLFailed", message))
            return
        except DevicesRefused as error:
            log.error("devices refused", error=str(error))
            await self._publish(None, Readiness(False, "DevicesRefused", str(error)))
            return
        await self._publish(reading, _readiness(reading), began)

    async def _in_driver(self, call: Callable[[], _Result]) -> _Result:
        """Calls in a thread, because NVML calls block and a broken driver may never return."""
        answer = asyncio.ensure_future(asyncio.to_thread(call))
        done, _ = await asyncio.wait({answer}, timeout=self._hang_seconds)
        if not done:
            await self._end(
                "NVMLHung",
                f"the driver has not answered for {self._hang_seconds:.0f} s; the agent ends, so "
                "that it starts anew; if that does not help, the node needs a restart",
            )
        return answer.result()

    async def _end(self, reason: str, message: str) -> None:
        log.error("the agent ends", reason=reason, problem=message)
        await self._say_last(Readiness(False, reason, message))
        raise AgentMustEndError(message)

    async def _say_last(self, readiness: Readiness) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._publish(None, readiness), LAST_WORD_SECONDS)

    async def _publish(
        self, reading: Reading | None, readiness: Readiness, began: Moment | None = None
    ) -> None:
        try:
            if reading is None:
                await self._publisher.publish_failure(readiness)
            else:
                gpus, version = reading.gpus, reading.driver_version
                sent = await self._publisher.publish(gpus, version, readiness, began)
                if sent and self._session is not None:
                    self._session.published()
        except ApiError as error:
            log.warning("status not written", error=str(error))


def _readiness(reading: Reading) -> Readiness:
    """Returns readiness: ready if any GPU was read. GPUs that were not read are named."""
    unread = "; ".join(reading.unread)
    if not unread:
        return Readiness(True, "Measuring", "the agent reads all GPUs")
    reason = "Measuring" if reading.gpus else "NothingReadable"
    return Readiness(bool(reading.gpus), reason, f"not read: {unread}")
