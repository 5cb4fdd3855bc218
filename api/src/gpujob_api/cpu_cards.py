"""CPU cards stand in for GPUs on nodes without GPUs: their UUIDs, and the core of each one.

The agent makes the UUIDs and the worker reads the core from them, so nothing else needs to pass a
worker the core of its CPU card.
"""

import re
from collections.abc import Sequence
from uuid import UUID, uuid5

SLOTS_MAX = 4096
_NAMESPACE = UUID("5f4f0d9e-6b59-5d0c-9f6e-0a0b1d3c7e21")
_UUID = re.compile(r"^CPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-([0-9]{1,4})$")
_NUMBER_AT_END = re.compile(r"([0-9]{1,3})$")


def cpu_card_uuids(node: str, count: int) -> tuple[str, ...]:
    """Returns the UUIDs of a node's CPU cards, which are the same on every call.

    Each one ends in a slot, from which `cores_of` finds the core. Nodes of one machine share its
    cores. The number at the end of a node's name (kind-worker, kind-worker2) gives each node its
    own slots, as far as there are cores.
    """
    match = _NUMBER_AT_END.search(node)
    first = int(match[1]) * count if match is not None else count
    return tuple(
        f"CPU-{uuid5(_NAMESPACE, f'{node}/{index}')}-{(first + index) % SLOTS_MAX}"
        for index in range(count)
    )


def cores_of(visible_devices: str, cores: Sequence[int]) -> frozenset[int]:
    """Returns the cores of the CPU cards in NVIDIA_VISIBLE_DEVICES, out of those that may be used.

    Empty if it names no CPU card of `cpu_card_uuids`: GPUs, all, none, or nothing.
    """
    if not cores:
        return frozenset()
    slots = [_UUID.match(name.strip()) for name in visible_devices.split(",")]
    usable = sorted(cores)
    return frozenset(usable[int(slot[1]) % len(usable)] for slot in slots if slot is not None)
