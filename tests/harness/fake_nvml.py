"""pynvml's functions over cards that a test scripts: what NVML says, refuses and gets wrong."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

GIB = 1024**3


class NVMLError(Exception):
    def __init__(self, value: int = 999) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


NOT_SUPPORTED = 3
NOT_FOUND = 6
GPU_IS_LOST = 15


@dataclass(slots=True)
class FakeCard:
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

    def __init__(self, *cards: FakeCard) -> None:
        self.cards = list(cards)
        self.broken = False
        self.inits = 0
        self.xids: list[tuple[FakeCard, int]] = []
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
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeCard:  # noqa: N802
        if index >= len(self.cards):
            raise NVMLError(2)
        card = self.cards[index]
        self._check(card, "nvmlDeviceGetHandleByIndex")
        return card

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> FakeCard:  # noqa: N802
        card = next((card for card in self.cards if card.uuid == uuid), None)
        if card is None:
            raise NVMLError(NOT_FOUND)
        return card

    def nvmlDeviceGetUUID(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetUUID")
        return card.uuid

    def nvmlDeviceGetName(self, card: FakeCard) -> Any:  # noqa: N802
        return card.model

    def nvmlDeviceGetMemoryInfo(self, card: FakeCard, version: int | None = None) -> Any:  # noqa: N802
        name = "nvmlDeviceGetMemoryInfo" + ("_v2" if version else "")
        self._check(card, name)
        memory = SimpleNamespace(total=card.total, used=card.used)
        if version:
            memory.reserved = card.reserved
        return memory

    def nvmlDeviceGetUtilizationRates(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=card.utilization)

    def nvmlDeviceGetPowerUsage(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetPowerUsage")
        return card.power

    def nvmlDeviceGetTotalEnergyConsumption(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetTotalEnergyConsumption")
        return card.energy

    def nvmlDeviceGetTemperature(self, card: FakeCard, sensor: int) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetTemperature")
        return card.temperature

    def nvmlDeviceGetComputeRunningProcesses(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in card.compute.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, card: FakeCard) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetGraphicsRunningProcesses")
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in card.graphics.items()]

    def nvmlDeviceGetProcessUtilization(self, card: FakeCard, since: int) -> Any:  # noqa: N802
        self._check(card, "nvmlDeviceGetProcessUtilization")
        newer = [one for one in card.samples if one[1] > since]
        if not newer:
            raise NVMLError(NOT_FOUND)
        return [SimpleNamespace(pid=p, timeStamp=t, smUtil=u) for p, t, u in newer]

    def nvmlDeviceGetTotalEccErrors(self, card: FakeCard, kind: int, counter: int) -> int:  # noqa: N802
        self._check(card, "nvmlDeviceGetTotalEccErrors")
        return card.ecc_errors

    def nvmlDeviceGetRemappedRows(self, card: FakeCard) -> tuple[int, int, int, int]:  # noqa: N802
        self._check(card, "nvmlDeviceGetRemappedRows")
        return 0, 0, 0, int(card.remap_failed)

    def nvmlDeviceGetP2PStatus(self, one: FakeCard, other: FakeCard, kind: int) -> int:  # noqa: N802
        self.link_questions += 1
        self._check(one, "nvmlDeviceGetP2PStatus")
        pair = sorted((self.cards.index(one), self.cards.index(other)))
        return 0 if tuple(pair) in self.nvlinks else 1

    def nvmlDeviceGetTopologyCommonAncestor(self, one: FakeCard, other: FakeCard) -> int:  # noqa: N802
        self._check(one, "nvmlDeviceGetTopologyCommonAncestor")
        nodes = [self.numa.get(self.cards.index(card)) for card in (one, other)]
        if None in nodes:
            raise NVMLError(NOT_SUPPORTED)
        return 20 if nodes[0] == nodes[1] else 50

    def nvmlEventSetCreate(self) -> object:  # noqa: N802
        return object()

    def nvmlDeviceRegisterEvents(self, card: FakeCard, kind: int, events: object) -> None:  # noqa: N802
        self._check(card, "nvmlDeviceRegisterEvents")

    def nvmlEventSetWait(self, events: object, milliseconds: int) -> Any:  # noqa: N802
        if not self.xids:
            raise NVMLError(10)
        card, xid = self.xids.pop(0)
        return SimpleNamespace(device=card, eventData=xid)

    def _check(self, card: FakeCard | None, name: str) -> None:
        if self.broken:
            raise NVMLError(1)
        if card is not None and "*" in card.errors:
            raise NVMLError(card.errors["*"])
        if card is not None and name in card.errors:
            raise NVMLError(card.errors[name])
