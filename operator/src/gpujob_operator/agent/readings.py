"""One reading of all GPUs of a node, from NVML, as `GPU` values.

A GPU that is lost, or that `health` finds unfit, is unhealthy. An unhealthy GPU keeps its UUID and
has a message.
"""

import math
from collections.abc import Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, replace

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPU, GPUS_MAX, UNREADABLE
from gpujob_operator.agent.health import GPUHealth
from gpujob_operator.agent.links import LinkGroups
from gpujob_operator.agent.nvml import RESET_REQUIRED, Nvml, code_of, is_lost, optional, text
from gpujob_operator.agent.processes import Owner, ProcessReader
from gpujob_operator.agent.utilization import Busy, UtilizationSamples
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)


@dataclass(frozen=True, slots=True)
class _Memory:
    total: int
    used: int
    reserved: int

    @property
    def full(self) -> bool:
        return self.used >= self.total - self.reserved


class GPUReader:
    """Reads every GPU. It remembers identities, so that a lost GPU keeps its place.

    `recalled` are GPUs as an earlier reader, or an earlier agent, knew them.
    """

    def __init__(
        self, nvml: Nvml, owner: Owner, health: GPUHealth, recalled: Iterable[GPU] = ()
    ) -> None:
        self._nvml = nvml
        self._health = health
        self._processes = ProcessReader(nvml, owner)
        # Why a GPU that was never read before is not read, by index.
        self._unread: dict[int, str] = {}
        self._known: dict[int, GPU] = {}
        self._recalled = {gpu.index: gpu for gpu in recalled}
        self._links = LinkGroups(nvml)
        self._busy = UtilizationSamples()

    def driver_version(self) -> str:
        return text(optional(self._nvml, self._nvml.nvmlSystemGetDriverVersion, ""))

    @property
    def unread(self) -> tuple[str, ...]:
        """Each GPU that is missing from the last reading, and why."""
        return tuple(f"GPU {index}: {why}"[:256] for index, why in sorted(self._unread.items()))

    def read(self) -> tuple[GPU, ...]:
        """Reads all GPUs. Raises the module's NVMLError if NVML itself fails."""
        count = self._nvml.nvmlDeviceGetCount()
        self._unread = {}
        self._health.collect(self._pods_on)
        # A GPU that only an earlier agent saw has been removed from the node.
        self._recalled = {i: gpu for i, gpu in self._recalled.items() if i < count}
        results = [
            self._read_guarded(index)
            for index in range(min(GPUS_MAX, max(count, len(self._known))))
        ]
        read = {gpu.uuid for gpu in results if isinstance(gpu, GPU)}
        gpus = [
            result if isinstance(result, GPU) else self._lost(index, result, read)
            for index, result in enumerate(results)
        ]
        return self._with_links([gpu for gpu in gpus if gpu is not None])

    def published(self) -> None:
        """Begins anew with the utilization, because the last reading was published."""
        self._busy.clear()

    def sample(self) -> None:
        """Adds to the utilization that the next reading has. A GPU that does not answer is left
        out: that reading shows what it lacks.
        """
        for index, gpu in self._known.items():
            with suppress(self._nvml.NVMLError):
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                if text(self._nvml.nvmlDeviceGetUUID(handle)) == gpu.uuid:
                    self._busy.add(gpu.uuid, self._busy_now(handle, gpu.uuid))

    def _with_links(self, gpus: list[GPU]) -> tuple[GPU, ...]:
        """Adds link groups. Lost GPUs keep their last group."""
        well = [(gpu.index, gpu.uuid) for gpu in gpus if gpu.healthy]
        try:
            groups = self._links.of(well)
        except self._nvml.NVMLError as error:
            # A GPU was lost after it was read. The next reading reports it.
            log.warning("links unreadable", error=str(error))
            groups = {}
        gpus = [
            replace(gpu, link_group=groups.get(gpu.index, self._group_known(gpu.index)))
            for gpu in gpus
        ]
        self._known |= {gpu.index: gpu for gpu in gpus if gpu.index in self._known}
        return tuple(gpus)

    def _group_known(self, index: int) -> int:
        known = self._known.get(index) or self._recalled.get(index)
        return known.link_group if known is not None else 0

    def _read_guarded(self, index: int) -> GPU | Exception:
        try:
            gpu = self._read_gpu(index)
        except self._nvml.NVMLError as error:
            return error
        except (FieldError, ValueError, OverflowError) as error:
            log.warning("implausible reading ignored", index=index, problem=str(error))
            return error
        self._known[index] = gpu
        return gpu

    def _lost(self, index: int, error: Exception, read: Set[str]) -> GPU | None:
        """Returns the last known state of a GPU that does not respond: unhealthy, without
        processes.

        A GPU that was read at another index is left out, because indices may change.
        """
        known = self._known.get(index) or self._recalled.get(index)
        if known is None or known.uuid in read:
            log.warning("GPU unreadable", index=index, error=str(error))
            if known is None:
                self._unread[index] = str(error)
            return None
        word = "lost" if is_lost(error) else UNREADABLE
        word = "needs a reset" if code_of(error) == RESET_REQUIRED else word
        return GPU(
            uuid=known.uuid,
            index=index,
            model=known.model,
            memory_total_bytes=known.memory_total_bytes,
            memory_used_bytes=known.memory_used_bytes,
            memory_reserved_bytes=known.memory_reserved_bytes,
            healthy=False,
            health_message=f"{word}: {error}"[:256],
            xids=self._health.xids.of(known.uuid),
        )

    def _pods_on(self, uuid: str) -> list[str]:
        """Returns the pods whose processes were on the GPU at the last reading."""
        known = next((gpu for gpu in self._known.values() if gpu.uuid == uuid), None)
        processes = known.processes if known is not None else ()
        return [process.pod_uid or "" for process in processes]

    def _read_gpu(self, index: int) -> GPU:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        memory = self._memory(handle)
        self._busy.add(uuid, self._busy_now(handle, uuid))
        busy = self._busy.mean(uuid)
        energy_joules = _scaled(
            optional(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        )
        self._health.xids.see_energy(uuid, energy_joules)
        problem = self._health.problem(handle, uuid, index)
        return GPU(
            uuid=uuid,
            index=index,
            model=text(nvml.nvmlDeviceGetName(handle)),
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_reserved_bytes=memory.reserved,
            utilization_percent=busy.percent,
            power_watts=_scaled(optional(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            energy_joules=energy_joules,
            temperature_celsius=_finite(
                optional(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, 0))
            ),
            healthy=problem == "",
            health_message=problem,
            processes=self._processes.read(handle, memory.used, busy.processes, full=memory.full),
            xids=self._health.xids.of(uuid),
        )

    def _busy_now(self, handle: object, uuid: str) -> Busy:
        nvml = self._nvml
        rates = optional(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        percent = _percent(rates.gpu if rates is not None else 0.0)
        return Busy(percent, self._processes.utilization(handle, uuid))

    def _memory(self, handle: object) -> _Memory:
        """Reads memory. Version 2 has the driver's reservation separately. Version 1 counts it as
        used.
        """
        nvml = self._nvml
        version = getattr(nvml, "nvmlMemory_v2", None)
        info = None
        if version is not None:
            info = optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
        if info is None:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = int(getattr(info, "reserved", 0) or 0)
        return _Memory(int(info.total), int(info.used), reserved)


def _percent(value: object) -> float:
    number = _finite(value)
    return 0.0 if number is None else min(100.0, max(0.0, number))


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _scaled(milli: object) -> float | None:
    """Converts NVML's power in milliwatts and energy in millijoules."""
    number = _finite(milli)
    return None if number is None else number / 1000
