"""The agent's loop: read, publish, wait. A failure is reported in a condition, and the next
iteration tries again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gpujob_api.gpunode import GPU
from gpujob_operator.act.kube import ApiError
from gpujob_operator.agent.health import GPUHealth
from gpujob_operator.agent.nvml import DevicesRefused, Nvml
from gpujob_operator.agent.publish import Publisher, Readiness
from gpujob_operator.agent.readings import GPUReader, Owner
from gpujob_operator.logs import Log

log = Log(__name__)

LAST_WORD_SECONDS = 5.0
_READY = Readiness(True, "Measuring", "the agent reads all GPUs")
_STOPPED = Readiness(False, "AgentStopped", "the agent was stopped; its last readings become stale")


async def nothing() -> None:
    """What a reading of GPUs needs beforehand."""


class Agent:
    """`prepare` is awaited before every reading; with an `ApiError` there is none that time."""

    def __init__(
        self,
        nvml: Nvml,
        publisher: Publisher,
        owner: Owner,
        *,
        interval_seconds: float,
        prepare: Callable[[], Awaitable[None]] = nothing,
    ) -> None:
        self._nvml = nvml
        self._publisher = publisher
        self._owner = owner
        self._interval_seconds = interval_seconds
        self._prepare = prepare
        self._stop = asyncio.Event()
        self._reader: GPUReader | None = None
        self._driver_version = ""

    def stop(self) -> None:
        self._stop.set()

    async def run(self) -> None:
        """Runs until `stop`. Then publishes that the readings will grow old."""
        while not self._stop.is_set():
            started = time.monotonic()
            await self.step()
            left = self._interval_seconds - (time.monotonic() - started)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(0.0, left))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._publish(None, _STOPPED), LAST_WORD_SECONDS)

    async def step(self) -> None:
        """Takes one reading and, if needed, makes one write. Transient errors do not raise."""
        try:
            await self._publisher.recall()
        except ApiError as error:
            log.warning("earlier readings unavailable", error=str(error))
            return
        try:
            await self._prepare()
        except ApiError as error:
            # Readings that lack a process would be believed; old ones are known to be old.
            log.warning("pods of this node not known", error=str(error))
            return
        try:
            gpus = await asyncio.to_thread(self._read)
        except self._nvml.NVMLError as error:
            # The driver may be restarting, so the next reading initializes NVML again.
            self._reader = None
            log.warning("NVML failed", error=str(error))
            await self._publish(None, Readiness(False, "NVMLFailed", f"NVML: {error}"))
            return
        except DevicesRefused as error:
            log.error("devices refused", error=str(error))
            await self._publish(None, Readiness(False, "DevicesRefused", str(error)))
            return
        await self._publish(gpus, _READY)

    def _read(self) -> tuple[GPU, ...]:
        """Reads in a thread: NVML calls block, and a broken driver may block for long."""
        if self._reader is None:
            self._nvml.nvmlInit()
            known = self._publisher.last.gpus
            self._reader = GPUReader(self._nvml, self._owner, GPUHealth(self._nvml), known)
            self._driver_version = self._reader.driver_version()
        return self._reader.read()

    async def _publish(self, gpus: tuple[GPU, ...] | None, readiness: Readiness) -> None:
        try:
            if gpus is None:
                await self._publisher.publish_trouble(readiness)
            else:
                await self._publisher.publish(gpus, self._driver_version, readiness)
        except ApiError as error:
            log.warning("status not written", error=str(error))
