"""Jobs in groups: who is on a node, who is of a workload."""

from collections.abc import Hashable, Set
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
_NOBODY: frozenset[str] = frozenset()


@dataclass(slots=True)
class Groups(Generic[K]):
    """UIDs by key. A group of nobody does not stay: keys come and go."""

    _members: dict[K, set[str]] = field(default_factory=lambda: dict[K, set[str]]())

    def add(self, key: K, uid: str) -> None:
        members = self._members.get(key)
        if members is None:
            self._members[key] = {uid}
        else:
            members.add(uid)

    def discard(self, key: K, uid: str) -> None:
        """Raises KeyError for a group of nobody."""
        members = self._members[key]
        members.discard(uid)
        if not members:
            del self._members[key]

    def of(self, key: K) -> Set[str]:
        return self._members.get(key, _NOBODY)
