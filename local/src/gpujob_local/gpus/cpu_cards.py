"""CPU cards: one processor core and a slice of memory each, standing in for a GPU.

They are measured, not scripted: what a card reports is what the processes bound to it really use.
A process is bound by naming the card's UUID in NVIDIA_VISIBLE_DEVICES, as with the NVIDIA
container toolkit; processes that name several cards are counted in equal parts on each.
"""

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpujob_local.gpus.nvml_surface import CardReading, ProcessReading

VISIBLE_DEVICES = b"NVIDIA_VISIBLE_DEVICES="
# Readings younger than this are served again: an agent asks for several figures at once.
READING_SECONDS = 0.2
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class CpuCard:
    """`reserved_bytes` plays the part of what a driver keeps for itself."""

    uuid: str
    core: int
    memory_bytes: int
    reserved_bytes: int = 0
    model: str = "CPU card"

    def to_json(self) -> dict[str, str | int]:
        return {
            "uuid": self.uuid,
            "core": self.core,
            "memoryBytes": self.memory_bytes,
            "reservedBytes": self.reserved_bytes,
            "model": self.model,
        }


def write_cards(path: Path, cards: Iterable[CpuCard]) -> None:
    path.write_text(json.dumps([card.to_json() for card in cards], indent=1))


def read_cards(path: Path) -> tuple[CpuCard, ...]:
    """Reads what `write_cards` writes. Raises `ValueError` naming the file for anything else."""
    try:
        return tuple(
            CpuCard(
                uuid=str(item["uuid"]),
                core=int(item["core"]),
                memory_bytes=int(item["memoryBytes"]),
                reserved_bytes=int(item.get("reservedBytes", 0)),
                model=str(item.get("model", "CPU card")),
            )
            for item in json.loads(path.read_text())
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{path} does not describe CPU cards: {problem!r}") from None


@dataclass(frozen=True, slots=True)
class BoundProcess:
    """A process that names cards; `started_ticks` tells two users of one process id apart."""

    pid: int
    parent: int
    started_ticks: int
    cpu_seconds: float
    memory_bytes: int
    cards: tuple[str, ...]


def bound_processes(uuids: Iterable[str], proc: Path = Path("/proc")) -> dict[int, BoundProcess]:
    """All processes that name one of the cards, with their use so far.

    Memory is anonymous and shared memory (a library's file pages would not be on a GPU). Forked
    children share pages with their parent; then each gets its proportional part.
    """
    wanted = frozenset(uuids)
    found: dict[int, BoundProcess] = {}
    for entry in os.listdir(proc):
        if entry.isdigit():
            try:
                process = _read_process(proc / entry, wanted)
            except (OSError, ValueError, IndexError):
                continue  # ended while we looked, or not ours to look at
            if process is not None:
                found[process.pid] = process
    parents = {process.parent for process in found.values()} & found.keys()
    for pid, process in list(found.items()):
        if pid in parents or process.parent in parents:
            found[pid] = _with_proportional_memory(process, proc)
    return found


def _read_process(folder: Path, wanted: frozenset[str]) -> BoundProcess | None:
    cards = _visible_cards((folder / "environ").read_bytes(), wanted)
    if not cards:
        return None
    # The name in parentheses may hold anything, so fields count from the last parenthesis.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    status = _kibibytes((folder / "status").read_text(), ("RssAnon", "RssShmem"))
    return BoundProcess(
        pid=int(folder.name),
        parent=int(fields[1]),
        started_ticks=int(fields[19]),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND,
        memory_bytes=status * 1024,
        cards=cards,
    )


def _visible_cards(environment: bytes, wanted: frozenset[str]) -> tuple[str, ...]:
    for variable in environment.split(b"\0"):
        if variable.startswith(VISIBLE_DEVICES):
            names = variable[len(VISIBLE_DEVICES) :].decode(errors="replace").split(",")
            return tuple(sorted({name.strip() for name in names} & wanted))
    return ()


def _kibibytes(text: str, names: tuple[str, ...]) -> int:
    total = 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name in names:
            total += int(value.split()[0])
    return total


def _with_proportional_memory(process: BoundProcess, proc: Path) -> BoundProcess:
    try:
        text = (proc / str(process.pid) / "smaps_rollup").read_text()
    except OSError:
        return process
    memory_bytes = _kibibytes(text, ("Pss_Anon", "Pss_Shmem")) * 1024
    return BoundProcess(
        process.pid,
        process.parent,
        process.started_ticks,
        process.cpu_seconds,
        memory_bytes,
        process.cards,
    )


@dataclass(frozen=True, slots=True)
class _Sample:
    monotonic_seconds: float
    time_microseconds: int
    processes: dict[int, BoundProcess]


class CpuCardSource:
    """Readings of a node's CPU cards; utilization is the processor time between two readings."""

    def __init__(self, cards: tuple[CpuCard, ...]) -> None:
        self.cards = cards
        self._newest = self._sample()
        self._readings = [self._card_reading(card, self._newest) for card in cards]

    def read(self) -> list[CardReading]:
        previous = self._newest
        if time.monotonic() - previous.monotonic_seconds >= READING_SECONDS:
            self._newest = self._sample()
            self._readings = [self._card_reading(card, previous) for card in self.cards]
        return self._readings

    def time_microseconds(self) -> int:
        return self._newest.time_microseconds

    def _sample(self) -> _Sample:
        processes = bound_processes(card.uuid for card in self.cards)
        return _Sample(time.monotonic(), time.time_ns() // 1000, processes)

    def _card_reading(self, card: CpuCard, previous: _Sample) -> CardReading:
        processes = tuple(
            self._process_reading(process, previous)
            for process in self._newest.processes.values()
            if card.uuid in process.cards
        )
        # A full GPU refuses allocations; here more can be in use than there is, and NVML cannot
        # say so. The processes' own figures stay true.
        room = card.memory_bytes - card.reserved_bytes
        return CardReading(
            uuid=card.uuid,
            model=card.model,
            memory_total_bytes=card.memory_bytes,
            memory_reserved_bytes=card.reserved_bytes,
            memory_used_bytes=min(room, sum(process.memory_bytes for process in processes)),
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
