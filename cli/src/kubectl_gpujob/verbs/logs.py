"""kubectl gpujob logs: a job's log, across attempts, and before its pod exists.

The log is data and goes to standard output. The lines between attempts and the reasons of a wait go
to standard error.
"""

import argparse
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.gpujob import WORKER_CONTAINER, GPUJob, JobPhase
from gpujob_api.meta import LABEL_ATTEMPT, LABEL_RANK
from kubectl_gpujob.cluster import Cluster, Manifest
from kubectl_gpujob.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_JOB_FAILED,
    NotFoundError,
    UsageError,
    UserError,
)
from kubectl_gpujob.grammar import World, add_target
from kubectl_gpujob.services import job_named
from kubectl_gpujob.verbs.list import status

POLL_SECONDS = 2.0
# A job that still waits repeats its reason after this time.
REMIND_SECONDS = 60.0
LINE_BYTES_MAX = 1024 * 1024


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="JOB", help="name of the job")
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="wait for the pod, follow the log, and go on with the next attempt until the job ends",
    )
    parser.add_argument("--attempt", type=int, help="number of the attempt (default: the latest)")
    parser.add_argument("--all-attempts", action="store_true", help="from the first attempt on")
    parser.add_argument("--rank", type=int, default=0, help="rank of the worker (default: 0)")
    parser.add_argument("--all-ranks", action="store_true", help="all workers, with a prefix")
    parser.add_argument("--tail", type=int, metavar="LINES", help="only the last lines")
    parser.add_argument("--since", metavar="TIME", help="only lines since 90s, 30m, 24h")
    add_target(parser)


def run(options: argparse.Namespace, world: World) -> int:
    if options.attempt is not None and options.all_attempts:
        raise UsageError("--attempt and --all-attempts exclude each other")
    if options.attempt is not None and options.attempt < 1:
        raise UsageError(f"--attempt: the first attempt is 1; got {options.attempt}")
    if options.rank < 0:
        raise UsageError(f"--rank: must not be negative; got {options.rank}")
    return follow(world.cluster(options), options.name, options, world)


def follow(cluster: Cluster, name: str, options: argparse.Namespace, world: World) -> int:
    """Prints the log. Returns the exit code: that the job failed counts if it was followed."""
    reader = _Reader(cluster, world, _query(options), options)
    job = job_named(cluster, name)
    if options.rank >= job.spec.workers:
        count = f"{job.spec.workers} worker{'s' if job.spec.workers > 1 else ''}"
        raise UserError(f"{name} has no rank {options.rank}: it has {count}, from rank 0 on")
    if not options.follow:
        return reader.print_once(job)
    try:
        return _follow(reader, options, job)
    except NotFoundError:
        raise UserError(f"gpujob {name} was deleted") from None


def _follow(reader: "_Reader", options: argparse.Namespace, job: GPUJob) -> int:
    cluster, world, name = reader.cluster, reader.world, job.metadata.name
    waiting = _Waiting(world)
    # The attempt that is followed next. None: the one that the job is at.
    attempt: int | None = options.attempt or (1 if options.all_attempts else None)
    while True:
        attempt = attempt or max(job.status.attempt, 1)
        pods = reader.pods(job, attempt)
        if pods and reader.print_attempt(job, attempt, pods, follow=True):
            job = _settled(cluster, job, attempt, world)
        if job.finished and job.status.attempt <= attempt:
            failed = job.status.phase is JobPhase.FAILED
            if failed and not reader.was_printed(attempt) and job.status.summary.reason:
                world.screen.note(job.status.summary.reason)
            world.screen.note(f"--- {job.metadata.name} {status(job)} ---")
            return EXIT_JOB_FAILED if failed else EXIT_DONE
        if attempt < job.status.attempt:
            attempt += 1
            job = cluster.job(name)
            continue
        if reader.was_printed(attempt):
            # The next attempt has no number in the status yet.
            attempt += 1
        waiting.explain(job)
        world.sleep(POLL_SECONDS)
        job = cluster.job(name)


def _settled(cluster: Cluster, job: GPUJob, attempt: int, world: World) -> GPUJob:
    """Returns the job once its status follows the end of the log, which it does within seconds."""
    for _ in range(10):
        job = cluster.job(job.metadata.name)
        if job.finished or job.status.attempt > attempt or job.status.placement is None:
            break
        world.sleep(POLL_SECONDS)
    return job


@dataclass(slots=True)
class _Waiting:
    """Explains why there is no log yet, whenever the reason changes."""

    world: World
    shown: str = ""
    at: float = 0.0

    def explain(self, job: GPUJob) -> None:
        now, line = self.world.now().timestamp(), job.status.summary.reason or status(job)
        if line != self.shown or now - self.at >= REMIND_SECONDS:
            self.world.screen.note(f"waiting for {job.metadata.name}: {line}")
            self.shown, self.at = line, now


