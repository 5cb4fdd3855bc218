"""Decides whether a GPU is fit for work.

Uncorrectable errors, failed remapping, MIG mode and XIDs of hardware make it unhealthy.
"""

import ctypes
from collections.abc import Callable, Iterable

from gpujob_operator.agent.nvml import Nvml, optional, text
from gpujob_operator.agent.xids import XIDMemory, hardware_problem
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

EVENTS_PER_READING_MAX = 64
MIG_INSTANCES_MAX = 64
# Returns the pods on a GPU, by its UUID.
PodsOn = Callable[[str], Iterable[str]]


class GPUHealth:
    """GPU health for one session of NVML. What must outlive the session is in the memory
    of XIDs.
    """

    def __init__(self, nvml: Nvml, xids: XIDMemory) -> None:
        self.xids = xids
        self._nvml = nvml
        # The GPU's handle by UUID, because the UUID of a lost GPU cannot be read any more.
        self._registered: dict[str, object] = {}
        self._events = self._event_set()

    def collect(self, pods_on: PodsOn) -> None:
        """Collects the XIDs since the last reading. It waits for nothing.

        NVML's wait fails for all GPUs if one of them is lost. The GPUs' own figures show which one.
        """
        nvml = self._nvml
        for _ in range(EVENTS_PER_READING_MAX if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait(self._events, 0)
            except (nvml.NVMLError, AttributeError):
                return
            self._note(event, pods_on)

    def problem(self, handle: object, uuid: str, index: int) -> str:
        """Returns why the GPU is unhealthy, or ""."""
        self._register(handle, uuid)
        broken = hardware_problem(self.xids.of(uuid))
        if broken:
            return broken
        errors = self._uncorrected(handle)
        if errors:
            return f"{errors} uncorrectable memory errors since boot"
        nvml = self._nvml
        rows = optional(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        if rows is not None and rows[3]:
            return "row remapping failed: the memory has no spare rows left"
        return self._mig(handle, index)

    def _mig(self, handle: object, index: int) -> str:
        """Returns why a GPU in MIG mode is unusable: it opens no device under its own UUID."""
        nvml = self._nvml
        modes = optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
        if modes is None or modes[0] != getattr(nvml, "NVML_DEVICE_MIG_ENABLE", 1):
            return ""
        most = optional(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle), 0)
        instances = [
            optional(nvml, lambda n=n: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, n))
            for n in range(min(most, MIG_INSTANCES_MAX))
        ]
        count = sum(1 for instance in instances if instance is not None)
        return (
            f"MIG mode is on, with {count} instances: only whole GPUs are used; "
            f"nvidia-smi -i {index} -mig 0 turns it off"
        )

    def _uncorrected(self, handle: object) -> int:
        nvml = self._nvml
        kind = getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
        since_boot = getattr(nvml, "NVML_VOLATILE_ECC", 0)
        errors = optional(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_boot))
        return int(errors) if isinstance(errors, int) else 0

    def _event_set(self) -> object | None:
        nvml = self._nvml
        if not hasattr(nvml, "nvmlEventTypeXidCriticalError"):
            return None
        return optional(nvml, lambda: nvml.nvmlEventSetCreate())

    def _register(self, handle: object, uuid: str) -> None:
        if self._events is None or uuid in self._registered:
            return
        nvml = self._nvml
        kind = nvml.nvmlEventTypeXidCriticalError
        optional(nvml, lambda: nvml.nvmlDeviceRegisterEvents(handle, kind, self._events))
        self._registered[uuid] = handle

    def _note(self, event: object, pods_on: PodsOn) -> None:
        xid = int(getattr(event, "eventData", 0))
        uuid = self._uuid_of(getattr(event, "device", None))
        log.warning("xid", uuid=uuid, xid=xid)
        if uuid:
            self.xids.note(uuid, xid, pods_on(uuid))

    def _uuid_of(self, device: object) -> str:
        """Returns the UUID, or "" for a GPU that was never read."""
        wanted = _address(device)
        for uuid, handle in self._registered.items():
            if _address(handle) == wanted:
                return uuid
        try:
            return text(self._nvml.nvmlDeviceGetUUID(device))
        except self._nvml.NVMLError:
            return ""


def _address(handle: object) -> object:
    """Returns what is equal for two handles of one GPU. For a pointer it is the address."""
    try:
        return ctypes.cast(handle, ctypes.c_void_p).value  # pyright: ignore[reportArgumentType]
    except ctypes.ArgumentError:
        return handle
