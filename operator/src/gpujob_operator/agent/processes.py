"""The processes on a GPU: their pods, their memory, and how busy they were.

A list that NVML fails to return is an error and not an empty list. Otherwise the jobs' use would
seem to belong to unmanaged processes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from gpujob_api.gpunode import PROCESSES_MAX, GPUProcess
from gpujob_operator.agent.nvml import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    NOT_FOUND,
    SUCCESS,
    Nvml,
    cannot_tell,
    code_of,
    is_lost,
)

# Returns the UID of the process's pod, or None for an unmanaged process.
Owner = Callable[[int], str | None]

# pynvml allocates space for twice as many processes as there were, but more can start meanwhile.
LIST_TRIES = 3
# Version 3 of the lists came with R510, with the structure of version 2. Under the name without a
# version, pynvml raises an exception that is not an NVMLError for an older driver.
_LISTS = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
_VERSIONS = ("_v3", "_v2")


class ProcessReader:
    """Reads processes. It remembers which samples of utilization it has seen of each GPU."""

    def __init__(self, nvml: Nvml, owner: Owner) -> None:
        self._nvml = nvml
        self._owner = owner
        self._samples_seen_until: dict[str, int] = {}

    def read(
        self,
        handle: object,
        used_bytes: int,
        busy: Mapping[int, float | None] | None,
        *,
        full: bool = False,
    ) -> tuple[GPUProcess, ...]:
        """Returns the processes on the GPU. `used_bytes` is what all of them use together, and
        `busy` their `utilization`.

        On a `full` GPU, whose memory may count for two processes (managed memory, CPU cards), a
        process has no more than that. Raises the module's NVMLError.
        """
        used = self._memory_by_process(handle)
        if full:
            used = {
                pid: None if amount is None else min(amount, used_bytes)
                for pid, amount in used.items()
            }
        unknown = [pid for pid, amount in used.items() if amount is None]
        known_bytes = sum(amount for amount in used.values() if amount is not None)
        # If the driver does not report memory by process, the processes share what remains.
        left = max(0, used_bytes - known_bytes) // max(1, len(unknown))
        processes = [
            GPUProcess(
                pid=pid,
                memory_bytes=left if amount is None else amount,
                pod_uid=self._owner(pid),
                utilization_percent=busy.get(pid, 0.0) if busy is not None else None,
                memory_estimated=amount is None,
            )
            for pid, amount in sorted(used.items())
        ]
        return tuple(processes[:PROCESSES_MAX])

    def _memory_by_process(self, handle: object) -> dict[int, int | None]:
        used: dict[int, int | None] = {}
        for name in _LISTS:
            for process in self._list(name, handle):
                amount = process.usedGpuMemory
                used[int(process.pid)] = None if amount is None else int(amount)
        return used

    def _list(self, name: str, handle: object) -> list[Any]:
        """Lists processes by the newest version of the function that the driver has."""
        for version in _VERSIONS:
            if not hasattr(self._nvml, name + version):
                continue
            function = getattr(self._nvml, name + version)
            try:
                return self._asked(lambda function=function: function(handle))
            except self._nvml.NVMLError as error:
                if code_of(error) == FUNCTION_NOT_FOUND:
                    continue
                if cannot_tell(error):
                    return []
                raise
        return []

    def _asked(self, ask: Callable[[], list[Any]]) -> list[Any]:
        """Calls again if there was too little space."""
        for _ in range(LIST_TRIES - 1):
            try:
                return ask()
            except self._nvml.NVMLError as error:
                if code_of(error) != INSUFFICIENT_SIZE:
                    raise
        return ask()

    def utilization(self, handle: object, uuid: str) -> Mapping[int, float | None] | None:
        """Returns the SM utilization of each process in samples newer than those of the last call.
        None if unsupported. Raises the module's NVMLError for a lost GPU.
        """
        nvml = self._nvml
        since = self._samples_seen_until.get(uuid, 0)
        try:
            samples = self._asked(lambda: nvml.nvmlDeviceGetProcessUtilization(handle, since))
        except AttributeError:
            return None
        except nvml.NVMLError as error:
            if is_lost(error):
                raise
            # Nothing ran since then. pynvml raises its own "success" for an empty list.
            idle = code_of(error) in (NOT_FOUND, SUCCESS) and uuid in self._samples_seen_until
            return {} if idle else None
        new = [sample for sample in samples if int(sample.timeStamp) > since]
        # Drivers sometimes report impossible samples, above 100 %.
        sound = [sample for sample in new if 0 <= sample.smUtil <= 100]
        newest = max((int(sample.timeStamp) for sample in sound), default=since)
        self._samples_seen_until[uuid] = newest
        means: dict[int, float | None] = dict.fromkeys((int(sample.pid) for sample in new), None)
        busy: dict[int, list[float]] = {}
        for sample in sound:
            busy.setdefault(int(sample.pid), []).append(float(sample.smUtil))
        return means | {pid: sum(values) / len(values) for pid, values in busy.items()}
