"""Checks the promises on every revision of the simulated API server.

It reads only what was committed and what the machines really did, never what an operator believes.
"""

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpujob_api.codec import parse_time
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_operator.decide.capacity import holds_cards
from gpujob_operator.decide.conditions import SCHEDULED, find
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest, Revision

# A decision may rest on a reading this old: staleness limit, watch lag and writes under way.
READING_WINDOW_SECONDS = 45.0
FINAL = ("Succeeded", "Failed")
_NUMBER = re.compile("[0-9]")


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    at: float
    message: str

    def __str__(self) -> str:
        return f"{self.invariant} at {self.at:.2f} s: {self.message}"


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    total_bytes: int
    driver_bytes: int
    stranger_bytes: int


class Recorder:
    """Feed it every revision; `violations` is what it found."""

    def __init__(self, api: ApiServer, operators: set[str]) -> None:
        self.violations: list[Violation] = []
        self.operator_writes = 0
        self.last_operator_write = 0.0
        self.attempts: dict[str, int] = {}
        self._api = api
        self._operators = operators
        self._jobs: dict[str, GPUJob] = {}
        self._readings: dict[str, deque[_Reading]] = defaultdict(lambda: deque(maxlen=32))
        api.recorders.append(self.observe)

    def observe(self, revision: Revision) -> None:
        ours = revision.by in self._operators
        if ours:
            self.operator_writes += 1
            self.last_operator_write = revision.at
        if revision.kind is Kind.GPU_NODE:
            self._read_cards(revision)
        elif revision.kind is Kind.JOB:
            self._job(revision, ours=ours)
        elif revision.kind is Kind.POD:
            self._pod(revision, ours=ours)

    def _fail(self, invariant: str, revision: Revision, message: str) -> None:
        self.violations.append(Violation(invariant, revision.at, message))

    # -- cards

    def _read_cards(self, revision: Revision) -> None:
        gpus: list[Manifest] = (revision.object.get("status") or {}).get("gpus") or []
        if revision.type == "DELETED":
            return
        for gpu in gpus:
            if gpu["memoryUsedBytes"] > gpu["memoryTotalBytes"]:
                continue
            stranger = sum(
                process["memoryBytes"]
                for process in gpu.get("processes") or ()
                if process.get("podUid") is None
            )
            self._readings[gpu["uuid"]].append(
                _Reading(revision.at, gpu["memoryTotalBytes"], gpu["memoryReservedBytes"], stranger)
            )

    # -- jobs

    def _job(self, revision: Revision, *, ours: bool) -> None:
        uid = revision.object["metadata"]["uid"]
        before = self._jobs.get(uid)
        if revision.type == "DELETED":
            self._jobs.pop(uid, None)
            return
        job = gpujob_from_manifest(revision.object)
        self._jobs[uid] = job
        self.attempts[job.metadata.name] = job.status.attempt
        if before is None or not ours:
            return
        self._check_life(revision, before, job)
        if _held(job) != _held(before) and holds_cards(job):
            self._check_cards(revision, before, job)

    def _check_life(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        name = job.metadata.name
        is_new = holds_cards(job) and not holds_cards(before)
        if job.status.attempt < before.status.attempt + is_new:
            attempts = f"{before.status.attempt} to {job.status.attempt}"
            self._fail("I3", revision, f"{name}: attempt went from {attempts}")
        if not job.finished and job.status.placement is None and not _reason(job):
            self._fail("I4", revision, f"{name} waits without a reason")
        if before.finished and job.status.phase is not before.status.phase:
            phases = f"{before.status.phase.value} to {job.status.phase.value}"
            self._fail("I5", revision, f"{name}: went from {phases}")
        saved = before.status.checkpoint
        now = job.status.checkpoint
        if saved is not None and (now is None or now.step < saved.step):
            self._fail("I6", revision, f"{name}: durable step {saved.step} became {now}")
        if job.status.stop != before.status.stop and job.status.stop is not None:
            left = (job.status.stop.deadline - parse_time(_now_text(revision))).total_seconds()
            if left < 0:
                self._fail("I13", revision, f"{name}: told to stop with {left:.0f} s left")

    def _check_cards(self, revision: Revision, before: GPUJob, job: GPUJob) -> None:
        placement = job.status.placement
        assert placement is not None
        is_new = not holds_cards(before) or before.status.attempt != job.status.attempt
        for worker in placement.workers:
            for uuid in worker.gpus:
                self._check_room(revision, before, job, uuid)
                self._check_alone(revision, job, uuid)
                if is_new:
                    self._check_telemetry(revision, job, worker.node, uuid)

    def _check_room(self, revision: Revision, before: GPUJob, job: GPUJob, uuid: str) -> None:
        """Over capacity in the light of every reading that the decision may have known."""
        if _is_shrink(before, job) or _is_leak(before, job):
            return
        reserved = sum(
            other.status.reservation.memory_bytes
            for other in self._tenants(uuid)
            if other.status.reservation is not None
        )
        recent = self._recent(uuid, revision.at)
        used = [reserved + one.driver_bytes + one.stranger_bytes for one in recent]
        if recent and min(used) > recent[0].total_bytes:
            self._fail(
                "I1", revision, f"{uuid}: {min(used)} of {recent[0].total_bytes} bytes after "
                f"{job.metadata.name} took {job.status.reservation}",
            )  # fmt: skip

    def _check_alone(self, revision: Revision, job: GPUJob, uuid: str) -> None:
        tenants = self._tenants(uuid)
        if len(tenants) > 1 and any(_wants_all(tenant) for tenant in tenants):
            names = ", ".join(tenant.metadata.name for tenant in tenants)
            self._fail("I2", revision, f"{uuid} is shared by {names}")

    def _check_telemetry(self, revision: Revision, job: GPUJob, node: str, uuid: str) -> None:
        if not self._recent(uuid, revision.at):
            self._fail("I14", revision, f"{job.metadata.name} placed on unmeasured {uuid}, {node}")

    def _recent(self, uuid: str, now: float) -> list[_Reading]:
        """The readings of the window, and the one before it that was still valid within it."""
        return [r for r in self._readings[uuid] if r.at >= now - READING_WINDOW_SECONDS]

    def _tenants(self, uuid: str) -> list[GPUJob]:
        return [
            job
            for job in self._jobs.values()
            if holds_cards(job) and job.status.placement is not None
            and any(uuid in worker.gpus for worker in job.status.placement.workers)
        ]  # fmt: skip

    # -- pods

    def _pod(self, revision: Revision, *, ours: bool) -> None:
        job_uid, attempt = _labels(revision.object)
        job = self._jobs.get(job_uid)
        if revision.type == "ADDED":
            self._check_pod(revision, job, job_uid, attempt)
        elif ours and revision.type in ("MODIFIED", "DELETED") and job is not None:
            self._check_stop(revision, job, attempt)

    def _check_pod(
        self, revision: Revision, job: GPUJob | None, job_uid: str, attempt: int
    ) -> None:
        name = revision.object["metadata"]["name"]
        live = [
            _labels(pod)[1]
            for pod in self._api.list(Kind.POD)
            if _labels(pod)[0] == job_uid and pod["status"]["phase"] not in FINAL
        ]
        if len(set(live)) > 1:
            self._fail("I3", revision, f"{name}: live pods of attempts {sorted(set(live))}")
        if job is None:
            return
        if job.finished:
            self._fail("I5", revision, f"{name}: a pod of a {job.status.phase.value} job")
        elif job.status.placement is None or job.status.attempt != attempt:
            self._fail("I3", revision, f"{name}: the job is at attempt {job.status.attempt}")

    def _check_stop(self, revision: Revision, job: GPUJob, attempt: int) -> None:
        """A pod of the attempt in force is stopped only after the reason is durable."""
        pod = revision.object
        live = (revision.before or pod)["status"]["phase"] not in FINAL
        current = attempt == job.status.attempt and holds_cards(job)
        if live and current and job.status.stop is None:
            self._fail("I13", revision, f"{pod['metadata']['name']} stopped without a reason")


def _labels(pod: Mapping[str, Any]) -> tuple[str, int]:
    labels = pod["metadata"]["labels"]
    return labels["gpujob.dev/job-uid"], int(labels["gpujob.dev/attempt"])


def _held(job: GPUJob) -> tuple[object, ...]:
    return _places(job), job.status.reservation


def _wants_all(job: GPUJob) -> bool:
    held = job.status.reservation
    whole = held is not None and (held.exclusive or held.source.value == "WholeCard")
    return whole or job.spec.sharing.mode.value == "Exclusive"


def _is_shrink(before: GPUJob, job: GPUJob) -> bool:
    one, other = before.status.reservation, job.status.reservation
    same = _places(before) == _places(job)
    return same and one is not None and other is not None and other.memory_bytes <= one.memory_bytes


def _is_leak(before: GPUJob, job: GPUJob) -> bool:
    """The job was measured above what it held: the write tells what is so already."""
    measured, held = job.status.measurement, before.status.reservation
    same = _places(before) == _places(job)
    return same and None not in (measured, held) and measured.memory_bytes > held.memory_bytes  # type: ignore[union-attr]


def _reason(job: GPUJob) -> str:
    """Why the job waits; with a number where room or quota is missing."""
    found = find(job.status, SCHEDULED)
    if found is None or (
        found.reason in ("NoRoom", "OverQuota") and not _NUMBER.search(found.message)
    ):
        return ""
    return found.message


def _now_text(revision: Revision) -> str:
    return revision.object["status"]["observedAt"]


def _places(job: GPUJob) -> object:
    """Where the job is; the UIDs of its pods become known later and move nobody."""
    placement = job.status.placement
    return None if placement is None else [(w.rank, w.node, w.gpus) for w in placement.workers]
