"""The CPU cards of process nodes: described by a file, and bound by processes' environments.

`gpujob_operator.agent.cpu` defines a CPU card and measures its use.
"""

import json
from collections.abc import Iterable
from pathlib import Path

from gpujob_operator.agent.cpu.cards import MODEL, CpuCard
from gpujob_operator.agent.cpu.environment import EnvironmentDevices
from gpujob_operator.agent.cpu.source import CpuCardSource


def write_cards(path: Path, cards: Iterable[CpuCard]) -> None:
    described = [
        {
            "uuid": card.uuid,
            "core": card.core,
            "memoryBytes": card.memory_bytes,
            "reservedBytes": card.reserved_bytes,
            "model": card.model,
        }
        for card in cards
    ]
    path.write_text(json.dumps(described, indent=1))


def read_cards(path: Path) -> tuple[CpuCard, ...]:
    """Reads what `write_cards` writes. Raises `ValueError` naming the file for anything else."""
    try:
        return tuple(
            CpuCard(
                uuid=str(item["uuid"]),
                core=int(item["core"]),
                memory_bytes=int(item["memoryBytes"]),
                reserved_bytes=int(item.get("reservedBytes", 0)),
                model=str(item.get("model", MODEL)),
            )
            for item in json.loads(path.read_text())
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise ValueError(f"{path} does not describe CPU cards: {problem!r}") from None


def open_cards(path: Path) -> CpuCardSource:
    """Returns readings of the CPU cards that a file describes. Raises `ValueError` like
    `read_cards`.
    """
    return CpuCardSource(read_cards(path), EnvironmentDevices())
