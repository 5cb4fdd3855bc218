"""NVML for CPU cards: use this module where `pynvml` is used on a machine with GPUs.

The cards are in the JSON file that GPUJOB_CPU_CARDS names (`cpu_cards.write_cards` writes it).
"""

import os
from pathlib import Path
from typing import Any

from gpujob_local.gpus.cpu_cards import CpuCardSource, read_cards
from gpujob_local.gpus.nvml_surface import CardReading, NvmlSurface

CARDS_VARIABLE = "GPUJOB_CPU_CARDS"


class _Source:
    """Opens the file at nvmlInit, so that importing this module needs no cards."""

    def __init__(self) -> None:
        self._gpus = CpuCardSource(())

    def open(self) -> None:
        path = os.environ.get(CARDS_VARIABLE)
        if not path:
            raise ValueError(f"{CARDS_VARIABLE} is not set: it names the file with the CPU cards")
        self._gpus = CpuCardSource(read_cards(Path(path)))

    def driver_version(self) -> str:
        return f"cpu-cards-{os.uname().release}"

    def read(self) -> list[CardReading]:
        return self._gpus.read()

    def time_microseconds(self) -> int:
        return self._gpus.time_microseconds()


_surface = NvmlSurface(_Source())


def __getattr__(name: str) -> Any:
    return _surface.lookup(name)
