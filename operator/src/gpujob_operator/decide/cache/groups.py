"""Jobs in groups: who is on a node, who is of a workload."""

from collections.abc import Hashable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class Groups(Generic[K]):
    """UIDs by key. A group of nobody does not stay: keys come and go. Most groups are of one, which
    is kept without a set around it."""

    _members: dict[K, str | set[str]] = field(default_factory=lambda: dict[K, str | set[str]]())

    def add(self, key: K, uid: str) -> None:
        members = self._members.setdefault(key, uid)
        if isinstance(members, set):
            members.add(uid)
        elif members != uid:
            self._members[key] = {members, uid}

    def discard(self, key: K, uid: str) -> None:
        """Raises KeyError for a group of nobody."""
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