@dataclass(slots=True)
class _Reader:
    cluster: Cluster
    world: World
    query: dict[str, str]
    options: argparse.Namespace
    printed: set[int] = field(default_factory=set[int])
    # How many logs could not be read.
    failures: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def was_printed(self, attempt: int) -> bool:
        return attempt in self.printed

    def pods(self, job: GPUJob, attempt: int) -> list[Manifest]:
        """Returns the pods of the wanted ranks whose container has begun."""
        found = [pod for pod in self.cluster.pods(job) if _number(pod, LABEL_ATTEMPT) == attempt]
        if not self.options.all_ranks:
            found = [pod for pod in found if _number(pod, LABEL_RANK) == self.options.rank]
        return sorted(filter(_has_begun, found), key=lambda pod: _number(pod, LABEL_RANK))

    def print_once(self, job: GPUJob) -> int:
        pods = self.cluster.pods(job)
        kept = sorted({_number(pod, LABEL_ATTEMPT) for pod in pods if _has_begun(pod)})
        asked = self.options.attempt
        chosen = kept if self.options.all_attempts else kept[-1:] if asked is None else [asked]
        shown = 0
        for attempt in chosen:
            found = self.pods(job, attempt)
            if found:
                self.print_attempt(job, attempt, found, follow=False, titled=len(chosen) > 1)
                shown += 1
        if not shown:
            raise UserError(_nothing(job, asked, kept))
        return EXIT_FAILED if self.failures else EXIT_DONE

    def print_attempt(
        self,
        job: GPUJob,
        attempt: int,
        pods: Sequence[Manifest],
        *,
        follow: bool,
        titled: bool = True,
    ) -> bool:
        """Prints the logs of one attempt. Returns whether there were any."""
        if attempt in self.printed:
            return False
        if titled and (attempt > 1 or self.options.all_attempts):
            self.world.screen.note(_title(job, attempt, pods))
        self.printed.add(attempt)
        query = {**self.query, "follow": "true"} if follow else self.query
        if len(pods) == 1:
            self._print(pods[0], query, "")
            return True
        threads = [
            threading.Thread(
                target=self._print, args=(pod, query, f"[{_number(pod, LABEL_RANK)}] "), daemon=True
            )
            for pod in pods
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return True

    def _print(self, pod: Manifest, query: dict[str, str], prefix: str) -> None:
        metadata = pod["metadata"]
        with self.cluster.log(
            metadata["namespace"], metadata["name"], container=_container(pod), **query
        ) as stream:
            for line in lines(iter(lambda: stream.data.readline(LINE_BYTES_MAX), b"")):
                with self._lock:
                    self.world.screen.line(f"{prefix}{line}")
            failure = stream.failure()
        if failure is not None:
            self.failures += 1
            self.world.screen.note(f"log of {metadata['name']}: {failure.message}")


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Yields lines. A progress bar that rewrites its line becomes its last state."""
    for chunk in chunks:
        text = chunk.decode(errors="replace").rstrip("\r\n")
        parts = [part for part in text.split("\r") if part]
        yield parts[-1] if parts else ""


def _query(options: argparse.Namespace) -> dict[str, str]:
    from kubectl_gpujob.text import seconds_of

    query: dict[str, str] = {}
    if options.tail is not None:
        if options.tail < 0:
            raise UsageError(f"--tail: must not be negative; got {options.tail}")
        query["tailLines"] = str(options.tail)
    if options.since is not None:
        query["sinceSeconds"] = str(int(seconds_of(options.since, "--since")))
    return query


def _title(job: GPUJob, attempt: int, pods: Sequence[Manifest]) -> str:
    nodes = ", ".join(sorted({str(pod["spec"].get("nodeName", "?")) for pod in pods}))
    resumed = job.status.resumed_from_step if attempt == job.status.attempt else None
    after = "" if resumed is None else f", resumed after step {resumed}"
    after = ", started from the beginning" if resumed == 0 else after
    return f"--- attempt {attempt} on {nodes}{after} ---"


def _nothing(job: GPUJob, asked: int | None, kept: Sequence[int]) -> str:
    name = job.metadata.name
    if asked is not None and kept:
        return f"{name} has no log of attempt {asked}; there are {', '.join(map(str, kept))}"
    reason = job.status.summary.reason or status(job)
    if job.finished:
        return f"{name} has no log: {reason}"
    return f"{name} has no log yet: {reason} (kubectl gpujob logs -f {name} waits for it)"


def _has_begun(pod: Manifest) -> bool:
    """Returns whether the worker's container has a log."""
    statuses: list[Any] = (pod.get("status") or {}).get("containerStatuses") or []
    name = _container(pod)
    for one in statuses:
        if one.get("name") == name:
            state = {**(one.get("state") or {}), **(one.get("lastState") or {})}
            ended = state.get("terminated") or {}
            # The runtime could not start it.
            if ended.get("reason") == "StartError":
                return False
            return "running" in state or "terminated" in state
    return False


def _container(pod: Manifest) -> str:
    names = [container["name"] for container in pod["spec"]["containers"]]
    if WORKER_CONTAINER in names or not names:
        return WORKER_CONTAINER
    return names[0]


def _number(pod: Manifest, label: str) -> int:
    text = (pod["metadata"].get("labels") or {}).get(label, "")
    return int(text) if text.isascii() and text.isdigit() else 0
