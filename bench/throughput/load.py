"""Submits jobs of one kind and follows them to their ends, as their user would."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from bench.throughput.figures import JobTimes
from gpujob_api.meta import API_VERSION, LABEL_JOB
from gpujob_operator.client.api_errors import AlreadyExists, ApiError, Throttled, Unavailable
from gpujob_operator.client.kube import JOBS, PODS, Kube, Manifest, ResourceType
from gpujob_operator.supervision import background

BATCH_JOBS = ResourceType("batch", "v1", "jobs", namespaced=True)
PARALLEL_CREATES = 64
TELL_SECONDS = 5.0
RETRY_SECONDS = 0.5
# For the last jobs that came beside a burst, once it has ended.
BESIDE_SECONDS_MAX = 30.0
IMAGE = "example.test/train:1"
REQUESTS = {"cpu": "1", "memory": "1Gi"}
# The name of Kueue's queue in each namespace, and of what it stands for.
KUEUE_QUEUE = "bench"
LABEL_KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of jobs: how one is written, and how its end and its pods are recognised."""

    name: str
    resource: ResourceType
    pod_label: str
    manifest: Callable[[str, int], Manifest]
    succeeded: Callable[[Manifest], bool]


def gpujob_manifest(name: str, workers: int) -> Manifest:
    container = {"name": "worker", "image": IMAGE, "command": ["python", "train.py"]}
    template = {"spec": {"containers": [container | {"resources": {"requests": REQUESTS}}]}}
    return {
        "apiVersion": API_VERSION,
        "kind": "GPUJob",
        "metadata": {"name": name},
        "spec": {"workers": workers, "gpusPerWorker": 1, "template": template},
    }


def batch_manifest(name: str, workers: int) -> Manifest:
    resources = {"requests": REQUESTS, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "worker", "image": IMAGE, "command": ["python", "train.py"]}
    pod = {"restartPolicy": "Never", "containers": [container | {"resources": resources}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": workers,
            "completions": workers,
            "backoffLimit": 0,
            "template": {"spec": pod},
        },
    }


def kueue_manifest(name: str, workers: int) -> Manifest:
    """The same Job, with the label by which Kueue's webhook takes and suspends it."""
    manifest = batch_manifest(name, workers)
    return manifest | {"metadata": {"name": name, "labels": {LABEL_KUEUE_QUEUE: KUEUE_QUEUE}}}


def _gpujob_succeeded(manifest: Manifest) -> bool:
    return (manifest.get("status") or {}).get("phase") == "Succeeded"


def _batch_succeeded(manifest: Manifest) -> bool:
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)


GPUJOBS = Kind("gpujobs", JOBS, LABEL_JOB, gpujob_manifest, _gpujob_succeeded)
PLAIN_JOBS = Kind(
    "jobs", BATCH_JOBS, "batch.kubernetes.io/job-name", batch_manifest, _batch_succeeded
)
KUEUE_JOBS = replace(PLAIN_JOBS, name="kueue", manifest=kueue_manifest)
KINDS = {kind.name: kind for kind in (GPUJOBS, PLAIN_JOBS, KUEUE_JOBS)}


@dataclass(frozen=True, slots=True)
class Load:
    """How many jobs of how many workers come how fast; 0 a second: all at once."""

    jobs: int
    workers: int = 1
    per_second: float = 0.0
    limit_seconds: float = 900.0


