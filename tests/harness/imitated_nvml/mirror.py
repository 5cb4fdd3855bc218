"""An imitated GPU that shows the processes bound to it, as a driver does."""

import threading
import time
from pathlib import Path

from tests.harness.imitated_nvml import ImitatedDriver, ImitatedProcess

INTERVAL_SECONDS = 0.2
IDLE_WATTS, WATTS_PER_PERCENT = 100.0, 4.0


class MirroredGPU:
    """Keeps the first GPU of a driver up to date in a thread.

    A process that CUDA shows the GPU uses its own memory of it, and `busy_percent` of its time.
    """

    def __init__(self, driver: ImitatedDriver, busy_percent: int) -> None:
        self._driver = driver
        self._busy_percent = busy_percent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "MirroredGPU":
        self._update()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            self._update()

    def _update(self) -> None:
        gpu = self._driver.gpus[0]
        used = bound_memory(gpu.uuid)
        now = time.time_ns() // 1000
        busy = min(100, self._busy_percent * len(used))
        watts = IDLE_WATTS + WATTS_PER_PERCENT * busy
        gpu.processes = [ImitatedProcess(pid, amount) for pid, amount in used.items()]
        gpu.samples = [(pid, now, self._busy_percent) for pid in used]
        gpu.memory_used_bytes = sum(used.values())
        gpu.utilization_percent, gpu.power_milliwatts = busy, round(1000 * watts)
        gpu.energy_millijoules = (gpu.energy_millijoules or 0) + round(
            1000 * watts * INTERVAL_SECONDS
        )
        self._driver.write()


def bound_memory(uuid: str) -> dict[int, int]:
    """The processes of pods that CUDA shows the GPU, with what they have of memory in bytes."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            status = (folder / "status").read_text(errors="replace")
        except OSError:
            continue
        is_pods = any(entry.startswith(b"GPUJOB_POD_UID=") for entry in environment)
        if is_pods and f"CUDA_VISIBLE_DEVICES={uuid}".encode() in environment:
            found[int(folder.name)] = _anonymous_bytes(status)
    return found


def _anonymous_bytes(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0
