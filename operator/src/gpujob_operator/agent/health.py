"""Decides whether a GPU is healthy. Uncorrectable memory errors, failed row remapping and critical
XIDs make it unhealthy.
"""

from gpujob_operator.agent.nvml import Nvml, optional
from gpujob_operator.logs import Log

log = Log(__name__)

# XIDs that a program causes, not the GPU (NVIDIA's XID catalogue): 13 graphics engine exception, 31
# memory page fault, 43 reset channel, 45 preemptive cleanup, 68 video processor.
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 45, 68})
EVENTS_PER_READING_MAX = 64


class GPUHealth:
    """Remembers critical XIDs: a GPU that had one stays unhealthy until the agent restarts."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._critical: dict[str, int] = {}
        self._registered: set[str] = set()
        self._events = self._event_set()

    def problem(self, handle: object, uuid: str) -> str:
        """Why the GPU is unhealthy; empty if it is healthy."""
        self._register(handle, uuid)
        self._collect()
        if uuid in self._critical:
            return f"XID {self._critical[uuid]}"
        errors = self._uncorrected(handle)
        if errors:
            return f"{errors} uncorrectable memory errors since boot"
        nvml = self._nvml
        rows = optional(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
        if rows is not None and rows[3]:
            return "row remapping failed: the memory has no spare rows left"
        return ""

    def _event_set(self) -> object | None:
        nvml = self._nvml
        if not hasattr(nvml, "nvmlEventTypeXidCriticalError"):
            return None
        return optional(nvml, lambda: nvml.nvmlEventSetCreate())

    def _register(self, handle: object, uuid: str) -> None:
        if self._events is None or uuid in self._registered:
            return
        nvml = self._nvml
        self._registered.add(uuid)
        kind = nvml.nvmlEventTypeXidCriticalError
        optional(nvml, lambda: nvml.nvmlDeviceRegisterEvents(handle, kind, self._events))

    def _collect(self) -> None:
        """Collects XID events since the last reading without waiting."""
        nvml = self._nvml
        if self._events is None:
            return
        for _ in range(EVENTS_PER_READING_MAX):
            event = optional(nvml, lambda: nvml.nvmlEventSetWait(self._events, 0))
            if event is None:
                return
            self._note(event)

    def _note(self, event: object) -> None:
        nvml = self._nvml
        xid = int(getattr(event, "eventData", 0))
        device = getattr(event, "device", None)
        uuid = optional(nvml, lambda: nvml.nvmlDeviceGetUUID(device), "")
        log.warning("xid", uuid=str(uuid), xid=xid)
        if xid not in XIDS_OF_PROGRAMS:
            name = uuid.decode() if isinstance(uuid, bytes) else str(uuid)
            self._critical.setdefault(name, xid)

    def _uncorrected(self, handle: object) -> int:
        nvml = self._nvml
        kind = getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1)
        since_boot = getattr(nvml, "NVML_VOLATILE_ECC", 0)
        errors = optional(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, kind, since_boot))
        return int(errors) if isinstance(errors, int) else 0
