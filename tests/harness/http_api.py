"""An API server over HTTP, on loopback and in a thread: what the real client and kopf talk to.

It keeps objects, pages lists, replays watches from a resourceVersion, checks preconditions, and
fails or is slow where a test says so. It checks no schema, no rights and no admission: for those
there is the real control plane.
"""

import asyncio
import copy
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from gpujob_operator.client.kube import ResourceType
from tests.harness.http_api_objects import (
    Change,
    Manifest,
    Objects,
    Refusal,
    Wanted,
    merged,
    status_body,
    to_line,
)
from tests.harness.http_api_paths import Place, Rule, discovery, place_of, selection

BODY_BYTES_MAX = 64 * 1024**2
START_SECONDS = 10.0
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request that came in; `at` is monotonic seconds."""

    at: float
    method: str
    place: Place
    watch: bool
    body: Manifest


@dataclass(eq=False, slots=True)
class _Stream:
    plural: str
    wanted: Wanted
    queue: "asyncio.Queue[bytes | None]" = field(default_factory=asyncio.Queue)


class HttpApi:
    """Everything public may be called from any thread. `url` is set while it runs."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Request] = []
        self.counts: Counter[tuple[str, str]] = Counter()  # by method and plural
        # The status of a TokenReview for a token.
        self.review: Callable[[str], Manifest] = lambda token: {"authenticated": False}
        # Whether the subject of a SubjectAccessReview may do what it names.
        self.may: Callable[[Manifest], bool] = lambda spec: False
        # Paths that may not be read.
        self.forbid: Callable[[str], bool] = lambda path: False
        self.page_objects_max = 1_000_000
        self._lock = threading.RLock()
        self._objects = Objects(self._tell)
        self._raw: dict[str, list[bytes]] = {}
        self._compacted = 0
        self._streams: list[_Stream] = []
        self._rules: list[Rule] = []
        self._loop = asyncio.new_event_loop()

    # What a test does ----------------------------------------------------------------------

    def put(self, kind: ResourceType, manifest: Manifest) -> Manifest:
        """Stores a whole object, status and all, as kubelets and people together would."""
        metadata = manifest["metadata"]
        with self._lock:
            key = (kind.plural, metadata.get("namespace", ""), metadata["name"])
            return self._objects.store(key, manifest)

    def remove(self, kind: ResourceType, name: str, namespace: str = "") -> None:
        """The object is gone, whatever grace or finalizers it has."""
        with self._lock:
            self._objects.drop((kind.plural, namespace, name))

    def stored(self, kind: ResourceType, name: str, namespace: str = "") -> Manifest:
        """Raises `Refusal` where there is none."""
        with self._lock:
            return copy.deepcopy(self._objects.get((kind.plural, namespace, name)))

    def objects(self, kind: ResourceType) -> list[Manifest]:
        with self._lock:
            return copy.deepcopy(list(self._objects.of(kind.plural).values()))

    def put_raw(self, kind: ResourceType, item: bytes) -> None:
        """Text that stands in every list and comes as an ADDED event, whatever it holds."""
        with self._lock:
            self._raw.setdefault(kind.plural, []).append(item)
            self.say(kind, b'{"type":"ADDED","object":%s}\n' % item)

    def say(self, kind: ResourceType, line: bytes) -> None:
        """Text into the open watches of the kind, as it is."""
        with self._lock:
            self._send(self._open(kind), line)

    def bookmark(self, kind: ResourceType) -> None:
        metadata = {"resourceVersion": str(self._objects.version)}
        self.say(kind, to_line({"type": "BOOKMARK", "object": {"metadata": metadata}}))

    def end_watches(self, kind: ResourceType, *, compact: bool = False) -> None:
        """Ends streams; with `compact`, what was until now can no longer be watched from."""
        with self._lock:
            self._compacted = self._objects.version if compact else self._compacted
            self._send(self._open(kind), None)

    @property
    def version(self) -> int:
        """The newest resourceVersion."""
        with self._lock:
            return self._objects.version

    def watches(self, kind: ResourceType) -> int:
        """How many streams of the kind are open."""
        with self._lock:
            return len(self._open(kind))

    def fail(
        self,
        kind: ResourceType,
        namespace: str = "",
        status: int = 500,
        body: Mapping[str, Any] | bytes = b"",
        *,
        methods: Iterable[str] = WRITES,
        headers: Mapping[str, str] | None = None,
        after_effect: bool = False,
        times: int | None = None,
    ) -> None:
        """Matching requests get this answer, before or (`after_effect`) after they take effect. No
        namespace means every one; a status of 0 closes the connection without an answer."""
        rule = Rule(kind.plural, namespace, frozenset(methods), times, status=status)
        rule.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        rule.headers, rule.after_effect = headers or {}, after_effect
        self._rules.append(rule)

    def delay(
        self,
        kind: ResourceType,
        namespace: str = "",
        seconds: float = 1.0,
        *,
        methods: Iterable[str] = WRITES,
        times: int | None = None,
    ) -> None:
        """Matching requests wait before they take effect."""
        self._rules.append(Rule(kind.plural, namespace, frozenset(methods), times, seconds))

    def heal(self) -> None:
        """Ends all failures and delays."""
        self._rules.clear()

    def write_kubeconfig(self, path: Path) -> Path:
        named: dict[str, Any] = {"apiVersion": "v1", "kind": "Config", "current-context": "it"}
        named["clusters"] = [{"name": "it", "cluster": {"server": self.url}}]
        named["users"] = [{"name": "it", "user": {"token": "any"}}]
        named["contexts"] = [{"name": "it", "context": {"cluster": "it", "user": "it"}}]
        path.write_text(yaml.safe_dump(named))
        return path

    @contextmanager
    def running(self) -> Generator["HttpApi"]:
        started, ended = threading.Event(), asyncio.Event()
        serve = self._serve(started.set, ended)
        thread = threading.Thread(target=self._loop.run_until_complete, args=(serve,), daemon=True)
        thread.start()
        try:
            if not started.wait(START_SECONDS):
                raise AssertionError("the API server did not start")
            yield self
        finally:
            self._loop.call_soon_threadsafe(ended.set)
            thread.join(START_SECONDS)
            self._loop.close()

    # Requests ------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        place = place_of(request.path)
        if place is None:
            found = discovery(request.path)
            return web.json_response(found or {}, status=404 if found is None else 200)
        if self.forbid(request.path):
            return web.json_response({"message": f"{request.path} is forbidden"}, status=403)
        watch = request.method == "GET" and request.query.get("watch") in ("true", "1")
        body = json.loads(await request.read() or b"{}")
        self.requests.append(Request(time.monotonic(), request.method, place, watch, body))
        self.counts[request.method, place.plural] += 1
        rules = [rule for rule in self._rules if rule.takes(request.method, place)]
        await asyncio.sleep(sum(rule.seconds for rule in rules))
        failing = next((rule for rule in rules if rule.status is not None), None)
        if failing is not None and not failing.after_effect:
            return _failure(request, failing)
        if watch:
            return await self._watch(request, place)
        try:
            with self._lock:
                status, answer = self._answer(request, place, body)
        except Refusal as refusal:
            return web.json_response(refusal.body, status=refusal.status)
        if failing is not None:
            return _failure(request, failing)
        return web.Response(body=answer, status=status, content_type="application/json")

    def _answer(self, request: web.Request, place: Place, body: Manifest) -> tuple[int, bytes]:
        method, objects = request.method, self._objects
        if place.plural == "tokenreviews":
            return 201, to_line({"status": self.review(body["spec"]["token"])})
        if place.plural == "subjectaccessreviews":
            return 201, to_line({"status": {"allowed": self.may(body["spec"])}})
        if method == "POST" and request.query.get("dryRun"):
            return 201, to_line(body)
        if method == "POST":
            return 201, to_line(objects.create(place, body))
        if method == "DELETE":
            return 200, to_line(objects.delete(place.key, body))
        if method in ("PUT", "PATCH"):
            changed = merged(objects.get(place.key), body) if method == "PATCH" else body
            asked = (body.get("metadata") or {}).get("resourceVersion")
            return 200, to_line(objects.update(place, changed, asked))
        return 200, to_line(objects.get(place.key)) if place.name else self._list(request, place)

    def _list(self, request: web.Request, place: Place) -> bytes:
        limit = min(int(request.query.get("limit") or self.page_objects_max), self.page_objects_max)
        wanted = selection(place, request.query)
        page = self._objects.page(place, wanted, request.query, limit)
        items = [json.dumps(one).encode() for one in page["items"]]
        items += [] if "continue" in request.query else self._raw.get(place.plural, [])
        metadata = json.dumps(page["metadata"]).encode()
        return b'{"metadata":%s,"items":[%s]}' % (metadata, b",".join(items))

    async def _watch(self, request: web.Request, place: Place) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        stream = _Stream(place.plural, selection(place, request.query))
        since = int(request.query.get("resourceVersion") or 0)
        with self._lock:
            self._streams.append(stream)
            if since < self._compacted:
                error = {"type": "ERROR", "object": status_body(410, "Expired", "too old")}
                stream.queue.put_nowait(to_line(error))
                stream.queue.put_nowait(None)
            for change in [one for one in self._objects.history if one.version > since]:
                self._offer(stream, change)
        seconds = float(request.query.get("timeoutSeconds") or 3600)
        try:
            await response.prepare(request)
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while (line := await stream.queue.get()) is not None:
                        await response.write(line)
        finally:
            with self._lock:
                self._streams.remove(stream)
        return response

    def _open(self, kind: ResourceType) -> list[_Stream]:
        return [one for one in self._streams if one.plural == kind.plural]

    def _tell(self, change: Change) -> None:
        for stream in self._streams:
            self._offer(stream, change)

    def _offer(self, stream: _Stream, change: Change) -> None:
        if stream.plural == change.plural and (line := change.line(stream.wanted)):
            self._send([stream], line)

    def _send(self, streams: Iterable[_Stream], line: bytes | None) -> None:
        for stream in streams:
            self._loop.call_soon_threadsafe(stream.queue.put_nowait, line)

    async def _serve(self, started: Callable[[], None], ended: asyncio.Event) -> None:
        application = web.Application(client_max_size=BODY_BYTES_MAX)
        application.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        started()
        await ended.wait()
        self._send(list(self._streams), None)
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


def _failure(request: web.Request, rule: Rule) -> web.Response:
    status = rule.status or 500
    if rule.status == 0 and request.transport is not None:
        request.transport.close()
    kind = "application/json"
    return web.Response(body=rule.body, status=status, headers=rule.headers, content_type=kind)