@dataclass(slots=True)
class Run:
    """One load under way. `times` has every job that was submitted."""

    kube: Kube
    kind: Kind
    load: Load
    namespace: str
    times: dict[str, JobTimes] = field(default_factory=dict[str, JobTimes])
    _created_pods: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _bound_pods: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, say: Say) -> str:
        """Returns "" once every job has succeeded, else what did not happen within the limit."""
        pods = await self._version(PODS)
        jobs = await self._version(self.kind.resource)
        follow = (
            self._follow(PODS, pods, self.pod_came),
            self._follow(self.kind.resource, jobs, self.job_came),
            self._tell(say),
        )
        try:
            async with background(*follow), asyncio.timeout(self.load.limit_seconds):
                await self._submit()
                while not all(one.succeeded for one in self.times.values()):
                    self._progress.clear()
                    await self._progress.wait()
        except TimeoutError:
            limit = self.load.limit_seconds
            return f"after {limit:.0f} s: {self.progress()} of {self.load.jobs}"
        return ""

    async def come_beside(self, burst: "Run") -> None:
        """Submits jobs until the burst is bound. Returns once they are bound, too."""
        pods, jobs = await self._version(PODS), await self._version(self.kind.resource)
        follow = (
            self._follow(PODS, pods, self.pod_came),
            self._follow(self.kind.resource, jobs, self.job_came),
        )
        async with background(*follow):
            await self._submit(lambda: burst.bound >= burst.load.jobs)
            await self.until_bound(len(self.times))

    async def until_bound(self, jobs: int) -> None:
        """Waits until as many jobs are bound."""
        while self.bound < jobs:
            self._progress.clear()
            await self._progress.wait()

    @property
    def bound(self) -> int:
        """How many jobs are bound."""
        return sum(one.bound is not None for one in self.times.values())

    def progress(self) -> str:
        ended = sum(one.succeeded is not None for one in self.times.values())
        return f"{len(self.times)} submitted, {self.bound} bound, {ended} succeeded"

    def pod_came(self, manifest: Manifest, now: float) -> None:
        labels = manifest["metadata"].get("labels") or {}
        name = str(labels.get(self.kind.pod_label))
        times = self.times.get(name)
        if times is None or times.bound is not None:
            return
        if times.created is None and self._is_last(self._created_pods[name], manifest):
            times.created = now
        if manifest["spec"].get("nodeName") and self._is_last(self._bound_pods[name], manifest):
            times.bound = now
            self._progress.set()

    def _is_last(self, pods: set[str], pod: Manifest) -> bool:
        """Adds the pod to those of its job; whether all are there now."""
        pods.add(pod["metadata"]["name"])
        return len(pods) >= self.load.workers

    def job_came(self, manifest: Manifest, now: float) -> None:
        times = self.times.get(manifest["metadata"]["name"])
        if times is not None and times.seen is None:
            times.seen = now
        if times is not None and times.succeeded is None and self.kind.succeeded(manifest):
            times.succeeded = now
            self._progress.set()

    async def _version(self, resource: ResourceType) -> str:
        return (await self.kube.list(resource, self.namespace)).resource_version

    async def _follow(
        self, resource: ResourceType, version: str, came: Callable[[Manifest, float], None]
    ) -> None:
        selector = f"metadata.namespace={self.namespace}"
        while True:
            try:
                async for event in self.kube.watch(resource, version, field_selector=selector):
                    manifest: Any = event["object"]
                    version = manifest["metadata"]["resourceVersion"]
                    if manifest["metadata"].get("namespace") == self.namespace:
                        came(manifest, time.monotonic())
            except ApiError as error:
                print(f"watch of {resource.plural}: {error}", flush=True)
                await asyncio.sleep(0.1)

    async def _tell(self, say: Say) -> None:
        while True:
            await asyncio.sleep(TELL_SECONDS)
            say(f"{self.kind.name}: {self.progress()}")

    async def _submit(self, enough: Callable[[], bool] = lambda: False) -> None:
        start, slots = time.monotonic(), asyncio.Semaphore(PARALLEL_CREATES)
        async with asyncio.TaskGroup() as group:
            for number in range(self.load.jobs):
                if self.load.per_second:
                    due = start + number / self.load.per_second
                    await asyncio.sleep(max(0.0, due - time.monotonic()))
                if enough():
                    return
                await slots.acquire()
                task = group.create_task(self._create(f"{self.kind.resource.plural}-{number:05d}"))
                task.add_done_callback(lambda _: slots.release())

    async def _create(self, name: str) -> None:
        self.times[name] = JobTimes(time.monotonic())
        manifest = self.kind.manifest(name, self.load.workers)
        with suppress(AlreadyExists):
            # A busy server may not answer in time; the run's limit ends this.
            while True:
                try:
                    await self.kube.create(self.kind.resource, manifest, self.namespace)
                except (Throttled, Unavailable):
                    await asyncio.sleep(RETRY_SECONDS)
                else:
                    self.times[name].answered = time.monotonic()
                    return


@asynccontextmanager
async def coming_beside(beside: Run, burst: Run) -> AsyncGenerator[None]:
    """Jobs of another namespace come during the block. At its end those that came are awaited."""
    coming = asyncio.create_task(beside.come_beside(burst))
    try:
        yield
        with suppress(TimeoutError):
            async with asyncio.timeout(BESIDE_SECONDS_MAX):
                await coming
    finally:
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def while_running(run: Awaitable[str], also: Awaitable[object] | None) -> str:
    """Does `also` beside `run` and gives it up with it. Returns the result of `run`; raises what
    `also` raises.
    """
    if also is None:
        return await run
    beside = asyncio.ensure_future(also)
    try:
        result = await run
        if beside.done():
            beside.result()
        return result
    finally:
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
