"""NVML for the CPU cards of a process node, a substitute for `pynvml` with GPUs.

The cards are in the JSON file that GPUJOB_CPU_CARDS names (`cpu_cards.write_cards` writes it).
"""

import os
from pathlib import Path
from typing import Any

from gpujob_local.gpus.cpu_cards import open_cards
from gpujob_operator.agent.cpu.source import CpuCardSource, nvml_of_cpu_cards

CARDS_VARIABLE = "GPUJOB_CPU_CARDS"


def _open() -> CpuCardSource:
    """Opens the cards at nvmlInit, so that importing this module needs none."""
    path = os.environ.get(CARDS_VARIABLE)
    if not path:
        raise ValueError(f"{CARDS_VARIABLE} is not set: it names the file with the CPU cards")
    return open_cards(Path(path))


_surface = nvml_of_cpu_cards(_open)


def __getattr__(name: str) -> Any:
    return _surface.lookup(name)
