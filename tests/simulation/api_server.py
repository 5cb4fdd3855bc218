"""A model of the Kubernetes API server: versions, preconditions, finalizers, deletion with grace.

What it stores is JSON that went through text, as on a real one. Every commit is one revision: the
recorder sees them all in order, the watches of the operators later.
"""

import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, cast

from gpujob_api.codec import format_time
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_operator.client.api_errors import AlreadyExists, ApiError, Conflict, NotFound
from gpujob_operator.observe.cache import Kind
from tests.harness.pod_tokens import claims_of
from tests.simulation.clock import Clock

Manifest = dict[str, Any]
# So many events of a kind are kept for watches; who missed more lists again (410).
EVENTS_MAX = 150


class OtherKind(Enum):
    """What nobody watches; token reviews, events and claims are not even kept."""

    SERVICE = "Service"
    EVENT = "Event"
    LEASE = "Lease"
    TOKEN_REVIEW = "TokenReview"
    # Each one that is asked for is there.
    CLAIM = "PersistentVolumeClaim"


AnyKind = Kind | OtherKind
Watcher = Callable[[AnyKind, str, Manifest], None]


@dataclass(frozen=True, slots=True)
class Revision:
    """One commit. `by` is who wrote: an operator's name, or a part of the cluster."""

    version: int
    at: float
    kind: AnyKind
    type: str
    object: Manifest
    before: Manifest | None
    by: str
    # When the writer sent the request; it may have been long on its way.
    sent_at: float


