"""An API server in memory, as far as the operator's client can tell, and one that can be broken.

Preconditions, UIDs, growing resourceVersions, name conflicts, subresources and watches behave as
the real ones do; what is checked against the real API server is in the integration tests.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

from gpujob_operator.client.api_errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    NotFound,
    Unavailable,
)
from gpujob_operator.client.kube import CLAIMS, PODS, Kube, Listing, Manifest, ResourceType, as_read
from gpujob_operator.client.list_pages import PAGE_OBJECTS
from gpujob_operator.client.streams import without_bulk

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Call:
    """One request that came in."""

    verb: str
    plural: str
    name: str
    namespace: str = ""
    subresource: str = ""

    @property
    def is_write(self) -> bool:
        return self.verb not in ("get", "list", "watch")


@dataclass(slots=True)
class Fault:
    """The next `times` matching calls fail with `error`, before or after they take effect."""

    matches: Callable[[Call], bool]
    error: ApiError
    times: int = 1
    after_effect: bool = False


@dataclass(slots=True)
class _Stream:
    plural: str
    queue: "asyncio.Queue[Manifest | ApiError | None]" = field(default_factory=asyncio.Queue)


class FakeKube(Kube):
    """Has the public methods of `Kube`. `calls` is the history, `faults` what goes wrong next."""

    def __init__(self) -> None:
        self._objects: dict[Key, Manifest] = {}
        self._versions = itertools.count(1)
        self._uids = itertools.count(1)
        self._streams: list[_Stream] = []
        self.version = 0
        self.calls: list[Call] = []
        # Of the last list of each kind: how many objects a page may have.
        self.pages_of: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.before: Callable[[Call], None] = lambda call: None

    # Set-up and inspection -----------------------------------------------------------------

    def put(self, kind: ResourceType, manifest: Manifest) -> Manifest:
        """Stores an object as somebody else would; keeps a given uid."""
        body = copy.deepcopy(manifest)
        metadata = body.setdefault("metadata", {})
        key = self._key(kind, metadata["name"], metadata.get("namespace", ""))
        known = self._objects.get(key)
        metadata.setdefault("uid", known["metadata"]["uid"] if known else self._uid())
        return self._store(kind, key, body, "MODIFIED" if known else "ADDED")

    def put_claims(self, *names: str, namespace: str = "team") -> None:
        """Claims that somebody made. Jobs of `make_job` mount `checkpoints`."""
        for name in names:
            self.put(CLAIMS, {"metadata": {"name": name, "namespace": namespace}})

    def remove(self, kind: ResourceType, name: str, namespace: str = "") -> None:
        body = self._objects.pop(self._key(kind, name, namespace))
        body["metadata"]["resourceVersion"] = self._next_version()
        self._tell(kind, "DELETED", body)

    def stored(self, kind: ResourceType, name: str, namespace: str = "") -> Manifest:
        return self._objects[self._key(kind, name, namespace)]

    def names(self, kind: ResourceType) -> list[str]:
        return sorted(key[2] for key in self._objects if key[0] == kind.plural)

    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.is_write]

    def fail(
        self,
        verb: str,
        plural: str,
        error: ApiError | None = None,
        *,
        times: int = 1,
        after_effect: bool = False,
    ) -> None:
        answer = error or Unavailable(503, "ServiceUnavailable", "injected")

        def matches(call: Call) -> bool:
            return call.verb == verb and call.plural == plural

        self.faults.append(Fault(matches, answer, times, after_effect))

    def break_streams(self, error: ApiError | None = None) -> None:
        """Ends all watches: as the server does at a timeout, or with an error."""
        for stream in self._streams:
            stream.queue.put_nowait(error)

    def bookmark(self, plural: str) -> None:
        metadata = {"resourceVersion": str(self.version)}
        for stream in self._streams:
            if stream.plural == plural:
                stream.queue.put_nowait({"type": "BOOKMARK", "object": {"metadata": metadata}})

    @property
    def stream_count(self) -> int:
        return len(self._streams)

    # The client's methods ------------------------------------------------------------------

    async def close(self) -> None:
        return None

    async def get(self, kind: ResourceType, name: str, namespace: str = "") -> Manifest:
        self._enter(Call("get", kind.plural, name, namespace))
        return copy.deepcopy(self._require(kind, name, namespace))

    async def list(
        self,
        kind: ResourceType,
        namespace: str = "",
        *,
        field_selector: str = "",
        whole: bool = False,
        condense: Callable[[object], object] = as_read,
        page_objects: int = PAGE_OBJECTS,
    ) -> Listing:
        self.pages_of[kind.plural] = page_objects
        self._enter(Call("list", kind.plural, ""))
        items = [one for key, one in self._objects.items() if key[0] == kind.plural]
        chosen = copy.deepcopy([one for one in items if _has_fields(one, field_selector)])
        if not whole:
            for one in chosen:
                without_bulk(one)
        return Listing(list(map(condense, chosen)), str(self.version))

    async def create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> Manifest:
        name = body.get("metadata", {}).get("name", "")
        call = Call("create", kind.plural, name, namespace)
        self._enter(call)
        key = self._key(kind, name, namespace)
        if key in self._objects:
            raise AlreadyExists(409, "AlreadyExists", f"{name} already exists")
        stored = copy.deepcopy(body)
        stored.setdefault("metadata", {})["uid"] = self._uid()
        if namespace:
            stored["metadata"]["namespace"] = namespace
        stored["metadata"].setdefault("creationTimestamp", "2026-01-01T00:00:00Z")
        return self._leave(call, self._store(kind, key, stored, "ADDED"))

    async def try_create(self, kind: ResourceType, body: Manifest, namespace: str = "") -> None:
        self._enter(Call("try", kind.plural, body["metadata"]["name"], namespace))

    async def patch(
        self,
        kind: ResourceType,
        name: str,
        body: Manifest,
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Manifest:
        call = Call("patch", kind.plural, name, namespace, subresource)
        self._enter(call)
        known = self._require(kind, name, namespace)
        version = body.get("metadata", {}).get("resourceVersion")
        self._check_version(known, version)
        changes = {"status": body.get("status", {})} if subresource == "status" else body
        merged = _merged(known, changes)
        return self._leave(
            call, self._store(kind, self._key(kind, name, namespace), merged, "MODIFIED")
        )

    async def replace(
        self,
        kind: ResourceType,
        name: str,
        body: Manifest,
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Manifest:
        call = Call("replace", kind.plural, name, namespace, subresource)
        self._enter(call)
        known = self._require(kind, name, namespace)
        self._check_version(known, body["metadata"].get("resourceVersion"))
        key = self._key(kind, name, namespace)
        changed = known | {"status": body["status"]} if subresource == "status" else body
        return self._leave(call, self._store(kind, key, copy.deepcopy(changed), "MODIFIED"))

    async def delete(
        self,
        kind: ResourceType,
        name: str,
        namespace: str = "",
        *,
        uid: str,
        resource_version: str = "",
        grace_seconds: int | None = None,
    ) -> Manifest:
        call = Call("delete", kind.plural, name, namespace)
        self._enter(call)
        known = self._require(kind, name, namespace)
        if known["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", "the UID in the precondition is another one")
        self._check_version(known, resource_version or None)
        if kind is not PODS and not known["metadata"].get("finalizers"):
            self.remove(kind, name, namespace)
            return self._leave(call, {"kind": "Status", "status": "Success"})
        terminating = copy.deepcopy(known)
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:01:00Z"
        terminating["metadata"]["deletionGracePeriodSeconds"] = grace_seconds
        key = self._key(kind, name, namespace)
        return self._leave(call, self._store(kind, key, terminating, "MODIFIED"))

    async def watch(
        self,
        kind: ResourceType,
        resource_version: str,
        *,
        field_selector: str = "",
        seconds: int = 300,
    ) -> AsyncGenerator[Manifest, None]:
        self._enter(Call("watch", kind.plural, resource_version))
        stream = _Stream(kind.plural)
        self._streams.append(stream)
        try:
            while (event := await stream.queue.get()) is not None:
                if isinstance(event, ApiError):
                    raise event
                yield event
        finally:
            self._streams.remove(stream)

    # Inside --------------------------------------------------------------------------------

    def _key(self, kind: ResourceType, name: str, namespace: str) -> Key:
        return kind.plural, namespace if kind.namespaced else "", name

    def _uid(self) -> str:
        return f"uid-{next(self._uids)}"

    def _next_version(self) -> str:
        self.version = next(self._versions)
        return str(self.version)

    def _require(self, kind: ResourceType, name: str, namespace: str) -> Manifest:
        try:
            return self._objects[self._key(kind, name, namespace)]
        except KeyError:
            raise NotFound(404, "NotFound", f"{kind.plural} {name} not found") from None

    def _check_version(self, known: Manifest, version: str | None) -> None:
        if version is not None and version != known["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", "the object has been modified")

    def _store(self, kind: ResourceType, key: Key, body: Manifest, event: str) -> Manifest:
        body["metadata"]["resourceVersion"] = self._next_version()
        self._objects[key] = body
        self._tell(kind, event, body)
        return copy.deepcopy(body)

    def _tell(self, kind: ResourceType, event: str, body: Manifest) -> None:
        for stream in self._streams:
            if stream.plural == kind.plural:
                stream.queue.put_nowait({"type": event, "object": copy.deepcopy(body)})

    def _enter(self, call: Call) -> None:
        self.calls.append(call)
        self.before(call)
        self._fault(call, after_effect=False)

    def _leave(self, call: Call, answer: Manifest) -> Manifest:
        self._fault(call, after_effect=True)
        return answer

    def _fault(self, call: Call, *, after_effect: bool) -> None:
        for fault in self.faults:
            if fault.after_effect == after_effect and fault.times > 0 and fault.matches(call):
                fault.times -= 1
                raise fault.error


def _merged(value: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    result: dict[str, Any] = copy.deepcopy(value) if isinstance(value, dict) else {}
    for name, item in change.items():
        if item is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), item)
    return result


def _has_fields(manifest: Manifest, field_selector: str) -> bool:
    """Terms such as spec.nodeName=node-a, joined by commas."""
    for term in filter(None, field_selector.split(",")):
        path, _, wanted = term.partition("=")
        found: Any = manifest
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        if found != wanted:
            return False
    return True
