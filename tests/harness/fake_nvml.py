"""pynvml's functions over GPUs that a test scripts: what NVML says, refuses and gets wrong."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from gpujob_api.gpunode import GPU
from gpujob_operator.agent.health import GPUHealth
from gpujob_operator.agent.processes import Owner
from gpujob_operator.agent.readings import GPUReader
from gpujob_operator.agent.xids import XIDMemory

GIB = 1024**3


class NVMLError(Exception):
    def __init__(self, value: int = 999) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED = 3
NOT_FOUND = 6
GPU_IS_LOST = 15


@dataclass(slots=True)
class FakeGPU:
    uuid: Any = "GPU-0"
    model: Any = b"NVIDIA A10"
    total: int = 24 * GIB
    used: int = GIB
    reserved: int = GIB // 2
    utilization: Any = 40
    power: Any = 150_000
    energy: Any = 5_000
    temperature: Any = 55
    # pid -> bytes or None
    compute: dict[int, int | None] = field(default_factory=dict[int, int | None])
    graphics: dict[int, int | None] = field(default_factory=dict[int, int | None])
    # (pid, time stamp, SM utilization)
    samples: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    ecc_errors: int = 0
    remap_failed: bool = False
    # Names of functions that raise, with the error's number.
    errors: dict[str, int] = field(default_factory=dict[str, int])


class FakeNvml:
    """Hand it to the agent in place of the module."""

    NVMLError = NVMLError
    NVML_ERROR_GPU_IS_LOST = GPU_IS_LOST
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    nvmlMemory_v2 = 2  # noqa: N815
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    NVML_P2P_CAPS_INDEX_NVLINK = 2
    NVML_P2P_STATUS_OK = 0
    NVML_TOPOLOGY_NODE = 40

    def __init__(self, *gpus: FakeGPU) -> None:
        self.gpus = list(gpus)
        self.broken = False
        self.inits = 0
        self.xids: list[tuple[FakeGPU, int]] = []
        # Pairs of positions that NVLink joins; NUMA node by position, absent: cannot tell.
        self.nvlinks: set[tuple[int, int]] = set()
        self.numa: dict[int, int] = {}
        self.link_questions = 0

    def nvmlInit(self) -> None:  # noqa: N802
        self.inits += 1
        self._check(None, "nvmlInit")

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"580.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._check(None, "nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGPU:  # noqa: N802
        if index >= len(self.gpus):
            raise NVMLError(2)
        gpu = self.gpus[index]
        self._check(gpu, "nvmlDeviceGetHandleByIndex")
        return gpu

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeGPU:  # noqa: N802
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if gpu is None:
            raise NVMLError(NOT_FOUND)
        return gpu

    def nvmlDeviceGetUUID(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetUUID")
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGPU) -> Any:  # noqa: N802
        return gpu.model

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGPU, version: int | None = None) -> Any:  # noqa: N802
        name = "nvmlDeviceGetMemoryInfo" + ("_v2" if version else "")
        self._check(gpu, name)
        memory = SimpleNamespace(total=gpu.total, used=gpu.used)
        if version:
            memory.reserved = gpu.reserved
        return memory

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=gpu.utilization)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetPowerUsage")
        return gpu.power

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetTotalEnergyConsumption")
        return gpu.energy

    def nvmlDeviceGetTemperature(self, gpu: FakeGPU, sensor: int) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetTemperature")
        return gpu.temperature

    def nvmlDeviceGetComputeRunningProcesses_v3(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in gpu.compute.items()]

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, gpu: FakeGPU) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetGraphicsRunningProcesses")
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in gpu.graphics.items()]

    nvmlDeviceGetComputeRunningProcesses = nvmlDeviceGetComputeRunningProcesses_v3  # noqa: N815
    nvmlDeviceGetGraphicsRunningProcesses = nvmlDeviceGetGraphicsRunningProcesses_v3  # noqa: N815

    def nvmlDeviceGetProcessUtilization(self, gpu: FakeGPU, since: int) -> Any:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetProcessUtilization")
        newer = [one for one in gpu.samples if one[1] > since]
        if not newer:
            raise NVMLError(NOT_FOUND)
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in newer]

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGPU, kind: int, counter: int) -> int:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetTotalEccErrors")
        return gpu.ecc_errors

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGPU) -> tuple[int, int, int, int]:  # noqa: N802
        self._check(gpu, "nvmlDeviceGetRemappedRows")
        return 0, 0, 0, int(gpu.remap_failed)

    def nvmlDeviceGetP2PStatus(self, one: FakeGPU, other: FakeGPU, kind: int) -> int:  # noqa: N802
        self.link_questions += 1
        self._check(one, "nvmlDeviceGetP2PStatus")
        pair = sorted((self.gpus.index(one), self.gpus.index(other)))
        return 0 if tuple(pair) in self.nvlinks else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeGPU, other: FakeGPU) -> int:  # noqa: N802
        self._check(one, "nvmlDeviceGetTopologyCommonAncestor")
        nodes = [self.numa.get(self.gpus.index(gpu)) for gpu in (one, other)]
        if None in nodes:
            raise NVMLError(NOT_SUPPORTED)
        return 20 if nodes[0] == nodes[1] else 50

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, gpu: FakeGPU, kind: int, events: object) -> None:  # noqa: N802
        self._check(gpu, "nvmlDeviceRegisterEvents")

    def nvmlEventSetWait(self, events: object, milliseconds: int) -> Any:  # noqa: N802
        if not self.xids:
            raise NVMLError(10)
        gpu, xid = self.xids.pop(0)
        return SimpleNamespace(device=gpu, eventData=xid)

    def _check(self, gpu: FakeGPU | None, name: str) -> None:
        if self.broken:
            raise NVMLError(1)
        if gpu is not None and "*" in gpu.errors:
            raise NVMLError(gpu.errors["*"])
        if gpu is not None and name in gpu.errors:
            raise NVMLError(gpu.errors[name])


def reader_of(nvml: Any, owner: Owner, recalled: tuple[GPU, ...] = ()) -> GPUReader:
    """As an agent has it that starts now and knows what an earlier one published."""
    xids = XIDMemory(recalled, lambda: datetime.now(UTC))
    return GPUReader(nvml, owner, GPUHealth(nvml, xids), recalled)
