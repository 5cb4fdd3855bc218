"""The objects of the API server in `http_api`: preconditions, versions, grace, history."""

import copy
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.harness.http_api_paths import Key, Place

Manifest = dict[str, Any]
Wanted = Callable[[Manifest], bool]

HISTORY_MAX = 50_000


class Refusal(Exception):  # noqa: N818 - an answer, not a fault of the program
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body = status_body(status, reason, message)


@dataclass(frozen=True, slots=True)
class Change:
    version: int
    plural: str
    before: Manifest | None
    after: Manifest | None

    def line(self, wanted: Wanted) -> bytes:
        """The watch event for a selection of objects; empty where the selection saw nothing."""
        before = self.before is not None and wanted(self.before)
        after = self.after is not None and wanted(self.after)
        kinds = {(False, True): "ADDED", (True, True): "MODIFIED", (True, False): "DELETED"}
        kind = kinds.get((before, after))
        body = self.after or self.before or {}
        body = body | {"metadata": body["metadata"] | {"resourceVersion": str(self.version)}}
        return b"" if kind is None else to_line({"type": kind, "object": body})


class Objects:
    """Not for several threads at once. `told` hears every change."""

    def __init__(self, told: Callable[[Change], None]) -> None:
        self.version = 100
        self.history: deque[Change] = deque(maxlen=HISTORY_MAX)
        self._told = told
        self._objects: dict[Key, Manifest] = {}
        self._uids = itertools.count(1)

    def get(self, key: Key) -> Manifest:
        if key not in self._objects:
            raise Refusal(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self._objects[key]

    def of(self, plural: str) -> dict[Key, Manifest]:
        return {key: one for key, one in self._objects.items() if key[0] == plural}

    def page(self, place: Place, wanted: Wanted, query: Mapping[str, str], limit: int) -> Manifest:
        """The continuation names the first page's version and the last object before."""
        version, _, after = query.get("continue", "").partition("|")
        found = {"/".join(key[1:]): one for key, one in self.of(place.plural).items()}
        names = sorted(name for name, one in found.items() if name > after and wanted(one))
        metadata = {"resourceVersion": version or str(self.version)}
        if len(names) > limit:
            metadata["continue"] = f"{metadata['resourceVersion']}|{names[limit - 1]}"
        return {"metadata": metadata, "items": [found[name] for name in names[:limit]]}

    def create(self, place: Place, body: Manifest) -> Manifest:
        metadata = body.setdefault("metadata", {})
        name = metadata.setdefault("name", f"{metadata.get('generateName', '')}{self.version}")
        key = (place.plural, place.namespace, name)
        if key in self._objects:
            raise Refusal(409, "AlreadyExists", f'{place.plural} "{name}" already exists')
        metadata.pop("uid", None)
        if place.namespace:
            metadata["namespace"] = place.namespace
        if place.plural == "pods":
            body["status"] = {"phase": "Pending"}
        return self.store(key, body)

    def update(self, place: Place, changed: Manifest, asked_version: str | None) -> Manifest:
        """PUT, and PATCH once merged; an update that changes nothing is none."""
        known = self.get(place.key)
        if asked_version and asked_version != known["metadata"]["resourceVersion"]:
            raise Refusal(409, "Conflict", "the object has been modified")
        changed = copy.deepcopy(changed)
        if place.subresource == "status":
            changed = known | {"status": changed.get("status", {})}
        elif "status" in known:
            changed["status"] = known["status"]
        kept = {name: known["metadata"][name] for name in ("uid", "resourceVersion", "generation")}
        changed["metadata"] = changed["metadata"] | kept
        if changed == known:
            return known
        if "deletionTimestamp" in known["metadata"] and not changed["metadata"].get("finalizers"):
            return self.drop(place.key)
        return self.store(place.key, changed)

    def delete(self, key: Key, options: Manifest) -> Manifest:
        """A pod on a node ends with its grace, when a test removes it; a finalizer holds back."""
        known = self.get(key)
        metadata = known["metadata"]
        if (options.get("preconditions") or {}).get("uid", metadata["uid"]) != metadata["uid"]:
            raise Refusal(409, "Conflict", "the UID in the precondition is another one")
        version = metadata["resourceVersion"]
        if (options.get("preconditions") or {}).get("resourceVersion", version) != version:
            raise Refusal(409, "Conflict", "the resourceVersion in the precondition is another one")
        seconds = options.get("gracePeriodSeconds")
        runs = key[0] == "pods" and known.get("spec", {}).get("nodeName") and seconds != 0
        if not runs and not metadata.get("finalizers"):
            return self.drop(key)
        seconds = 30 if seconds is None else seconds
        stamped = {"deletionTimestamp": _time(seconds), "deletionGracePeriodSeconds": seconds}
        return self.store(key, known | {"metadata": metadata | stamped})

    def store(self, key: Key, manifest: Manifest) -> Manifest:
        before, body = self._objects.get(key), copy.deepcopy(manifest)
        known = before["metadata"] if before else {}
        self.version += 1
        metadata = body["metadata"]
        metadata["resourceVersion"] = str(self.version)
        metadata.setdefault("uid", known.get("uid") or f"uid-{next(self._uids)}")
        metadata.setdefault("creationTimestamp", known.get("creationTimestamp") or _time(0))
        same = before is not None and before.get("spec") == body.get("spec")
        metadata["generation"] = known.get("generation", 0) + (0 if same else 1)
        self._objects[key] = body
        self._tell(Change(self.version, key[0], before, body))
        return copy.deepcopy(body)

    def drop(self, key: Key) -> Manifest:
        before = self.get(key)
        del self._objects[key]
        self.version += 1
        self._tell(Change(self.version, key[0], before, None))
        return before

    def _tell(self, change: Change) -> None:
        self.history.append(change)
        self._told(change)


def status_body(status: int, reason: str, message: str) -> Manifest:
    """The API server's words for a refusal."""
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
    return body | {"reason": reason, "message": message}


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    result: dict[str, Any] = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def to_line(data: object) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _time(seconds_from_now: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds_from_now))
