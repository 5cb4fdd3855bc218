"""Objects of one kind by UID, the newest version of each, whatever order the news comes in.

Watch events, lists and the answers to our own writes all end here. An answer to a write is the
newest state there is, so what we wrote and have not yet seen back stays in the picture, and an
event that was under way before the write cannot take it out again.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpujob_api.codec import FieldError
from gpujob_operator.logs import Log

log = Log(__name__)

ViewT = TypeVar("ViewT")

TOMBSTONES_MAX = 20_000
# Above every resourceVersion.
FOR_EVER = 2**64


def version_number(resource_version: str | None) -> int:
    """resourceVersions of one kind are numbers that only grow; 0 if there is none to read."""
    return int(resource_version) if resource_version and resource_version.isdigit() else 0


@dataclass(slots=True)
class _Entry(Generic[ViewT]):
    version: int
    key: str
    view: ViewT


class Store(Generic[ViewT]):
    """`parse` turns a manifest into a view; `same` tells whether two views decide alike."""

    def __init__(
        self,
        parse: Callable[[Mapping[str, Any]], ViewT],
        same: Callable[[ViewT, ViewT], bool] = lambda one, other: one == other,
        changed: Callable[[ViewT | None, ViewT | None], None] = lambda before, after: None,
    ) -> None:
        self._parse = parse
        self._same = same
        self._changed = changed
        self._entries: dict[str, _Entry[ViewT]] = {}
        self._uids: dict[str, str] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._views: tuple[ViewT, ...] | None = ()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def views(self) -> tuple[ViewT, ...]:
        """All views, in the order in which the objects were first seen."""
        if self._views is None:
            self._views = tuple(entry.view for entry in self._entries.values())
        return self._views

    def get(self, uid: str) -> ViewT | None:
        entry = self._entries.get(uid)
        return None if entry is None else entry.view

    def by_name(self, name: str, namespace: str = "") -> ViewT | None:
        return self.get(self._uids.get(f"{namespace}/{name}", ""))

    def version(self, uid: str) -> int:
        entry = self._entries.get(uid)
        return 0 if entry is None else entry.version

    def upsert(self, manifest: Mapping[str, Any]) -> bool:
        """Takes in a state of an object; True if it changed what decisions see."""
        metadata = manifest["metadata"]
        uid, version = metadata["uid"], version_number(metadata.get("resourceVersion"))
        known = self._entries.get(uid)
        newest = self._tombstones.get(uid, 0) if known is None else known.version
        if 0 < version <= newest:
            return False
        try:
            view = self._parse(manifest)
        except FieldError as error:
            # The last state that made sense stays: others are not affected by one bad edit.
            log.warning("object ignored", name=metadata["name"], problem=str(error))
            return False
        key = f"{metadata.get('namespace', '')}/{metadata['name']}"
        replaced = self._uids.get(key)
        if replaced is not None and replaced != uid:
            if self._entries[replaced].version > version > 0:
                return False
            self.remove(replaced)
        self._entries[uid] = _Entry(version, key, view)
        self._uids[key] = uid
        self._views = None
        self._changed(None if known is None else known.view, view)
        return known is None or not self._same(known.view, view)

    def remove(self, uid: str, version: int = FOR_EVER) -> bool:
        """The object is gone as of `version`. Only a newer state brings it back, which happens
        when a watch selects by label; without a version it is gone for good."""
        entry = self._entries.get(uid)
        if entry is not None and entry.version > version:
            return False
        self._tombstones[uid] = max(version, self._tombstones.get(uid, 0))
        if len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)
        if entry is None:
            return False
        del self._entries[uid]
        if self._uids.get(entry.key) == uid:
            del self._uids[entry.key]
        self._views = None
        self._changed(entry.view, None)
        return True

    def resync(self, manifests: Iterable[Mapping[str, Any]], resource_version: str) -> bool:
        """Takes in a whole list; what it lacks and was not written since then is gone."""
        listed: set[str] = set()
        changed = False
        for manifest in manifests:
            listed.add(manifest["metadata"]["uid"])
            changed |= self.upsert(manifest)
        limit = version_number(resource_version)
        for uid, entry in list(self._entries.items()):
            if uid not in listed and entry.version <= limit:
                changed |= self.remove(uid, limit)
        return changed

    def lacks(self, manifests: Iterable[Mapping[str, Any]], resource_version: str) -> bool:
        """True if a list knows something that no event has told: an object, a state, an end."""
        listed: set[str] = set()
        for manifest in manifests:
            uid = manifest["metadata"]["uid"]
            listed.add(uid)
            version = version_number(manifest["metadata"].get("resourceVersion"))
            if max(self.version(uid), self._tombstones.get(uid, 0)) < version:
                return True
        limit = version_number(resource_version)
        return any(
            uid not in listed and entry.version <= limit for uid, entry in self._entries.items()
        )
