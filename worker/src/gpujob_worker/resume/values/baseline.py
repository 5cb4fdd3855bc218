"""Values as they were before the first step. Large ones that did not change need not be saved."""

import marshal
import weakref
from typing import Any

import numpy as np
import torch
import xxhash

from gpujob_worker.resume.values.made_objects import Parts, parts_of, structure_of

# A value of at least this size that did not change is made again by the script.
LARGE_BYTES = 1 << 16
LARGE_ITEMS = 5_000


def digest_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(value).view(np.uint8).data)


def plain_digest(value: Any) -> str | None:
    """Returns a digest of containers of plain values. None for others, and for sets, which have no
    order.
    """
    try:
        # Version 2 writes shared values once per occurrence, so equal values have equal bytes.
        return xxhash.xxh3_128_hexdigest(marshal.dumps(value, 2))
    except ValueError:
        return None


class Baseline:
    """Large values as they were before the first step, by hash.

    Writes to memory that bypass torch (`tensor.data`, an array of the same memory) are counted
    nowhere.
    """

    def __init__(self) -> None:
        # By memory: its hash, and the names under which a resume finds it again.
        self._memory: dict[int, tuple[str, set[str]]] = {}
        self._containers: dict[int, str] = {}
        self.names: dict[tuple[str, str], int] = {}
        # By name: the objects from which a later loader must be made.
        self.loaders: dict[str, tuple[int, ...]] = {}
        # Values that cannot be made again: where they were, and what they were.
        self.made: set[tuple[str, str]] = set()
        # Another object may get the identity of one that is gone.
        self._structures: dict[int, tuple[weakref.ref[Any], Any]] = {}

    def sees_structure(self, made: Any) -> None:
        parts = parts_of(made) if isinstance(made, torch.nn.Module) else []
        self._structures[id(made)] = weakref.ref(made), structure_of(made, parts)

    def has_other_structure(self, made: Any, parts: Parts) -> bool:
        """Returns whether it is known, and was made of other parts than these."""
        reference, before = self._structures.get(id(made), (None, None))
        known = reference is not None and reference() is made
        return known and structure_of(made, parts) != before

    def sees_memory(self, key: int, path: str, content: Any) -> None:
        digest, paths = self._memory.get(key) or (digest_of(content), set[str]())
        self._memory[key] = digest, paths | {path}

    def sees_container(self, value: Any, digest: str) -> None:
        self._containers[id(value)] = digest

    def has_memory(self, key: int, path: str) -> bool:
        """Returns whether there was such a memory, which a resume finds under the same name."""
        return key in self._memory and path in self._memory[key][1]

    def is_unchanged_memory(self, key: int, digest: str) -> bool:
        return key in self._memory and self._memory[key][0] == digest

    def is_unchanged_container(self, value: Any, digest: str) -> bool:
        return self._containers.get(id(value)) == digest
