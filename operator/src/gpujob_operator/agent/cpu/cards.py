"""What a CPU card is, and which cards a node has."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpujob_api.cpu_cards import cores_of, cpu_card_uuids

MODEL = "CPU card"
# A driver also reserves some memory.
RESERVED_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class CpuCard:
    """A CPU card. `reserved_bytes` stands for the memory that a driver reserves."""

    uuid: str
    core: int
    memory_bytes: int
    reserved_bytes: int = 0
    model: str = MODEL


def make_cards(
    node: str, count: int, memory_bytes: int, cores: Sequence[int]
) -> tuple[CpuCard, ...]:
    """Returns the CPU cards of a node, the same ones after a restart. `cores` may be used."""
    reserved_bytes = int(memory_bytes * RESERVED_FRACTION)
    return tuple(
        CpuCard(
            uuid=uuid,
            core=min(cores_of(uuid, cores)),
            memory_bytes=memory_bytes,
            reserved_bytes=reserved_bytes,
        )
        for uuid in cpu_card_uuids(node, count, memory_bytes - reserved_bytes)
    )
