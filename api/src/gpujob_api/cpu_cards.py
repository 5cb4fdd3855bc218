"""CPU cards stand in for GPUs on nodes without GPUs: their UUIDs, memory and cores.

The agent makes the UUIDs and the worker reads memory and core from them, so nothing else needs to
pass them to a worker.
"""

import re
from collections.abc import Sequence
from uuid import UUID, uuid5

from gpujob_api.quantities import MIB

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
SLOTS_MAX = 4096
_NAMESPACE = UUID("5f4f0d9e-6b59-5d0c-9f6e-0a0b1d3c7e21")
_SLOT = re.compile(r"^CPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9]+Mi-([0-9]{1,4})$")
_MEMORY = re.compile(r"^CPU-.+-([0-9]{1,9})Mi-[0-9a-f]+$")
_NUMBER_AT_END = re.compile(r"([0-9]{1,3})$")


def cpu_card_uuid(name: str, memory_bytes: int, end: str) -> str:
    """Returns a UUID from which `memory_of` reads the memory, in whole MiB.

    `end` has hexadecimal digits only.
    """
    return f"CPU-{name}-{memory_bytes // MIB}Mi-{end}"


def memory_of(visible_devices: str) -> int | None:
    """Returns the memory of the CPU cards in NVIDIA_VISIBLE_DEVICES together, in bytes.

    None if it names anything but CPU cards of `cpu_card_uuid`.
    """
    found = [_MEMORY.match(name.strip()) for name in visible_devices.split(",")]
    sizes = [int(match[1]) * MIB for match in found if match is not None]
    return sum(sizes) if len(sizes) == len(found) else None


def cpu_card_uuids(node: str, count: int, memory_bytes: int) -> tuple[str, ...]:
    """Returns the UUIDs of a node's CPU cards, which are the same on every call.

    `memory_bytes` is the memory of each card that processes may use. Each UUID ends in a slot, from
    which `cores_of` finds the core. Nodes of one machine share its cores. The number at the end of
    a node's name (kind-worker, kind-worker2) gives each node its own slots, as far as there are
    cores.
    """
    match = _NUMBER_AT_END.search(node)
    first = int(match[1]) * count if match is not None else count
    return tuple(
        cpu_card_uuid(
            str(uuid5(_NAMESPACE, f"{node}/{index}")),
            memory_bytes,
            str((first + index) % SLOTS_MAX),
        )
        for index in range(count)
    )


def cores_of(visible_devices: str, cores: Sequence[int]) -> frozenset[int]:
    """Returns the cores of the CPU cards in NVIDIA_VISIBLE_DEVICES, out of those that may be used.

    Empty if it names no CPU card of `cpu_card_uuids`: GPUs, all, none, or nothing.
    """
    if not cores:
        return frozenset()
    slots = [_SLOT.match(name.strip()) for name in visible_devices.split(",")]
    usable = sorted(cores)
    return frozenset(usable[int(slot[1]) % len(usable)] for slot in slots if slot is not None)
