"""The project's objects as the API server has them: lists, then watches, kept in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import GPUJOB, GPUNODE, GPUQUEUE, GPUSERVICE, from_manifest
from gpujob_api.meta import GROUP, VERSION
from gpujob_dashboard.api_server import APIServer, APIServerError
from gpujob_dashboard.groups import Groups

OURS = f"/apis/{GROUP}/{VERSION}"
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 30.0
_FORBIDDEN, _GONE = 403, 410

NounT = TypeVar("NounT", GPUJob, GPUNode, GPUQueue, GPUService)


@dataclass(slots=True)
class WatchedKind(Generic[NounT]):
    """The objects of one kind by namespace and name."""

    name: str
    paths: Sequence[str]
    # Gets the manifest, and the object as it is known.
    read: Callable[[Mapping[str, Any], NounT | None], NounT]
    objects: dict[tuple[str, str], NounT] = field(default_factory=dict)
    # The names of unreadable objects, which another version of the CRD accepted.
    unreadable: set[tuple[str, str]] = field(default_factory=set)
    # The last proof that the objects are current: a list, an event or a bookmark.
    current_at: datetime | None = None
    problem: str = ""
    # Gets an object before and after each change; None if there is none.
    changed: Callable[[NounT | None, NounT | None], None] = lambda before, after: None

    def put(self, item: Mapping[str, Any]) -> None:
        key = _key(item)
        item.get("metadata", {}).pop("managedFields", None)
        try:
            self._set(key, self.read(item, self.objects.get(key)))
            self.unreadable.discard(key)
        except FieldError:
            self._set(key, None)
            self.unreadable.add(key)

    def drop(self, item: Mapping[str, Any]) -> None:
        key = _key(item)
        self._set(key, None)
        self.unreadable.discard(key)

    def replace(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Replaces all objects by those of a list."""
        self.unreadable.clear()
        gone = self.objects.keys() - {_key(item) for item in items}
        for key in gone:
            self._set(key, None)
        for item in items:
            self.put(item)

    def _set(self, key: tuple[str, str], noun: NounT | None) -> None:
        before = self.objects.get(key)
        if noun is not None:
            self.objects[key] = noun
        else:
            self.objects.pop(key, None)
        self.changed(before, noun)


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    metadata = item.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def watched_jobs(namespace: str, groups: Groups) -> WatchedKind[GPUJob]:
    paths = _paths(GPUJOB.plural, namespace)
    return WatchedKind(GPUJOB.plural, paths, _read_job, changed=groups.change)


def _paths(plural: str, namespace: str) -> tuple[str, str]:
    """Returns the path of all objects, and that of the own namespace's."""
    return f"{OURS}/{plural}", f"{OURS}/namespaces/{namespace}/{plural}"


def _read_job(item: Mapping[str, Any], known: GPUJob | None) -> GPUJob:
    """Returns the job. Most changes are those of a status, so a known spec is not read again."""
    metadata = item.get("metadata") or {}
    # The API server changes the generation with the spec.
    same = known is not None and (known.metadata.uid, known.metadata.generation) == (
        metadata.get("uid"), metadata.get("generation")
    )  # fmt: skip
    if known is None or not same:
        return from_manifest(GPUJob, item)
    return from_manifest(GPUJob, item, lambda _: known.spec)


def _nodes() -> WatchedKind[GPUNode]:
    path = f"{OURS}/{GPUNODE.plural}"
    return WatchedKind(GPUNODE.plural, (path,), lambda one, _: from_manifest(GPUNode, one))


def _queues() -> WatchedKind[GPUQueue]:
    path = f"{OURS}/{GPUQUEUE.plural}"
    return WatchedKind(GPUQUEUE.plural, (path,), lambda one, _: from_manifest(GPUQueue, one))


def _services(namespace: str) -> WatchedKind[GPUService]:
    paths = _paths(GPUSERVICE.plural, namespace)
    return WatchedKind(GPUSERVICE.plural, paths, lambda one, _: from_manifest(GPUService, one))


