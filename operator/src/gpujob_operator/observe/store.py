"""Objects of one kind by UID, always the newest version, whatever the order of arrival.

Watch events, lists and answers to the operator's own writes all arrive here. An answer to a write
is the newest known state. An object that was written but not yet observed therefore stays in the
store, and an event from before the write cannot remove it.

A list of ten thousand objects takes hundreds of megabytes while it arrives. `condense` therefore
reduces each object first: only the identity of a state that is already stored is kept until the
list is complete.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

from cachetools import LRUCache, TTLCache

from gpujob_api.codec import FieldError
from gpujob_operator.read.shapes import (
    Identity,
    identity,
    identity_or_none,
    mapping,
    version_number,
)

ViewT = TypeVar("ViewT")

# Maximum number of remembered objects without a readable state.
UNREADABLE_MAX = 20_000
# Above every resourceVersion.
FOR_EVER = 2**64


REMEMBERED_MAX = 20_000
REMEMBERED_SECONDS = 300.0


class Tombstones:
    """Versions at which objects of one kind were deleted, by UID.

    A list or an event that was sent before the deletion may still arrive. Entries are dropped after
    `REMEMBERED_SECONDS`, and earlier beyond `REMEMBERED_MAX`.
    """

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._versions: TTLCache[str, int] = TTLCache(
            REMEMBERED_MAX, REMEMBERED_SECONDS, timer=lambda: clock().timestamp()
        )

    def __len__(self) -> int:
        return len(self._versions)

    def version(self, uid: str) -> int:
        """Returns the version up to which states are from before the deletion, or 0 if unknown."""
        return self._versions.get(uid, 0)

    def bury(self, uid: str, version: int) -> None:
        self._versions[uid] = max(version, self.version(uid))

    def forget_all(self) -> None:
        self._versions.clear()


@dataclass(slots=True)
class _Entry(Generic[ViewT]):
    version: int
    key: str
    view: ViewT


class Mark(NamedTuple):
    """How much a store has seen: the newest version of any object, and its history."""

    history: int
    version: int


NOTHING_SEEN = Mark(0, 0)


class Store(Generic[ViewT]):
    """A store of views. `parse` turns a manifest into a view.

    `same` returns whether two views lead to the same decisions. Deleted objects are forgotten after
    some minutes of the `clock`. No content of a manifest makes a method raise. If `parse` fails,
    `ignored` is called with the object's name, and the last readable state stays. If `opaque` is
    given, its result from the manifest and the last state is stored instead.
    """

    def __init__(
        self,
        clock: Callable[[], datetime],
        parse: Callable[[Mapping[str, Any]], ViewT],
        same: Callable[[ViewT, ViewT], bool] = lambda one, other: one == other,
        changed: Callable[[ViewT | None, ViewT | None], None] = lambda before, after: None,
        ignored: Callable[[str, Exception], None] = lambda name, error: None,
        opaque: Callable[[Mapping[str, Any], ViewT | None], ViewT] | None = None,
    ) -> None:
        self._parse = parse
        self._ignored = ignored
        self._opaque = opaque
        self._same = same
        self._changed = changed
        self._entries: dict[str, _Entry[ViewT]] = {}
        self._uids: dict[str, str] = {}
        self._tombstones = Tombstones(clock)
        # Newest version of each object that could not be parsed.
        self._unread: LRUCache[str, int] = LRUCache(UNREADABLE_MAX)
        self._mark = NOTHING_SEEN
        # Whether a complete list of this history was stored.
        self._listed = False
        self._views: tuple[ViewT, ...] | None = ()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def mark(self) -> Mark:
        """How much has been seen. Read it before a list is requested, and pass it with the list."""
        return self._mark

    @property
    def views(self) -> tuple[ViewT, ...]:
        """All views, in the order in which the objects were first seen."""
        if self._views is None:
            self._views = tuple(entry.view for entry in self._entries.values())
        return self._views

    @property
    def uids(self) -> Set[str]:
        """UIDs of the objects that are stored now."""
        return frozenset(self._entries)

    def get(self, uid: str) -> ViewT | None:
        entry = self._entries.get(uid)
        return None if entry is None else entry.view

    def by_name(self, name: str, namespace: str = "") -> ViewT | None:
        return self.get(self._uids.get(f"{namespace}/{name}", ""))

    def version(self, uid: str) -> int:
        entry = self._entries.get(uid)
        return 0 if entry is None else entry.version

    def upsert(self, manifest: object) -> bool:
        """Stores a state of an object. Returns whether decisions could change."""
        found = self._identity(manifest)
        if found is None:
            return False
        uid, version = found.uid, found.version
        self._see(version)
        known = self._entries.get(uid)
        if 0 < version <= self._newest(uid):
            return False
        replaced = self._uids.get(found.key)
        replaced = None if replaced == uid else replaced
        if replaced is not None and self._entries[replaced].version > version > 0:
            return False
        if isinstance(manifest, Identity):
            # The state was known when it was listed, and no longer is.
            return False
        view = self._view(found, mapping(manifest), None if known is None else known.view)
        if view is None:
            return False
        if replaced is not None:
            self.remove(replaced)
        self._entries[uid] = _Entry(version, found.key, view)
        self._unread.pop(uid, None)
        self._uids[found.key] = uid
        self._views = None
        self._changed(None if known is None else known.view, view)
        return known is None or not self._same(known.view, view)

    def _newest(self, uid: str) -> int:
        """Returns the newest version of the object that was seen, or 0."""
        entry = self._entries.get(uid)
        if entry is not None:
            return entry.version
        return max(self._tombstones.version(uid), self._unread.get(uid, 0))

    def amend(self, uid: str, view: ViewT) -> bool:
        """Replaces the view of a known object. Returns whether decisions could change."""
        entry = self._entries.get(uid)
        if entry is None:
            return False
        before, entry.view = entry.view, view
        self._views = None
        self._changed(before, view)
        return not self._same(before, view)

    def _identity(self, manifest: object) -> Identity | None:
        try:
            return identity(manifest)
        except FieldError as error:
            self._ignored("", error)
            return None

    def _view(
        self, found: Identity, manifest: Mapping[str, Any], before: ViewT | None
    ) -> ViewT | None:
        """Returns the view of the state, or None if the state cannot be read."""
        try:
            return self._parse(manifest)
        except Exception as error:
            # One unreadable object must not affect others.
            self._ignored(found.key, error)
        if self._opaque is not None:
            return self._opaque(manifest, before)
        # This state has been seen, so a list that contains it brings nothing new.
        entry = self._entries.get(found.uid)
        if entry is not None:
            entry.version = max(entry.version, found.version)
        else:
            self._unread[found.uid] = found.version
        return None

    def remove(self, uid: str, version: int = FOR_EVER) -> bool:
        """Removes the object as of `version`. Without a version it is removed for good.

        Only a newer state brings it back.
        """
        entry = self._entries.get(uid)
        if entry is not None and entry.version > version:
            return False
        self._tombstones.bury(uid, max(version, self._unread.pop(uid, 0)))
        if entry is None:
            return False
        del self._entries[uid]
        if self._uids.get(entry.key) == uid:
            del self._uids[entry.key]
        self._views = None
        self._changed(entry.view, None)
        return True

    def condense(self, manifest: object, mark: Mark) -> tuple[object, bool]:
        """Returns what to keep of a listed object until the list is complete, for `lacks` and
        `resync`.

        Also returns whether decisions could change. `mark` is the store's mark from before the list
        was requested. Until the first list is complete, the object is stored at once, because
        nothing is decided before that.
        """
        found = identity_or_none(manifest)
        if found is None:
            return manifest, False
        if 0 < found.version <= self._newest(found.uid):
            return found, False
        if self._listed or mark.history != self._mark.history:
            return manifest, False
        return found, self.upsert(manifest)

    def resync(
        self, manifests: Iterable[object], resource_version: str, mark: Mark | None = None
    ) -> bool:
        """Applies a complete list. An object that is missing from it and was not written since is
        gone.

        `mark` is the store's mark from before the list was requested. A list belongs to another
        history if it is older than the mark, or has an older state of an object than was known by
        then. The API server's data was then restored from a backup. Such a list replaces everything
        except objects that were condensed to their identity, so list again.
        """
        manifests = list(manifests)
        if self._is_of_another_history(manifests, resource_version, mark):
            self.begin_another_history()
        changed = False
        for manifest in manifests:
            changed |= self.upsert(manifest)
        changed |= self._remove_unlisted(manifests, resource_version)
        self._listed = True
        return changed

    def retain(self, listed: Iterable[Identity], resource_version: str, mark: Mark) -> bool:
        """Applies what a complete list lacks.

        An object that is missing from it and was not written since is gone. The states in the list
        arrive separately. `mark` is the same as for `resync`.
        """
        listed = list(listed)
        if self._is_of_another_history(listed, resource_version, mark):
            self.begin_another_history()
        return self._remove_unlisted(listed, resource_version)

    def _remove_unlisted(self, manifests: Iterable[object], resource_version: str) -> bool:
        found = (identity_or_none(one) for one in manifests)
        listed = {one.uid for one in found if one is not None}
        limit = version_number(resource_version)
        self._see(limit)
        changed = False
        for uid in [uid for uid in self._entries if uid not in listed]:
            changed |= self.remove(uid, limit)
        return changed

    def _is_of_another_history(
        self, manifests: Iterable[object], resource_version: str, mark: Mark | None
    ) -> bool:
        if mark is None or mark.history != self._mark.history:
            # Another list has shown it meanwhile.
            return False
        if 0 < version_number(resource_version) < mark.version:
            return True
        listed = (found for one in manifests if (found := identity_or_none(one)) is not None)
        return any(0 < one.version < self.version(one.uid) <= mark.version for one in listed)

    def begin_another_history(self) -> None:
        """Lets later states replace what is stored. Objects that the next list lacks are gone."""
        self._tombstones.forget_all()
        self._unread.clear()
        for entry in self._entries.values():
            entry.version = 0
        self._mark = Mark(self._mark.history + 1, 0)
        self._listed = False

    def _see(self, version: int) -> None:
        if version > self._mark.version:
            self._mark = Mark(self._mark.history, version)

    def lacks(
        self, manifests: Iterable[object], resource_version: str, mark: Mark | None = None
    ) -> bool:
        """Returns whether the list has a change that no event has brought.

        Such a change is an object, a state or a deletion. Also returns True if the list belongs to
        another history (see `resync`).
        """
        manifests = list(manifests)
        if self._is_of_another_history(manifests, resource_version, mark):
            return True
        listed: set[str] = set()
        for manifest in manifests:
            found = identity_or_none(manifest)
            if found is None:
                continue
            listed.add(found.uid)
            if self._newest(found.uid) < found.version:
                return True
        limit = version_number(resource_version)
        return any(
            uid not in listed and entry.version <= limit for uid, entry in self._entries.items()
        )
