"""Watches a cluster's objects from its start and has `History` check every revision.

One thread a kind reads a watch stream; what it reads is folded in the order of resourceVersions
when a test asks. An API server that goes away is waited for.
"""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from gpujob_local.cluster.setup import SYSTEM_NAMESPACE
from gpujob_local.control_plane.api_client import ApiClient, ApiError, headers, ssl_context
from gpujob_local.control_plane.control_plane import ControlPlane
from tests.harness.history import History, Revision

Json = dict[str, Any]
PATHS = {
    "GPUJob": "/apis/gpujob.dev/v1alpha1/gpujobs",
    "GPUNode": "/apis/gpujob.dev/v1alpha1/gpunodes",
    "Pod": "/api/v1/pods",
    # Which nodes are about to go.
    "Node": "/api/v1/nodes",
    # Who leads, and when.
    "Lease": f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM_NAMESPACE}/leases",
}
RETRY_SECONDS = 0.1
SETTLE_SECONDS = 60.0


class _GoneError(Exception):
    """The server does not keep the revision any more from which we want to go on."""


class _Stream(threading.Thread):
    """All revisions of one kind."""

    def __init__(self, plane: ControlPlane, kind: str) -> None:
        super().__init__(name=f"record-{kind}", daemon=True)
        self.revisions: list[Revision] = []
        self.known: dict[str, int] = {}
        self._plane = plane
        self._kind = kind
        self._identity = plane.identity("admin")
        self._version = ""
        self._socket: socket.socket | None = None
        self._stopping = threading.Event()
        # Objects of which revisions may have come and gone unseen.
        self.missed: list[str] = []
        self.may_miss = True
        self.relist()
        self.may_miss = False

    def relist(self) -> None:
        """Takes up what there is now, and what vanished unseen. What changed meanwhile was missed,
        unless it `may_miss` something: a list has the newest state of each object only.
        """
        listed = self._plane.client().get(PATHS[self._kind])
        version = int(listed["metadata"]["resourceVersion"])
        there = {item["metadata"]["uid"] for item in listed["items"]}
        last = {r.object["metadata"]["uid"]: r.object for r in self.revisions}
        for item in listed["items"]:
            if self._take("MODIFIED", item):
                self._miss(item)
        for uid in set(self.known) - there:
            del self.known[uid]
            self._miss(last[uid])
            self.revisions.append(Revision(version, self._kind, "DELETED", last[uid]))
        self._version = str(version)
        self.may_miss = False

    def _miss(self, item: Json) -> None:
        if not self.may_miss:
            self.missed.append(f"{self._kind} {item['metadata']['name']}")

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._events():
                    self._receive(event)
            except _GoneError:
                self._try_relist()
            except (OSError, ValueError, http.client.HTTPException):
                self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        self._stopping.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self.join(10)
        assert not self.is_alive(), f"{self.name} does not end"

    def _try_relist(self) -> None:
        try:
            self.relist()
        except (OSError, ApiError):
            self._stopping.wait(RETRY_SECONDS)

    def _events(self) -> Iterator[Json]:
        query = {"watch": "1", "allowWatchBookmarks": "true", "resourceVersion": self._version}
        address = urlsplit(self._identity.server)
        connection = http.client.HTTPSConnection(
            address.netloc, timeout=30, context=ssl_context(self._identity)
        )
        try:
            connection.connect()
            self._socket = cast("socket.socket", connection.sock)
            if self._stopping.is_set():
                # Who stops this thread may have looked before there was a socket.
                return
            connection.request(
                "GET", f"{PATHS[self._kind]}?{urlencode(query)}", headers=headers(self._identity)
            )
            response = connection.getresponse()
            if response.status == http.client.GONE:
                raise _GoneError
            if response.status != http.client.OK:
                raise OSError(f"watch answered {response.status}")
            # Quiet streams are quiet for long; a server that is gone closes the connection.
            self._socket.settimeout(None)
            while line := response.readline():
                yield json.loads(line)
        finally:
            self._socket = None
            connection.close()

    def _receive(self, event: Json) -> None:
        item = event["object"]
        if event["type"] == "ERROR":
            if item.get("code") == http.client.GONE:
                raise _GoneError
            raise OSError(f"watch: {item.get('message')}")
        if event["type"] != "BOOKMARK":
            self._take(event["type"], item)
        self._version = item["metadata"]["resourceVersion"]

    def _take(self, type_: str, item: Json) -> bool:
        """False for a revision that is known."""
        uid, version = item["metadata"]["uid"], int(item["metadata"]["resourceVersion"])
        if version <= self.known.get(uid, 0):
            return False
        if type_ == "DELETED":
            self.known.pop(uid, None)
        else:
            self.known[uid] = version
        self.revisions.append(Revision(version, self._kind, type_, item))
        return True


