"""Readings of a node's CPU cards: what their processes use, in the form of NVML's readings.

`nvml_of_cpu_cards` creates the replacement for the module `pynvml`.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpujob_operator.agent.cpu.cards import CpuCard
from gpujob_operator.agent.cpu.processes import BoundProcess, DevicesOf, bound_processes
from gpujob_operator.agent.nvml_surface import GPUReading, NvmlSurface, ProcessReading

# Readings younger than this are returned again, because an agent requests several figures at once.
READING_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Sample:
    monotonic_seconds: float
    time_microseconds: int
    processes: dict[int, BoundProcess]


class CpuCardSource:
    """Utilization is the CPU time between two readings, as a fraction of one core.

    A process with several CPU cards counts in equal parts on each.
    """

    def __init__(
        self,
        cards: tuple[CpuCard, ...],
        devices_of: DevicesOf,
        *,
        proc: Path = Path("/proc"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cards = cards
        self._devices_of = devices_of
        self._proc = proc
        self._monotonic = monotonic
        self._newest = self._sample()
        self._readings = [self._reading(card, self._newest) for card in cards]

    def read(self) -> list[GPUReading]:
        previous = self._newest
        if self._monotonic() - previous.monotonic_seconds >= READING_SECONDS:
            self._newest = self._sample()
            self._readings = [self._reading(card, previous) for card in self.cards]
        return self._readings

    def time_microseconds(self) -> int:
        return self._newest.time_microseconds

    def _sample(self) -> _Sample:
        uuids = [card.uuid for card in self.cards]
        processes = bound_processes(uuids, self._devices_of, self._proc)
        return _Sample(self._monotonic(), time.time_ns() // 1000, processes)

    def _reading(self, card: CpuCard, previous: _Sample) -> GPUReading:
        processes = tuple(
            self._process_reading(process, previous)
            for process in self._newest.processes.values()
            if card.uuid in process.cards
        )
        # A full GPU refuses allocations. Here more can be in use than exists, which NVML cannot
        # express. The processes' own figures stay correct.
        usable_bytes = card.memory_bytes - card.reserved_bytes
        return GPUReading(
            uuid=card.uuid,
            model=card.model,
            memory_total_bytes=card.memory_bytes,
            memory_reserved_bytes=card.reserved_bytes,
            memory_used_bytes=min(usable_bytes, sum(process.memory_bytes for process in processes)),
            utilization_percent=min(100.0, sum(p.utilization_percent for p in processes)),
            processes=processes,
        )

    def _process_reading(self, process: BoundProcess, previous: _Sample) -> ProcessReading:
        window = self._newest.monotonic_seconds - previous.monotonic_seconds
        before = previous.processes.get(process.pid)
        known = before is not None and before.started_ticks == process.started_ticks
        used = process.cpu_seconds - (before.cpu_seconds if before and known else 0.0)
        share = len(process.cards)
        percent = min(100.0, 100 * used / window / share) if window > 0 else 0.0
        return ProcessReading(process.pid, process.memory_bytes // share, percent)


class _OpenedLate:
    """A source that is opened at nvmlInit, and again after NVML failed."""

    def __init__(self, opener: Callable[[], CpuCardSource]) -> None:
        self._opener = opener
        self._cards: CpuCardSource | None = None

    def open(self) -> None:
        self._cards = self._opener()

    def driver_version(self) -> str:
        return f"cpu-cards-{os.uname().release}"

    def read(self) -> list[GPUReading]:
        return self._cards.read() if self._cards is not None else []

    def time_microseconds(self) -> int:
        return self._cards.time_microseconds() if self._cards is not None else 0


def nvml_of_cpu_cards(opener: Callable[[], CpuCardSource]) -> NvmlSurface:
    """Returns NVML's functions over CPU cards. nvmlInit raises what `opener` raises."""
    return NvmlSurface(_OpenedLate(opener))
