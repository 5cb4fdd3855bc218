"""Jobs by node, by workload and by sharing group, and the difference of two lists of objects."""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from itertools import compress
from operator import is_not
from typing import Generic, TypeVar

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuqueue import GPUQueue
from gpujob_operator.decide.model.sharing_groups import group_of, sharing_groups
from gpujob_operator.decide.packing.party import ANYBODY, Party

K = TypeVar("K", bound=Hashable)
_NOBODY: frozenset[str] = frozenset()


T = TypeVar("T")


@dataclass(slots=True)
class ListDiff(Generic[T]):
    """The objects of one kind in the last snapshot."""

    # Keeps the objects alive, so that no new object gets the identity of an old one.
    _items: tuple[T, ...] = ()

    def take(self, items: tuple[T, ...]) -> tuple[list[T], list[T]]:
        """Returns (new, gone) since the last call, each in its list's order."""
        before, self._items = self._items, items
        if items is before:
            return [], []
        # Most objects keep their place. An object in another place may only have moved.
        differs = list(map(is_not, before, items))
        gone = [*compress(before, differs), *before[len(items) :]]
        new = [*compress(items, differs), *items[len(before) :]]
        moved = set(map(id, new)).intersection(map(id, gone))
        if not moved:
            return new, gone
        return [x for x in new if id(x) not in moved], [x for x in gone if id(x) not in moved]


@dataclass(slots=True)
class Groups(Generic[K]):
    """UIDs by key. Empty groups are removed, because keys come and go.

    Most groups have one member, which is stored without a set.
    """

    _members: dict[K, str | set[str]] = field(default_factory=lambda: dict[K, str | set[str]]())

    def add(self, key: K, uid: str) -> None:
        members = self._members.setdefault(key, uid)
        if isinstance(members, set):
            members.add(uid)
        elif members != uid:
            self._members[key] = {members, uid}

    def discard(self, key: K, uid: str) -> None:
        """Removes the UID from the group. Raises KeyError if the group is empty."""
        members = self._members[key]
        if isinstance(members, set):
            members.discard(uid)
            if len(members) == 1:
                (self._members[key],) = members
        elif members == uid:
            del self._members[key]

    def of(self, key: K) -> Set[str]:
        members = self._members.get(key, _NOBODY)
        return frozenset((members,)) if isinstance(members, str) else members


@dataclass(frozen=True, slots=True)
class SharingGroups:
    """The queues that let their jobs share GPUs with each other (`spec.sharingGroup`).

    `by_queue` has the group of each queue. A queue without a sharing group is a group by itself. It
    is empty if there is only one group, because then all jobs share and need not be distinguished.
    """

    by_queue: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, queues: Iterable[GPUQueue]) -> "SharingGroups":
        groups = sharing_groups(queues)
        return cls(groups) if len(set(groups.values())) > 1 else cls()

    def party(self, job: GPUJob) -> Party:
        if not self.by_queue:
            return ANYBODY
        return Party(_number(job.metadata.namespace), _number(group_of(job, self.by_queue)))


@lru_cache(maxsize=4096)
def _number(name: str) -> int:
    """Returns a number for the name, so that arrays can compare names.

    It is a hash of 63 bits. The probability that two of a million names have the same number is
    below one in ten million.
    """
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest()) >> 1
