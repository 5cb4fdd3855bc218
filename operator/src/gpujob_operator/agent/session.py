"""NVML as one process uses it: initialized at the first reading, and again after it failed.

What is remembered about GPUs outlives NVML, because a driver that was away for a moment heals no
GPU.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from gpujob_api.gpunode import GPU
from gpujob_operator.agent.health import GPUHealth
from gpujob_operator.agent.nvml import Nvml
from gpujob_operator.agent.processes import Owner
from gpujob_operator.agent.readings import GPUReader
from gpujob_operator.agent.xids import XIDMemory


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading. `unread` has, for each GPU missing from `gpus`, why NVML does not report it."""

    gpus: tuple[GPU, ...]
    unread: tuple[str, ...]
    driver_version: str


def _utc_now() -> datetime:
    return datetime.now(UTC)


class NvmlSession:
    def __init__(
        self,
        nvml: Nvml,
        owner: Owner,
        recalled: Iterable[GPU] = (),
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        """`recalled` are GPUs as an earlier agent published them."""
        self.nvml = nvml
        self._owner = owner
        self._known = tuple(recalled)
        self._xids = XIDMemory(self._known, clock)
        self._reader: GPUReader | None = None
        self._open = False
        self._driver_version = ""

    def read(self) -> Reading:
        """Reads all GPUs, with the mean utilization since `published`. It blocks, so call it in a
        thread.

        Raises the module's NVMLError if NVML does not work.
        """
        try:
            reader = self._reader or self._begin()
            gpus = reader.read()
        except self.nvml.NVMLError:
            self.close()
            raise
        self._known = gpus or self._known
        return Reading(gpus, reader.unread, self._driver_version)

    @property
    def is_sampled(self) -> bool:
        """Whether `sample` is to be called between readings. A module whose utilization is a mean
        since the last reading has the attribute `reads_means`.
        """
        return self._reader is not None and not getattr(self.nvml, "reads_means", False)

    def sample(self) -> None:
        """Samples utilization. It blocks, so call it in a thread, and not beside `read`."""
        if self._reader is not None:
            self._reader.sample()

    def published(self) -> None:
        """The next readings have the utilization from now on."""
        if self._reader is not None:
            self._reader.published()

    def close(self) -> None:
        """Ends the session, because NVML does not initialize again while one is open."""
        self._reader = None
        if self._open:
            self._open = False
            with suppress(self.nvml.NVMLError, AttributeError):
                self.nvml.nvmlShutdown()

    def _begin(self) -> GPUReader:
        self.nvml.nvmlInit()
        self._open = True
        self._reader = GPUReader(
            self.nvml, self._owner, GPUHealth(self.nvml, self._xids), self._known
        )
        self._driver_version = self._reader.driver_version()
        return self._reader
