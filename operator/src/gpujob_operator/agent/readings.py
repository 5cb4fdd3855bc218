"""One reading of all GPUs of a node, from NVML, as `GPU` values.

A lost GPU, uncorrectable memory errors since boot, failed row remapping and critical XIDs make a
GPU unhealthy. An unhealthy GPU keeps its UUID and has a message.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import GPU, GPUS_MAX, PROCESSES_MAX, UNREADABLE, GPUProcess
from gpujob_operator.agent.health import GPUHealth
from gpujob_operator.agent.links import LinkGroups
from gpujob_operator.agent.nvml import Nvml, is_lost, optional, text
from gpujob_operator.logs import Log

log = Log(__name__)

# Returns the UID of the process's pod, or None for an unmanaged process.
Owner = Callable[[int], str | None]


@dataclass(frozen=True, slots=True)
class _Memory:
    total: int
    used: int
    reserved: int


class GPUReader:
    """Reads every GPU; remembers identities, so that a GPU that is lost keeps its place.

    `recalled` are GPUs as an earlier reader, or an earlier agent, knew them.
    """

    def __init__(
        self, nvml: Nvml, owner: Owner, health: GPUHealth, recalled: Iterable[GPU] = ()
    ) -> None:
        self._nvml = nvml
        self._owner = owner
        self._health = health
        self._known: dict[int, GPU] = {}
        self._recalled = {gpu.index: gpu for gpu in recalled}
        self._utilization_since: dict[str, int] = {}
        self._links = LinkGroups(nvml)

    def driver_version(self) -> str:
        return text(optional(self._nvml, self._nvml.nvmlSystemGetDriverVersion, ""))

    def read(self) -> tuple[GPU, ...]:
        """Reads all GPUs. Raises the module's NVMLError if NVML itself fails."""
        count = self._nvml.nvmlDeviceGetCount()
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

    def _with_links(self, gpus: list[GPU]) -> tuple[GPU, ...]:
        """Adds link groups. Lost GPUs keep their last group."""
        well = [(gpu.index, gpu.uuid) for gpu in gpus if gpu.healthy]
        try:
            groups = self._links.of(well)
        except self._nvml.NVMLError as error:
            # A GPU was lost since it was read; the next reading says so.
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
        """The last known state of a GPU that does not answer: unhealthy, without processes.

        A GPU that was read is left out, because indices may change.
        """
        known = self._known.get(index) or self._recalled.get(index)
        if known is None or known.uuid in read:
            log.warning("GPU unreadable", index=index, error=str(error))
            return None
        word = "lost" if is_lost(self._nvml, error) else UNREADABLE
        return GPU(
            uuid=known.uuid,
            index=index,
            model=known.model,
            memory_total_bytes=known.memory_total_bytes,
            memory_used_bytes=known.memory_used_bytes,
            memory_reserved_bytes=known.memory_reserved_bytes,
            healthy=False,
            health_message=f"{word}: {error}"[:256],
        )

    def _read_gpu(self, index: int) -> GPU:
        nvml = self._nvml
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(nvml.nvmlDeviceGetUUID(handle))
        memory = self._memory(handle)
        rates = optional(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        problem = self._health.problem(handle, uuid)
        return GPU(
            uuid=uuid,
            index=index,
            model=text(nvml.nvmlDeviceGetName(handle)),
            memory_total_bytes=memory.total,
            memory_used_bytes=memory.used,
            memory_reserved_bytes=memory.reserved,
            utilization_percent=_percent(rates.gpu if rates is not None else 0.0),
            power_watts=_scaled(optional(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
            energy_joules=_scaled(
                optional(nvml, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            ),
            temperature_celsius=_finite(
                optional(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, 0))
            ),
            healthy=problem == "",
            health_message=problem,
            processes=self._processes(handle, uuid, memory),
        )

    def _memory(self, handle: object) -> _Memory:
        """Version 2 reports the driver's reservation separately; version 1 counts it as used."""
        nvml = self._nvml
        version = getattr(nvml, "nvmlMemory_v2", None)
        info = None
        if version is not None:
            info = optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=version))
        if info is None:
            info = nvml.nvmlDeviceGetMemoryInfo(handle)
        reserved = int(getattr(info, "reserved", 0) or 0)
        return _Memory(int(info.total), int(info.used), reserved)

    def _processes(self, handle: object, uuid: str, memory: _Memory) -> tuple[GPUProcess, ...]:
        used = self._memory_by_process(handle)
        unknown = [pid for pid, amount in used.items() if amount is None]
        known_bytes = sum(amount for amount in used.values() if amount is not None)
        # If the driver does not report memory by process, the processes share what remains.
        left = max(0, memory.used - memory.reserved - known_bytes) // max(1, len(unknown))
        busy = self._utilization_by_process(handle, uuid)
        processes = [
            GPUProcess(
                pid=pid,
                memory_bytes=left if amount is None else amount,
                pod_uid=self._owner(pid),
                utilization_percent=busy.get(pid, 0.0) if busy is not None else None,
            )
            for pid, amount in sorted(used.items())
        ]
        return tuple(processes[:PROCESSES_MAX])

    def _memory_by_process(self, handle: object) -> dict[int, int | None]:
        nvml = self._nvml
        used: dict[int, int | None] = {}
        for name in (
            "nvmlDeviceGetComputeRunningProcesses",
            "nvmlDeviceGetGraphicsRunningProcesses",
        ):
            for process in optional(nvml, lambda name=name: getattr(nvml, name)(handle), ()):
                amount = process.usedGpuMemory
                used[int(process.pid)] = None if amount is None else int(amount)
        return used

    def _utilization_by_process(self, handle: object, uuid: str) -> Mapping[int, float] | None:
        """Mean SM utilization of each process since the last reading; None if unsupported."""
        nvml = self._nvml
        since = self._utilization_since.get(uuid, 0)
        samples = optional(nvml, lambda: nvml.nvmlDeviceGetProcessUtilization(handle, since))
        if samples is None:
            # NVML also answers "not found" if no process has used the GPU since then.
            return {} if uuid in self._utilization_since else None
        newest = max((int(sample.timeStamp) for sample in samples), default=since)
        self._utilization_since[uuid] = newest
        busy: dict[int, list[float]] = {}
        for sample in samples:
            if int(sample.timeStamp) > since:
                busy.setdefault(int(sample.pid), []).append(_percent(sample.smUtil))
        return {pid: sum(values) / len(values) for pid, values in busy.items()}


def _percent(value: object) -> float:
    number = _finite(value)
    return 0.0 if number is None else min(100.0, max(0.0, number))


def _finite(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _scaled(milli: object) -> float | None:
    """NVML reports power in milliwatts and energy in millijoules."""
    number = _finite(milli)
    return None if number is None else number / 1000
