"""NVML that says what a JSON file says: cards with faults, for tests.

GPUJOB_SCRIPTED_CARDS names the file; it is read again whenever it changes. Its form:

    {"driverVersion": "1", "error": null,
     "cards": [{"uuid": "GPU-1", "model": "A", "memoryTotalBytes": 1, "memoryReservedBytes": 0,
                "memoryUsedBytes": 0, "utilizationPercent": 0, "powerWatts": null,
                "energyJoules": null, "temperatureCelsius": null, "eccErrors": null, "xids": [79],
                "processes": [{"pid": 1, "memoryBytes": 1, "utilizationPercent": 0}],
                "errors": {"nvmlDeviceGetMemoryInfo": 15, "*": 15}}]}

Values are passed on untouched, so NaN and used above total arrive at the agent. An `error` (an
NVML error code) at the top makes every call fail; `errors` of a card those on this card. A card
that leaves the file is lost; a file that does not change is a card that is frozen.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from gpujob_operator.agent.nvml_surface import GPUReading, NvmlSurface, ProcessReading, error

SCRIPT_VARIABLE = "GPUJOB_SCRIPTED_CARDS"


def card_reading(item: dict[str, Any]) -> GPUReading:
    """Returns one card of the script. Raises `KeyError` naming the missing field."""
    processes = tuple(
        ProcessReading(entry["pid"], entry["memoryBytes"], entry.get("utilizationPercent", 0.0))
        for entry in item.get("processes", [])
    )
    return GPUReading(
        uuid=item["uuid"],
        model=item.get("model", "Scripted card"),
        memory_total_bytes=item["memoryTotalBytes"],
        memory_reserved_bytes=item.get("memoryReservedBytes", 0),
        memory_used_bytes=item.get("memoryUsedBytes", 0),
        utilization_percent=item.get("utilizationPercent", 0.0),
        processes=processes,
        power_watts=item.get("powerWatts"),
        energy_joules=item.get("energyJoules"),
        temperature_celsius=item.get("temperatureCelsius"),
        ecc_errors=item.get("eccErrors"),
        xids=tuple(item.get("xids", ())),
        errors=item.get("errors", {}),
    )


class _Source:
    def __init__(self) -> None:
        self._stamp: tuple[int, int, int] | None = None
        self._script: dict[str, Any] = {}
        self._time_microseconds = 0

    def open(self) -> None:
        self._reload()

    def driver_version(self) -> str:
        return str(self._script.get("driverVersion", "scripted"))

    def read(self) -> list[GPUReading]:
        self._reload()
        if self._script.get("error") is not None:
            raise error(self._script["error"])
        return [card_reading(item) for item in self._script["cards"]]

    def time_microseconds(self) -> int:
        return self._time_microseconds

    def _reload(self) -> None:
        path = Path(os.environ[SCRIPT_VARIABLE])
        status = path.stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
        if stamp != self._stamp:
            self._script = json.loads(path.read_text())
            self._stamp = stamp
            self._time_microseconds = time.time_ns() // 1000
        if self._script.get("error") is not None:
            raise error(self._script["error"])


_surface = NvmlSurface(_Source())


def __getattr__(name: str) -> Any:
    return _surface.lookup(name)