class Watched:
    """The jobs, GPU nodes, queues and services. `revision` grows with every change."""

    def __init__(
        self,
        server: APIServer,
        namespace: str,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._server = server
        self._now = now
        self._sleep = sleep
        self._changed = asyncio.Event()
        self.revision = 0
        self.groups = Groups()
        self.jobs = watched_jobs(namespace, self.groups)
        self.nodes = _nodes()
        self.queues = _queues()
        self.services = _services(namespace)

    @property
    def kinds(self) -> Sequence[WatchedKind[Any]]:
        return self.jobs, self.nodes, self.queues, self.services

    @property
    def current_at(self) -> datetime | None:
        """The time as of which every readable kind is known, or None before the first lists."""
        known = [kind.current_at for kind in self.kinds if not kind.problem]
        return None if None in known else min(filter(None, known), default=None)

    async def run(self) -> None:
        """Follows every kind until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self.kinds:
                group.create_task(self._follow(kind))

    async def next_revision(self, seen: int, seconds: float) -> int:
        """Returns the revision once it is newer than `seen`, or after this time."""
        if self.revision <= seen:
            changed = self._changed
            try:
                async with asyncio.timeout(seconds):
                    await changed.wait()
            except TimeoutError:
                pass
        return self.revision

    def _note_change(self) -> None:
        self.revision += 1
        # Those that wait have the former event, and wait for it alone.
        self._changed, former = asyncio.Event(), self._changed
        former.set()

    async def _follow(self, kind: WatchedKind[Any]) -> None:
        pause = RETRY_SECONDS
        version, paths = "", list(kind.paths)
        while True:
            try:
                if not version:
                    version = await self._list(kind, paths[0])
                async for event in self._server.watch(paths[0], version):
                    version = self._take(kind, event) or version
                    pause = RETRY_SECONDS
            except APIServerError as error:
                if error.status == _GONE:
                    # A list may be too old as well, before its last page is read.
                    version = ""
                    await self._sleep(RETRY_SECONDS)
                    continue
                if error.status == _FORBIDDEN and len(paths) > 1:
                    # Only the own namespace may be read.
                    paths.pop(0)
                    continue
                version = "" if error.status else version
                self._note_problem(kind, error.message)
                await self._sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _list(self, kind: WatchedKind[Any], path: str) -> str:
        """Replaces the objects, and returns the version from which to watch."""
        items, version = await self._server.list(path)
        kind.replace(items)
        self._note_current(kind)
        self._note_change()
        return version

    def _take(self, kind: WatchedKind[Any], event: Mapping[str, Any]) -> str:
        """Applies an event, and returns its resource version."""
        item = event.get("object") or {}
        match event.get("type"):
            case "ADDED" | "MODIFIED":
                kind.put(item)
                self._note_change()
            case "DELETED":
                kind.drop(item)
                self._note_change()
            case "ERROR":
                raise APIServerError(int(item.get("code") or 0), str(item.get("message") or ""))
            case _:
                pass
        self._note_current(kind)
        return str((item.get("metadata") or {}).get("resourceVersion") or "")

    def _note_current(self, kind: WatchedKind[Any]) -> None:
        kind.current_at = self._now()
        kind.problem = ""

    def _note_problem(self, kind: WatchedKind[Any], message: str) -> None:
        if kind.problem != message:
            kind.problem = message
            self._note_change()


def state_of(watched: Watched, now: datetime) -> "State":
    return State(
        jobs=watched.jobs.objects.values(),
        nodes=_by_name(watched.nodes.objects.values()),
        queues=_by_name(watched.queues.objects.values()),
        sources=tuple(
            Source(kind.name, kind.current_at, kind.problem, len(kind.unreadable))
            for kind in watched.kinds
        ),
        now=now,
        groups=watched.groups,
        services=tuple(one for _, one in sorted(watched.services.objects.items())),
    )


@dataclass(frozen=True, slots=True)
class Source:
    """How current the objects of a kind are. `current_at` is None before the first list."""

    name: str
    current_at: datetime | None
    problem: str
    unreadable: int


@dataclass(frozen=True, slots=True)
class State:
    """The cluster at one time. Jobs and groups follow later changes, so a page never waits."""

    jobs: Collection[GPUJob]
    nodes: Sequence[GPUNode]
    queues: Sequence[GPUQueue]
    sources: Sequence[Source]
    now: datetime
    groups: Groups
    # By namespace and name.
    services: Sequence[GPUService] = ()


def _by_name(nouns: Iterable[NounT]) -> tuple[NounT, ...]:
    return tuple(sorted(nouns, key=lambda noun: noun.metadata.name))