class Recorder:
    """`verify` raises AssertionError naming what was broken; `history` is what was folded."""

    def __init__(
        self, plane: ControlPlane, telemetry_stale_seconds: float, *, leaders_freeze: bool = False
    ) -> None:
        self._leaders_freeze = leaders_freeze
        self.history = History(telemetry_stale_seconds)
        self._client: ApiClient = plane.client()
        self._stale_seconds = telemetry_stale_seconds
        # Versions at which the API server went away, and at which it was there again.
        self.cuts: list[int] = []
        self._streams = {kind: _Stream(plane, kind) for kind in PATHS}
        for stream in self._streams.values():
            stream.start()

    def stop(self) -> None:
        for stream in self._streams.values():
            stream.stop()

    def expect_an_outage(self) -> None:
        """The API server will be started again, and may not know old revisions: a list has to do,
        once, for each kind.
        """
        self.cuts.append(self._version())
        for stream in self._streams.values():
            stream.may_miss = True

    def outage_ends(self) -> None:
        """The API server answers again, and nothing was written before."""
        self.cuts.append(self._version())

    def _version(self) -> int:
        return int(self._client.get(PATHS["Lease"])["metadata"]["resourceVersion"])

    def revisions(self) -> list[Revision]:
        """Everything so far, in the order in which the server committed it."""
        found = [one for stream in self._streams.values() for one in list(stream.revisions)]
        return sorted(found, key=lambda one: one.version)

    def fold(self) -> History:
        """All promises over all revisions up to now."""
        self._wait(self._caught_up, "the watches catch up")
        self.history = History(self._stale_seconds, leaders_freeze=self._leaders_freeze)
        cuts = deque(sorted(self.cuts))
        for revision in self.revisions():
            while cuts and cuts[0] < revision.version:
                cuts.popleft()
                self.history.ends.watches_cut()
            self.history.fold(revision)
        return self.history

    def verify(self) -> History:
        """No promise broken on any revision, none missed, and no pod is left without a live owner
        (I7)."""
        self._wait(lambda: not self.fold().orphans(), "no pod without a live owner")
        assert not self.history.late, f"pods of attempts that were given up: {self.history.late}"
        broken = [str(violation) for violation in self.history.violations]
        assert not broken, "\n".join(broken)
        missed = [name for stream in self._streams.values() for name in stream.missed]
        assert not missed, f"revisions were missed: {', '.join(missed)}"
        return self.history

    def _caught_up(self) -> bool:
        for kind, stream in self._streams.items():
            listed = self._client.get(PATHS[kind])["items"]
            known = dict(stream.known)
            now = {
                item["metadata"]["uid"]: int(item["metadata"]["resourceVersion"]) for item in listed
            }
            if set(known) != set(now) or any(known[uid] < now[uid] for uid in now):
                return False
        return True

    def _wait(self, condition: Any, what: str) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS
        while not condition():
            orphans = self.history.orphans()
            assert time.monotonic() < deadline, f"{what}: not in time; pods left: {orphans}"
            time.sleep(0.05)