class ApiServer:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._version = 0
        self._uids = 0
        self._objects: dict[AnyKind, dict[str, Manifest]] = {
            kind: {} for kind in (*Kind, *OtherKind)
        }
        self._names: dict[tuple[AnyKind, str], str] = {}
        # By the pod's name and by the process that asked for it: how long ago that was for it.
        self._asked: dict[tuple[str, str], Callable[[], float]] = {}
        # What a watch may go on from: version, type and object of the newest events of each kind.
        self._events: dict[AnyKind, deque[tuple[int, str, Manifest]]] = defaultdict(
            lambda: deque(maxlen=EVENTS_MAX)
        )
        # All commits, for a restored state.
        self._history: list[Revision] = []
        # The server starts anew with restored data: it has no events of before.
        self._restored_version = 0
        self._jobs: dict[str, tuple[tuple[Manifest, GPUJob], ...]] = {}
        self.watchers: list[Watcher] = []
        # Told when the state was restored.
        self.restored: list[Callable[[], None]] = []
        self.restores = 0
        self.recorders: list[Callable[[Revision], None]] = []

    @property
    def version(self) -> int:
        return self._version

    def since(self, kind: AnyKind, version: int) -> list[tuple[str, Manifest]]:
        """Type and object of the events after a version, in order."""
        return [(what, manifest) for at, what, manifest in self._events[kind] if at > version]

    def oldest_version(self, kind: AnyKind) -> int:
        """From this version on no event is missing."""
        events = self._events[kind]
        kept = events[0][0] if len(events) == EVENTS_MAX else 0
        return max(kept, self._restored_version)

    def restore(self, seconds: float) -> None:
        """Its data are those of a backup that is so old, and so are its versions. All watches
        break. Nobody says what was lost: it is as if nothing had been written since.
        """
        since = self._clock.now - seconds
        self._history = [one for one in self._history if one.at <= since]
        for objects in self._objects.values():
            objects.clear()
        self._names.clear()
        self._events.clear()
        for one in self._history:
            metadata = one.object["metadata"]
            key = one.kind, f"{metadata.get('namespace', '')}/{metadata['name']}"
            if one.type == "DELETED":
                del self._objects[one.kind][metadata["uid"]], self._names[key]
            else:
                self._objects[one.kind][metadata["uid"]] = one.object
                self._names[key] = metadata["uid"]
        self._version = self._history[-1].version if self._history else 0
        self._restored_version = self._version
        self.restores += 1
        for told in list(self.restored):
            told()

    def review(self, review: Manifest) -> Manifest:
        """A TokenReview with its answer: the pod of the token, if it is there and signed."""
        token = review["spec"]["token"]
        claims = claims_of(token)
        bound = claims["kubernetes.io"]
        if "node" in bound:
            return {**review, "status": self._agent(token, bound, claims["aud"])}
        pod = self.find(Kind.POD, bound["pod"]["uid"])
        if not token.endswith(".true") or pod is None:
            return {**review, "status": {"authenticated": False}}
        user = {
            "username": f"system:serviceaccount:{bound['namespace']}:default",
            "extra": {
                f"authentication.kubernetes.io/pod-{k}": [v] for k, v in bound["pod"].items()
            },
        }
        status = {"authenticated": True, "audiences": claims["aud"], "user": user}
        return {**review, "status": status}

    def _agent(self, token: str, bound: Manifest, audiences: list[str]) -> Manifest:
        """A token that is bound to a node, of which nobody makes one by himself."""
        account = bound["serviceaccount"]["name"]
        user = {
            "username": f"system:serviceaccount:{bound['namespace']}:{account}",
            "extra": {"authentication.kubernetes.io/node-name": [bound["node"]["name"]]},
        }
        good = token.endswith(".true")
        return {"authenticated": good, "audiences": audiences, "user": user}

    def job(self, manifest: Manifest) -> GPUJob:
        """A state of a job that was committed here, read once however many look at it."""
        uid = manifest["metadata"]["uid"]
        known = self._jobs.get(uid, ())
        for state, job in known:
            if state is manifest:
                return job
        job = gpujob_from_manifest(manifest)
        # The newest two: what a revision changed, and what it was before.
        self._jobs[uid] = (*known[-1:], (manifest, job))
        return job

    @property
    def now(self) -> float:
        return self._clock.now

    def list(self, kind: AnyKind) -> list[Manifest]:
        return list(self._objects[kind].values())

    def find(self, kind: AnyKind, uid: str) -> Manifest | None:
        return self._objects[kind].get(uid)

    def get(self, kind: AnyKind, namespace: str, name: str) -> Manifest:
        uid = self._names.get((kind, f"{namespace}/{name}"))
        if uid is None:
            raise NotFound(404, "NotFound", f"{kind.value} {name}")
        return self._objects[kind][uid]

    def asked_for_pod(
        self, namespace: str, name: str, by: str, seconds: Callable[[], float]
    ) -> None:
        """A request for the pod is on its way. `seconds` says how long ago that was for the
        process, which may have been frozen since."""
        self._asked[f"{namespace}/{name}", by] = seconds

    def seconds_since_asked(self, pod: Manifest, by: str) -> float:
        """How long ago, for this process, it asked for a pod of that name the last time."""
        metadata = pod["metadata"]
        name = f"{metadata.get('namespace', '')}/{metadata['name']}"
        seconds = self._asked.get((name, by))
        return self.now if seconds is None else seconds()

    def require_free_name(self, kind: AnyKind, namespace: str, name: str) -> tuple[AnyKind, str]:
        """The key of the name, which no object has yet; all that a dry run asks the store."""
        key = (kind, f"{namespace}/{name}")
        if key in self._names:
            raise AlreadyExists(409, "AlreadyExists", name)
        return key

    def create(
        self, kind: AnyKind, manifest: Mapping[str, Any], by: str, sent_at: float | None = None
    ) -> Manifest:
        stored = cast(Manifest, json.loads(json.dumps(manifest)))
        metadata = stored["metadata"]
        key = self.require_free_name(kind, metadata.get("namespace", ""), metadata["name"])
        self._uids += 1
        metadata["uid"] = f"uid-{self._uids:05d}"
        metadata["generation"] = 1
        metadata["creationTimestamp"] = format_time(self._clock.moment.replace(microsecond=0))
        if kind is Kind.POD:
            stored["status"] = {"phase": "Pending"}
        self._names[key] = metadata["uid"]
        return self._commit(kind, "ADDED", stored, None, by, sent_at)

    def patch(
        self,
        kind: AnyKind,
        namespace: str,
        name: str,
        patch: Mapping[str, Any],
        by: str,
        *,
        spec: bool = False,
        parsed: bool = False,
    ) -> Manifest:
        """A merge patch of the status, or of anything else with `spec` (a new generation then).
        What went through text already, and is nobody else's, is `parsed`.
        """
        before = self.get(kind, namespace, name)
        change = cast(Manifest, dict(patch) if parsed else json.loads(json.dumps(patch)))
        if "metadata" in change:
            change["metadata"] = dict(change["metadata"] or {})
        precondition = (change.get("metadata") or {}).pop("resourceVersion", None)
        if precondition not in (None, before["metadata"]["resourceVersion"]):
            raise Conflict(409, "Conflict", f"{name}: {precondition}")
        change = change if spec else {"status": change.get("status") or {}}
        after = cast(Manifest, _merged(before, change))
        if after == before:
            return before
        return self._change(kind, before, after, by, spec=spec)

    def replace_status(
        self, kind: AnyKind, namespace: str, name: str, body: Mapping[str, Any], by: str
    ) -> Manifest:
        """The status of a request that went through text; the rest stays as it is stored."""
        before = self.get(kind, namespace, name)
        for field in ("resourceVersion", "uid"):
            wanted = body["metadata"].get(field)
            if wanted not in (None, before["metadata"][field]):
                raise Conflict(409, "Conflict", f"{name}: {field} {wanted}")
        after = {**before, "status": body["status"]}
        if after == before:
            return before
        return self._change(kind, before, after, by, spec=False)

    def _change(
        self, kind: AnyKind, before: Manifest, after: Manifest, by: str, *, spec: bool
    ) -> Manifest:
        if kind is Kind.GPU_NODE:
            after["metadata"] = {**after["metadata"], "managedFields": [self._field_owner(by)]}
        if spec and after.get("spec") != before.get("spec"):
            generation = before["metadata"]["generation"] + 1
            after["metadata"] = {**after["metadata"], "generation": generation}
        if _may_go(kind, before, after):
            return self.remove(kind, before["metadata"]["uid"], by)
        return self._commit(kind, "MODIFIED", after, before, by)

    def _field_owner(self, by: str) -> Manifest:
        """Who wrote the status, and when, on the clock of the API server."""
        time = format_time(self._clock.moment.replace(microsecond=0))
        return {"manager": by, "operation": "Update", "subresource": "status", "time": time}

    def replace(
        self, kind: AnyKind, namespace: str, name: str, body: Mapping[str, Any], by: str
    ) -> Manifest:
        before = self.get(kind, namespace, name)
        after = cast(Manifest, json.loads(json.dumps(body)))
        if after["metadata"]["resourceVersion"] != before["metadata"]["resourceVersion"]:
            raise Conflict(409, "Conflict", name)
        return self._commit(kind, "MODIFIED", after, before, by)

    def delete(
        self,
        kind: AnyKind,
        namespace: str,
        name: str,
        by: str,
        *,
        uid: str = "",
        version: str = "",
        grace: float | None = None,
    ) -> Manifest:
        """Pods that run are marked and stay until their kubelet removes them, objects with a
        finalizer until it is taken away; others go at once. Without `grace` a pod has its own.
        """
        before = self.get(kind, namespace, name)
        if uid and before["metadata"]["uid"] != uid:
            raise Conflict(409, "Conflict", f"{name} is another object")
        if version and before["metadata"]["resourceVersion"] != version:
            raise Conflict(409, "Conflict", f"{name} is in another state")
        if kind is not Kind.POD or not _has_processes(before):
            return self.remove(kind, before["metadata"]["uid"], by)
        own = before["spec"].get("terminationGracePeriodSeconds", 30)
        seconds = own if grace is None else grace
        if seconds == 0:
            return self.remove(kind, before["metadata"]["uid"], by)
        return self._mark(kind, before, seconds, by)

    def remove(self, kind: AnyKind, uid: str, by: str) -> Manifest:
        """The object goes, or is marked when somebody holds it by a finalizer."""
        before = self._objects[kind][uid]
        metadata = before["metadata"]
        if metadata.get("finalizers") and "deletionTimestamp" in metadata:
            return before
        if metadata.get("finalizers"):
            return self._mark(kind, before, 0, by)
        del self._objects[kind][uid]
        del self._names[(kind, f"{metadata.get('namespace', '')}/{metadata['name']}")]
        return self._commit(kind, "DELETED", dict(before), before, by)

    def _mark(self, kind: AnyKind, before: Manifest, seconds: float, by: str) -> Manifest:
        deadline = format_time(_seconds_from(self._clock, seconds))
        known = before["metadata"].get("deletionTimestamp")
        if known is not None and known <= deadline:
            return before
        marks = {"deletionTimestamp": deadline, "deletionGracePeriodSeconds": int(seconds)}
        after = {**before, "metadata": {**before["metadata"], **marks}}
        return self._commit(kind, "MODIFIED", after, before, by)

    def _commit(
        self,
        kind: AnyKind,
        event_type: str,
        after: Manifest,
        before: Manifest | None,
        by: str,
        sent_at: float | None = None,
    ) -> Manifest:
        self._version += 1
        after["metadata"] = {**after["metadata"], "resourceVersion": str(self._version)}
        if event_type != "DELETED":
            self._objects[kind][after["metadata"]["uid"]] = after
        now = self._clock.now
        sent_at = now if sent_at is None else sent_at
        revision = Revision(self._version, now, kind, event_type, after, before, by, sent_at)
        self._history.append(revision)
        self._events[kind].append((self._version, event_type, after))
        for recorder in self.recorders:
            try:
                recorder(revision)
            except ApiError as error:
                # Whoever made the request would take it for the answer.
                raise RuntimeError(f"{recorder}: {error}") from error
        for watcher in list(self.watchers):
            watcher(kind, event_type, after)
        return after


def _may_go(kind: AnyKind, before: Manifest, after: Manifest) -> bool:
    """The last finalizer of an object that was deleted is gone, and no process of it is left."""
    metadata = after["metadata"]
    released = before["metadata"].get("finalizers") and not metadata.get("finalizers")
    processes = kind is Kind.POD and _has_processes(after)
    return bool(released) and "deletionTimestamp" in metadata and not processes


def _has_processes(pod: Manifest) -> bool:
    bound = bool(pod["spec"].get("nodeName"))
    return bound and pod["status"]["phase"] not in ("Succeeded", "Failed")


def _seconds_from(clock: Clock, seconds: float) -> datetime:
    return (clock.moment + timedelta(seconds=seconds)).replace(microsecond=0)


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    result: Manifest = dict(before) if isinstance(before, dict) else {}
    for name, value in cast(Manifest, patch).items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result
